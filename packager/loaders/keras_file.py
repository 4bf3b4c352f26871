"""Reads the layers of a `.keras` archive of Keras 3 without Keras: in a tenth of a second.

Only classes whose weights have a known order are read; for any other model the answer is None,
and the way through Keras remains.
"""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packager.loaders import names
from packager.loaders.keras_graph import call_of, refs_of, sort_layers, specs_of
from packager.loaders.layer_graph import Layer, LayerGraph, Spec, TensorRef, Weights

Config = dict[str, Any]


class _Unknown(Exception):
    """The archive holds something that only Keras can read."""


def read(path: Path) -> LayerGraph | None:
    """Returns what `keras_graph.layer_graph` would, or None where Keras is needed for it.

    Args:
        path: A `.keras` archive.
    """
    import h5py

    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            content = archive.read("model.weights.h5")
        with h5py.File(io.BytesIO(content)) as stored:
            return _graph(config, stored)
    # A description by somebody else may have any form; Keras says what is wrong with it.
    except (
        *(_Unknown, zipfile.BadZipFile, OSError, ValueError, RecursionError),
        *(KeyError, TypeError, AttributeError, IndexError),
    ):
        return None


def _graph(described: Config, stored: Any) -> LayerGraph:
    config, kind = described["config"], described["class_name"]
    if kind not in ("Sequential", "Functional") or not _is_keras(described):
        raise _Unknown
    layers = _chain(config["layers"]) if kind == "Sequential" else config["layers"]
    # Shapes are known where a call takes them.
    specs = specs_of(layers) | (_shapes(layers) if kind == "Sequential" else {})
    groups = _by_name(stored["layers"])
    nested = {c["name"] for c in layers if "layers" in c["config"]}
    ends = {key: refs_of(config.get(key) or _ends(layers)[key]) for key in _ENDS}
    outputs = tuple(
        # In `output_layers`, and only there, a nested model's calls count from 1.
        TensorRef(ref.layer, ref.node - 1, ref.tensor) if ref.layer in nested else ref
        for ref in ends["output_layers"]
    )
    return LayerGraph(
        name=config["name"],
        class_name=kind,
        layers=sort_layers(tuple(_layer(c, groups, specs) for c in layers)),
        inputs=tuple(ends["input_layers"]),
        outputs=outputs,
    )


_ENDS = ("input_layers", "output_layers")


def _is_keras(described: Config) -> bool:
    module = described.get("module") or ""
    return module == "keras" or module.startswith("keras.")


def _chain(layers: list[Config]) -> list[Config]:
    """Gives the layers of a Sequential model the calls that it leaves out."""
    found: list[Config] = []
    for layer in layers:
        name = layer["config"]["name"]
        if "layers" in layer["config"]:
            raise _Unknown  # its ends would have to be traced first
        nodes = []
        if found:
            shape = (layer.get("build_config") or {}).get("input_shape")
            history = {"shape": shape or [], "dtype": "float32"}
            history["keras_history"] = [found[-1]["name"], 0, 0]
            tensor = {"class_name": "__keras_tensor__", "config": history}
            nodes = [{"args": [tensor], "kwargs": {}}]
        found.append({**layer, "name": name, "inbound_nodes": nodes})
    if not found or found[0]["class_name"] != "InputLayer":
        raise _Unknown
    return found


def _shapes(layers: list[Config]) -> dict[TensorRef, Spec]:
    """What the next layer was built for; a Sequential model tells no more."""
    known = {}
    for before, layer in itertools.pairwise(layers):
        shape = (layer.get("build_config") or {}).get("input_shape")
        if shape:
            known[TensorRef(before["name"], 0, 0)] = Spec(tuple(shape), "float32")
    return known


def _ends(layers: list[Config]) -> dict[str, Any]:
    return {
        "input_layers": [layers[0]["name"], 0, 0],
        "output_layers": [layers[-1]["name"], 0, 0],
    }


def _by_name(container: Any) -> dict[str, Any]:
    """The groups of a container of layers by the layers' names, which Keras notes in each."""
    found: dict[str, Any] = {}
    for group in container.values():
        name = group["vars"].attrs["name"]
        if name in found:
            raise _Unknown
        found[name] = group
    return found


def _layer(described: Config, groups: dict[str, Any], specs: dict[TensorRef, Spec]) -> Layer:
    name, kind, config = described["name"], described["class_name"], described["config"]
    module = described.get("module") or ""
    graph, weights = None, {}
    if kind in ("Sequential", "Functional"):
        graph = _graph(described, groups[name])
    elif not module.startswith("keras.src.ops"):
        weights = _weights(described, groups)
    return Layer(
        class_name=kind,
        name=name,
        module=module,
        config={k: v for k, v in config.items() if not (graph and k == "layers")},
        calls=tuple(
            call_of(node, name, number, specs)
            for number, node in enumerate(described["inbound_nodes"])
        ),
        weights=weights,
        graph=graph,
    )


