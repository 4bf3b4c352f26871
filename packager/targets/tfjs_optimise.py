"""Makes a TF.js layers model faster at inference, with the same numbers up to rounding.

- A BatchNormalization goes into the layer before it, by scaling that layer's weights.
- An activation goes into the layer before it.
- With `fused`, convolutions become the classes of web/packager-layers.js that call the fused
  kernels of TF.js, which tfjs-layers itself uses for few of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packager.targets.tfjs_parts import CUSTOM, Part, as_tuple, custom
from packager.targets.tfjs_program import Program, TfjsLayer, Triple

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Linear:
    """A layer that is linear in its kernel: the kernel's weight name and its output axes."""

    kernel: str
    axes: tuple[int, ...] = (-1,)


_LINEAR = {
    **dict.fromkeys(("Dense", "Conv1D", "Conv2D", "Conv3D"), _Linear("kernel")),
    **dict.fromkeys(("PackagerDense", "PackagerConv"), _Linear("kernel")),
    "DepthwiseConv2D": _Linear("depthwise_kernel", (-2, -1)),
    "PackagerDepthwiseConv": _Linear("kernel", (-2, -1)),
    "SeparableConv2D": _Linear("pointwise_kernel"),
    "PackagerSeparableConv": _Linear("pointwiseKernel"),
    "Conv2DTranspose": _Linear("kernel", (-2,)),
    "PackagerConvTranspose": _Linear("kernel", (-2,)),
    "PackagerConvTranspose3D": _Linear("kernel", (-2,)),
}


def optimise(program: Program, *, fused: bool) -> Program:
    """Returns the program with fewer and faster layers.

    Args:
        program: A model.
        fused: Use the fused classes of web/packager-layers.js.
    """
    before = None
    while before is None or len(program.layers) < len(
        before.layers
    ):  # one normalisation may stand behind another
        before, program = program, _fold_batch_norms(program)
    program = _merge_activations(program)
    return _fuse(program) if fused else program


class _Users:
    """Who takes what: a layer may change only if nobody else sees its output."""

    def __init__(self, program: Program) -> None:
        taken = [triple for layer in program.layers for node in layer.nodes for triple in node]
        self._count = Counter([*taken, *program.outputs])
        self._by_name = {layer.name: layer for layer in program.layers}

    def only_source(self, layer: TfjsLayer) -> TfjsLayer | None:
        """The layer that gives `layer` its one input, where both have one call and no other."""
        if len(layer.nodes) != 1 or len(layer.nodes[0]) != 1:
            return None
        (triple,) = layer.nodes[0]
        source = self._by_name[triple[0]]
        alone = self._count[triple] == 1 and len(source.nodes) == 1 and triple[2] == 0
        return source if alone else None


def _fold_batch_norms(program: Program) -> Program:
    changed: dict[str, Part] = {}
    gone: dict[str, Triple] = {}
    inner: set[str] = set()
    users = _Users(program)
    for layer in program.layers:
        if layer.part.class_name != "BatchNormalization":
            continue
        scale, offset = _line(layer.part)
        way = _way_back(users, layer, len(scale), is_zero=not offset.any())
        if not way or not _takes(changed.get(way[-1].name, way[-1].part)):
            continue
        target = way[-1]
        # What stands between no longer gives what its Keras layer does.
        inner |= {passed.name for passed in way[1:]}
        changed[target.name] = _scaled(changed.get(target.name, target.part), scale, offset)
        gone[layer.name] = layer.nodes[0][0]
    return _without(program, changed, gone, inner)


def _way_back(users: _Users, layer: TfjsLayer, channels: int, *, is_zero: bool) -> list[TfjsLayer]:
    """The layers back to the one whose weights may take a scale and offset per channel.

    It may stand before a reshape that keeps the last axis, and before zero padding if the offset
    is zero, so that the padding stays zero.
    """
    way: list[TfjsLayer] = []
    source = users.only_source(layer)
    while source is not None:
        way.append(source)
        part = source.part
        keeps = part.class_name == "Reshape" and part.config["target_shape"][-1] == channels
        if not keeps and not (part.class_name == "ZeroPadding2D" and is_zero):
            break
        source = users.only_source(source)
    if source is None or source.part.class_name not in _LINEAR:
        return []
    linear = _LINEAR[source.part.class_name]
    shape = source.part.weights[linear.kernel].shape
    return way if math.prod(shape[axis] for axis in linear.axes) == channels else []


