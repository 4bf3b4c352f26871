"""Output shapes of the Keras layers that have an exact form in TF.js.

TF.js leaves a size of -1 open when it builds a model, and then cannot build the layers behind it,
so the writer states sizes itself. Shapes hold the batch axis; None is a size that stays open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from packager.loaders.layer_graph import Layer

Shape = tuple[int | None, ...]
Config = dict[str, Any]

_OPEN_PADDINGS = ("same", "causal")


def _as_tuple(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _window(size: int | None, kernel: int, stride: int, dilation: int, padding: str) -> int | None:
    if size is None:
        return None
    if padding in _OPEN_PADDINGS:
        return -(-size // stride)
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def _windows(shape: Shape, config: Config, kernel: Sequence[int], channels: int | None) -> Shape:
    rank = len(shape) - 2
    strides = _as_tuple(config.get("strides") or kernel, rank)
    dilation = _as_tuple(config.get("dilation_rate", 1), rank)
    sizes = (
        _window(size, kernel[i], strides[i], dilation[i], config["padding"])
        for i, size in enumerate(shape[1:-1])
    )
    return (shape[0], *sizes, channels)


def _conv(layer: Layer, shape: Shape) -> Shape:
    config = layer.config
    kernel = _as_tuple(config["kernel_size"], len(shape) - 2)
    return _windows(shape, config, kernel, config["filters"])


def _depthwise(layer: Layer, shape: Shape) -> Shape:
    config = layer.config
    kernel = _as_tuple(config["kernel_size"], len(shape) - 2)
    channels = None if shape[-1] is None else shape[-1] * config["depth_multiplier"]
    return _windows(shape, config, kernel, channels)


def _conv_transpose(layer: Layer, shape: Shape) -> Shape:
    config = layer.config
    rank = len(shape) - 2
    kernel = _as_tuple(config["kernel_size"], rank)
    strides = _as_tuple(config["strides"], rank)

    def length(i: int, size: int | None) -> int | None:
        if size is None:
            return None
        extra = max(kernel[i] - strides[i], 0) if config["padding"] == "valid" else 0
        return size * strides[i] + extra

    return (shape[0], *(length(i, s) for i, s in enumerate(shape[1:-1])), config["filters"])


def _pooling(layer: Layer, shape: Shape) -> Shape:
    pool = _as_tuple(layer.config["pool_size"], len(shape) - 2)
    return _windows(shape, layer.config, pool, shape[-1])


def _global_pooling(layer: Layer, shape: Shape) -> Shape:
    kept = (1,) * (len(shape) - 2) if layer.config.get("keepdims") else ()
    return (shape[0], *kept, shape[-1])


def _dense(layer: Layer, shape: Shape) -> Shape:
    return (*shape[:-1], layer.config["units"])


def _flatten(_layer: Layer, shape: Shape) -> Shape:
    return (shape[0], _product(shape[1:]))


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _reshape(layer: Layer, shape: Shape) -> Shape:
    target = [None if size in (None, -1) else int(size) for size in layer.config["target_shape"]]
    total = _product(shape[1:])
    if total is None or target.count(None) != 1:
        return (shape[0], *target)
    rest = total // math.prod(size for size in target if size is not None)
    return (shape[0], *(rest if size is None else size for size in target))


def _permute(layer: Layer, shape: Shape) -> Shape:
    return (shape[0], *(shape[axis] for axis in layer.config["dims"]))


def _repeat_vector(layer: Layer, shape: Shape) -> Shape:
    return (shape[0], layer.config["n"], shape[1])


def _padding_2d(layer: Layer, shape: Shape) -> Shape:
    return _grown(shape, layer.config["padding"], 1)


def _cropping_2d(layer: Layer, shape: Shape) -> Shape:
    return _grown(shape, layer.config["cropping"], -1)


def _grown(shape: Shape, amounts: Sequence[Sequence[int]], sign: int) -> Shape:
    sizes = (
        None if size is None else size + sign * sum(amount)
        for size, amount in zip(shape[1:-1], amounts, strict=True)
    )
    return (shape[0], *sizes, shape[-1])


def _up_sampling_2d(layer: Layer, shape: Shape) -> Shape:
    factors = _as_tuple(layer.config["size"], 2)
    sizes = (
        None if s is None else s * factor for s, factor in zip(shape[1:-1], factors, strict=True)
    )
    return (shape[0], *sizes, shape[-1])


def _embedding(layer: Layer, shape: Shape) -> Shape:
    return (*shape, layer.config["output_dim"])


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of an elementwise merge; all inputs have one rank."""

    def size(sizes: tuple[int | None, ...]) -> int | None:
        wide = {s for s in sizes if s != 1}
        return max(wide, key=lambda s: -1 if s is None else s) if wide else 1

    return tuple(size(sizes) for sizes in zip(*shapes, strict=True))


def _concatenate(layer: Layer, shapes: Sequence[Shape]) -> Shape:
    axis = layer.config["axis"] % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


def _dot(layer: Layer, shapes: Sequence[Shape]) -> Shape:
    axes = _as_tuple(layer.config["axes"], 2)
    first, second = (
        [size for i, size in enumerate(shape) if i != axis % len(shape)]
        for shape, axis in zip(shapes, axes, strict=True)
    )
    merged = (*first, *second[1:])
    return merged if len(merged) > 1 else (*merged, 1)


_ONE_INPUT: dict[str, Callable[[Layer, Shape], Shape]] = {
    "Conv1D": _conv,
    "Conv2D": _conv,
    "Conv3D": _conv,
    "SeparableConv2D": _conv,
    "DepthwiseConv2D": _depthwise,
    "Conv2DTranspose": _conv_transpose,
    "Conv3DTranspose": _conv_transpose,
    **{f"{kind}Pooling{n}D": _pooling for kind in ("Max", "Average") for n in (1, 2, 3)},
    **{f"Global{kind}Pooling{n}D": _global_pooling for kind in ("Max", "Average") for n in (1, 2)},
    "Dense": _dense,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Permute": _permute,
    "RepeatVector": _repeat_vector,
    "ZeroPadding2D": _padding_2d,
    "Cropping2D": _cropping_2d,
    "UpSampling2D": _up_sampling_2d,
    "Embedding": _embedding,
}


# Elementwise: the shape of the input, or what the shapes of several broadcast to.
_ELEMENTWISE = (
    *("Activation", "ReLU", "LeakyReLU", "ELU", "PReLU", "Softmax", "BatchNormalization"),
    *("LayerNormalization", "GroupNormalization", "UnitNormalization", "RMSNormalization"),
    *("Rescaling", "Normalization", "Dropout", "SpatialDropout1D", "SpatialDropout2D"),
    *("GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization", "Identity"),
    *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Masking"),
)


def output_shape(layer: Layer, shapes: Sequence[Shape]) -> Shape | None:
    """Returns the output shape of one call of a layer.

    Args:
        layer: A layer, channels last.
        shapes: The shapes of the call's inputs, batch axis included.

    Returns:
        The shape, batch axis included; None where there is no formula here.
    """
    if layer.class_name == "Concatenate":
        return _concatenate(layer, shapes)
    if layer.class_name == "Dot":
        return _dot(layer, shapes)
    if layer.class_name in _ONE_INPUT:
        return _ONE_INPUT[layer.class_name](layer, shapes[0])
    if layer.class_name not in _ELEMENTWISE:
        return None
    same_rank = len({len(shape) for shape in shapes}) == 1
    return _broadcast(shapes) if same_rank else None
