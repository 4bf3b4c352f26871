"""The neutral description of a Keras model that the TF.js writer and the reports use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class TensorRef:
    """One output tensor of one call of a layer."""

    layer: str
    node: int
    tensor: int


@dataclass(frozen=True)
class Spec:
    """What is known of a tensor before any value: its shape, None for free axes, and its type."""

    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        inputs: The tensors that it receives, in the order of `args` and then `kwargs`.
        args: The arguments by position, as JSON values; `{"tensor": i}` stands for `inputs[i]`.
        kwargs: The arguments by name, likewise; those that are None are left out.
        outputs: What is known of its results, by their place.
    """

    inputs: tuple[TensorRef, ...]
    args: tuple[Any, ...] = ({"tensor": 0},)
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[int, Spec] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """One layer, as Keras serialises it.

    Attributes:
        class_name: Keras' class name, such as `Conv2D`; `Functional` or `Sequential` for a
            nested model.
        name: The layer's own name, unchanged.
        config: The layer's `get_config()` as JSON values, in Keras 3 spelling.
        calls: One entry per call, in order; empty for an `InputLayer`.
        weights: Arrays by the weight's own short name (`kernel`, `bias`, `gamma`, ...;
            for wrapped layers the path below the layer, `forward_lstm/lstm_cell/kernel`),
            in Keras' order. Empty for nested models.
        graph: The inside of a nested model, else None.
        module: Keras' module of the class; anything outside `keras.` is custom code.
    """

    class_name: str
    name: str
    config: dict[str, Any]
    calls: tuple[Call, ...] = ()
    weights: Weights = field(default_factory=dict)
    graph: LayerGraph | None = None
    module: str = "keras.layers"


@dataclass(frozen=True)
class LayerGraph:
    """A Sequential or functional model.

    Attributes:
        name: The model's name.
        class_name: `Sequential` or `Functional`. A Sequential model is described with calls,
            too, and with an explicit `InputLayer` in front.
        layers: In an order in which every layer stands after those that it needs.
        inputs: The model's inputs, in its own order.
        outputs: The model's outputs, in its own order.
    """

    name: str
    class_name: str
    layers: tuple[Layer, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]

    def layer(self, name: str) -> Layer:
        """Returns the layer called `name`; KeyError if there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """Yields every layer with its path, nested models' layers after the model itself."""
        for layer in self.layers:
            yield prefix + layer.name, layer
            if layer.graph is not None:
                yield from layer.graph.walk(f"{prefix}{layer.name}/")


def save(graph: LayerGraph, folder: Path) -> None:
    """Writes `layers.json` and `weights.npz` into `folder`."""
    arrays: Weights = {}
    description = _graph_to_json(graph, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layers.json").write_text(json.dumps(description), encoding="utf-8")
    np.savez(folder / "weights.npz", **arrays)  # type: ignore[arg-type]


def load(folder: Path) -> LayerGraph:
    """Reads what `save` wrote."""
    description = json.loads((folder / "layers.json").read_text(encoding="utf-8"))
    with np.load(folder / "weights.npz", allow_pickle=False) as stored:
        return _graph_from_json(description, stored)


def _graph_to_json(graph: LayerGraph, arrays: Weights) -> dict[str, Any]:
    return {
        "name": graph.name,
        "class_name": graph.class_name,
        "layers": [_layer_to_json(layer, arrays) for layer in graph.layers],
        "inputs": [[r.layer, r.node, r.tensor] for r in graph.inputs],
        "outputs": [[r.layer, r.node, r.tensor] for r in graph.outputs],
    }


def _layer_to_json(layer: Layer, arrays: Weights) -> dict[str, Any]:
    indices = {}
    for name, array in layer.weights.items():
        indices[name] = len(arrays)
        arrays[str(len(arrays))] = array
    return {
        "class_name": layer.class_name,
        "name": layer.name,
        "module": layer.module,
        "config": layer.config,
        "calls": [
            {
                "inputs": [[r.layer, r.node, r.tensor] for r in c.inputs],
                "args": c.args,
                "kwargs": c.kwargs,
                "outputs": [[i, spec.shape, spec.dtype] for i, spec in c.outputs.items()],
            }
            for c in layer.calls
        ],
        "weights": indices,
        "graph": _graph_to_json(layer.graph, arrays) if layer.graph else None,
    }


def _graph_from_json(value: dict[str, Any], stored: Any) -> LayerGraph:
    return LayerGraph(
        name=value["name"],
        class_name=value["class_name"],
        layers=tuple(_layer_from_json(layer, stored) for layer in value["layers"]),
        inputs=tuple(TensorRef(*r) for r in value["inputs"]),
        outputs=tuple(TensorRef(*r) for r in value["outputs"]),
    )


def _layer_from_json(value: dict[str, Any], stored: Any) -> Layer:
    return Layer(
        class_name=value["class_name"],
        name=value["name"],
        module=value["module"],
        config=value["config"],
        calls=tuple(
            Call(
                tuple(TensorRef(*r) for r in c["inputs"]),
                tuple(c["args"]),
                c["kwargs"],
                {i: Spec(tuple(shape), dtype) for i, shape, dtype in c["outputs"]},
            )
            for c in value["calls"]
        ),
        weights={name: stored[str(i)] for name, i in value["weights"].items()},
        graph=_graph_from_json(value["graph"], stored) if value["graph"] else None,
    )