def _line(part: Part) -> tuple[Array, Array]:
    """BatchNormalization at inference as scale and offset, in float64."""
    wide = {name: array.astype(np.float64) for name, array in part.weights.items()}
    scale = wide.get("gamma", 1.0) / np.sqrt(wide["moving_variance"] + part.config["epsilon"])
    return scale, wide.get("beta", 0.0) - wide["moving_mean"] * scale


def _takes(part: Part) -> bool:
    return part.class_name in _LINEAR and part.config.get("activation", "linear") == "linear"


def _scaled(part: Part, scale: Array, offset: Array) -> Part:
    linear = _LINEAR[part.class_name]
    kernel = part.weights[linear.kernel].astype(np.float64)
    sizes = [kernel.shape[axis] if axis in linear.axes else 1 for axis in range(-kernel.ndim, 0)]
    bias = part.weights["bias"].astype(np.float64) if "bias" in part.weights else 0.0
    weights = part.weights | {
        linear.kernel: (kernel * scale.reshape(sizes)).astype(np.float32),
        "bias": (bias * scale + offset).astype(np.float32),
    }
    if part.class_name.startswith(CUSTOM):
        shapes = [[name, list(a.shape), a.dtype.name] for name, a in weights.items()]
        return replace(part, weights=weights, config=part.config | {"weightShapes": shapes})
    return replace(part, weights=weights, config=part.config | {"use_bias": True})


def _merge_activations(program: Program) -> Program:
    changed: dict[str, Part] = {}
    gone: dict[str, Triple] = {}
    users = _Users(program)
    for layer in program.layers:
        name = _activation(layer.part)
        source = users.only_source(layer) if name else None
        if source is None:
            continue
        part = changed.get(source.name, source.part)
        if _takes(part) and not (name == "softmax" and part.class_name.startswith(CUSTOM)):
            changed[source.name] = replace(part, config=part.config | {"activation": name})
            gone[layer.name] = layer.nodes[0][0]
    return _without(program, changed, gone)


def _activation(part: Part) -> str:
    """The name of the activation that a layer is, if it is nothing else."""
    if part.class_name == "Activation":
        return str(part.config["activation"])
    if part.class_name == "ReLU":
        ceiling = part.config.get("max_value")
        return {None: "relu", 6: "relu6"}.get(ceiling, "")
    return ""


def _without(
    program: Program,
    changed: Mapping[str, Part],
    gone: Mapping[str, Triple],
    inner: Collection[str] = (),
) -> Program:
    """Replaces parts and removes layers, whose place their source takes.

    Args:
        program: The model.
        changed: New parts by layer.
        gone: For each removed layer, what takes its place.
        inner: Layers whose output is no longer that of a Keras layer.
    """

    def found(triple: Triple) -> Triple:
        while triple[0] in gone:
            triple = gone[triple[0]]
        return triple

    # The last Keras layer that a TF.js layer computes is the one to compare it with.
    paths = {layer.name: layer.path for layer in program.layers}
    last = {found(source)[0]: paths[name] for name, source in gone.items()}
    layers = tuple(
        replace(
            layer,
            part=changed.get(layer.name, layer.part),
            nodes=tuple(tuple(found(triple) for triple in node) for node in layer.nodes),
            path=last.get(layer.name, layer.path),
            is_last=layer.is_last and layer.name not in inner,
        )
        for layer in program.layers
        if layer.name not in gone
    )
    outputs = tuple(found(triple) for triple in program.outputs)
    return Program(layers, program.inputs, outputs)


def _fuse(program: Program) -> Program:
    layers = tuple(replace(layer, part=_fused(layer.part)) for layer in program.layers)
    return Program(layers, program.inputs, program.outputs)


def _fused(part: Part) -> Part:
    """The class of packager-layers.js with fused kernels, where there is one."""
    names = {"Conv2D": ("Conv", "kernel"), "DepthwiseConv2D": ("DepthwiseConv", "depthwise_kernel")}
    if part.class_name not in names:
        return part
    class_name, kernel = names[part.class_name]
    config = part.config
    settings = {
        "rank": 2,
        "strides": list(as_tuple(config["strides"], 2)),
        "dilation": list(as_tuple(config.get("dilation_rate", 1), 2)),
        "padding": config["padding"],
        "before": 0,
        "activation": config["activation"],
    }
    weights = {"kernel": part.weights[kernel]}
    if "bias" in part.weights:
        weights["bias"] = part.weights["bias"]
    return replace(custom(class_name, settings, weights), sources=part.sources)