def _weights(described: Config, groups: dict[str, Any]) -> Weights:
    kind, config = described["class_name"], described["config"]
    if not _is_keras(described) or config.get("mask_zero") or config.get("quantization_config"):
        raise _Unknown  # masks are no part of the description
    if kind in _WITHOUT:
        return {}
    order = _VARIABLES[kind](config)
    group = groups[described["name"]]
    variables = group["cell" if kind in _RECURRENT else "."]["vars"]
    if len(variables) != len(order):
        raise _Unknown
    return {name: variables[str(i)][()] for i, name in enumerate(order)}


def _named(*names: str) -> Callable[[Config], list[str]]:
    """These weights, and a bias if there is one."""
    return lambda config: [*names, *(["bias"] if config.get("use_bias", True) else [])]


def _norm(*always: str) -> Callable[[Config], list[str]]:
    pairs = (("scale", "gamma"), ("center", "beta"))
    return lambda config: [*(name for key, name in pairs if config.get(key, True)), *always]


_RECURRENT = ("SimpleRNN", "LSTM", "GRU")
# The order in which Keras stores the weights of a class.
_VARIABLES: dict[str, Callable[[Config], list[str]]] = {
    "Dense": _named("kernel"),
    **{f"Conv{n}D": _named("kernel") for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": _named("kernel") for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": _named("kernel") for n in (1, 2)},
    **{f"SeparableConv{n}D": _named("depthwise_kernel", "pointwise_kernel") for n in (1, 2)},
    **dict.fromkeys(_RECURRENT, _named("kernel", "recurrent_kernel")),
    "BatchNormalization": _norm("moving_mean", "moving_variance"),
    "LayerNormalization": _norm(),
    "GroupNormalization": _norm(),
    "Embedding": lambda _config: ["embeddings"],
    "PReLU": lambda _config: ["alpha"],
}
# Classes without weights that count.
_WITHOUT = frozenset(
    {
        *("InputLayer", "Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Flatten", "Reshape"),
        *("Permute", "RepeatVector", "Dropout", "SpatialDropout1D", "SpatialDropout2D"),
        *("GaussianNoise", "GaussianDropout", "AlphaDropout", "Identity", "Rescaling"),
        *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"),
        *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
        *(f"{k}Pooling{n}D" for k in ("Max", "Average") for n in (1, 2, 3)),
        *(f"Global{k}Pooling{n}D" for k in ("Max", "Average") for n in (1, 2, 3)),
        *("RandomFlip", "RandomRotation", "RandomZoom", "RandomTranslation", "RandomContrast"),
    }
)


def ends(graph: LayerGraph, outputs: list[Spec | None]) -> dict[str, list[dict[str, Any]]] | None:
    """Describes a model's ends as the TensorFlow child's `open` does.

    Args:
        graph: What `read` returned.
        outputs: Shape and type of each output.

    Returns:
        `inputs` and `outputs`; None where a shape is not known.
    """
    if any(spec is None for spec in outputs):
        return None
    given = [
        Spec(tuple(config["batch_shape"]), config["dtype"])
        for config in (graph.layer(ref.layer).config for ref in graph.inputs)
    ]
    found = {}
    for key, refs, specs in (("inputs", graph.inputs, given), ("outputs", graph.outputs, outputs)):
        originals = [ref.layer for ref in refs]
        labels = names.sanitise(originals, key[:-1])
        found[key] = [
            {
                "name": name,
                "source_name": original,
                "shape": spec.shape,
                "dtype": "float32" if spec.dtype in ("float16", "bfloat16") else spec.dtype,
            }
            for name, original, spec in zip(labels, originals, specs, strict=True)
            if spec is not None
        ]
    for end, ref in zip(found["outputs"], graph.outputs, strict=True):
        end["activation"] = _activation(graph, ref)
    return found


def _activation(graph: LayerGraph, ref: TensorRef) -> str:
    """Whether an output is a softmax or a sigmoid, as `activations.of_graph` tells."""
    layer = graph.layer(ref.layer)
    while layer.class_name in ("Reshape", "Flatten", "Identity", "Dropout") and layer.calls:
        layer = graph.layer(layer.calls[0].inputs[0].layer)
    if layer.graph is not None:
        return _activation(layer.graph, layer.graph.outputs[ref.tensor])
    name = "softmax" if layer.class_name == "Softmax" else layer.config.get("activation")
    return name if name in ("softmax", "sigmoid") else "none"
