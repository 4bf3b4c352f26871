"""Which layers have an int8 form, as a table: class name -> the steps that compute it.

A rule takes a layer and returns its steps, or None where this configuration of the layer has no
integer form. Users add their own: `quantize_model(model, rules={"MyLayer": rule})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from packager.quantize.qat import functions
from packager.quantize.qat import layers as twin
from packager.quantize.qat.layers import SIGNED_UNIT, UNIT

# What is known of the range of a step's result:
OWN = "own"  # a range of its own
SAME = "same"  # the values are some of the input's, so its range is the input's
ROUNDED = "rounded"  # the input's range, in which new values are rounded


@dataclass(frozen=True)
class Step:
    """One operator of the twin.

    Attributes:
        make: From `(name, norm, activation)` to the layer; the last two are what it takes in.
        output: `OWN`, `SAME`, `ROUNDED` or a fixed range.
        takes_norm: A BatchNormalization behind it becomes part of it.
        takes_activation: A ReLU or ReLU6 behind it becomes part of it.
        norm: The step is this BatchNormalization.
        activation: The step is this activation, a key of `layers.ACTIVATIONS`.
        as_called: It takes the arguments of the original call, not one tensor after another.
        merges: Its inputs are on the grid of its output, as TFLite's concatenation has it.
        pairwise: It takes two tensors; three or more are joined one after another.
        integer: TFLite has an integer form.
    """

    make: Callable[[str, Any, str], Any]
    output: str | tuple[float, float] = OWN
    takes_norm: bool = False
    takes_activation: bool = False
    norm: Any = None
    activation: str = ""
    as_called: bool = False
    pairwise: bool = False
    merges: bool = False
    integer: bool = True


Rule = Callable[[Any], "list[Step] | None"]


def copied(layer: Any, output: str | tuple[float, float] = OWN, *, integer: bool = True) -> Step:
    """A step that computes what the layer computes, with the same weights."""
    return Step(
        lambda name, norm, activation: copy_of(layer, name),
        output,
        as_called=True,
        integer=integer,
    )


def copy_of(layer: Any, name: str | None = None) -> Any:
    """Returns a layer of its own with the same configuration and weights; an operator as it is."""
    if not isinstance(layer, keras.layers.Layer):
        return layer
    made = type(layer).from_config({**layer.get_config(), **({"name": name} if name else {})})
    if layer.built and layer.weights:
        made.build_from_config(layer.get_build_config())
        made.set_weights(layer.get_weights())
    return made


def _weighted(kind: Any, layer: Any) -> list[Step] | None:
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    if getattr(layer, "groups", 1) != 1:
        return None
    behind = _activation(layer.activation)
    if behind is None:
        return None

    def make(name: str, norm: Any, activation: str) -> Any:
        return kind(copy_of(layer), norm and copy_of(norm), activation, name=name)

    return [Step(make, takes_norm=True, takes_activation=True), *behind]


def _separable(layer: Any) -> list[Step] | None:
    behind = _activation(layer.activation)
    if behind is None or layer.data_format != "channels_last":
        return None
    first, second = _halves(layer)

    def depthwise(name: str, norm: Any, activation: str) -> Any:
        return twin.Depthwise(first(), norm and copy_of(norm), activation, name=f"{name}_depthwise")

    def pointwise(name: str, norm: Any, activation: str) -> Any:
        return twin.Convolution(second(), norm and copy_of(norm), activation, name=name)

    return [Step(depthwise), Step(pointwise, takes_norm=True, takes_activation=True), *behind]


def _halves(layer: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Makers of the depthwise and the pointwise convolution of a SeparableConv."""
    depthwise, pointwise, *bias = layer.get_weights()
    channels, multiplier = depthwise.shape[-2:]
    rank = layer.rank
    classes = {
        1: (keras.layers.DepthwiseConv1D, keras.layers.Conv1D),
        2: (keras.layers.DepthwiseConv2D, keras.layers.Conv2D),
    }[rank]

    def first() -> Any:
        made = classes[0](
            layer.kernel_size, strides=layer.strides, padding=layer.padding,
            depth_multiplier=multiplier, dilation_rate=layer.dilation_rate, use_bias=False,
        )  # fmt: skip
        made.build((None, *(None,) * rank, channels))
        made.set_weights([depthwise])
        return made

    def second() -> Any:
        made = classes[1](layer.filters, 1, use_bias=bool(bias))
        made.build((None, *(None,) * rank, channels * multiplier))
        made.set_weights([pointwise, *bias])
        return made

    return first, second


def _normalization(layer: Any) -> list[Step] | None:
    """A BatchNormalization: part of the step before it, or a scale of its own."""
    channels = layer.moving_mean.shape[0]
    axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
    rank = layer.input_spec.ndim if layer.input_spec else None
    if axis not in (-1, None if rank is None else rank - 1):
        return None
    if getattr(layer, "renorm", False):
        return None

    def make(name: str, norm: Any, activation: str) -> Any:
        return twin.Scale(np.ones(channels), None, copy_of(layer), activation, name=name)

    return [Step(make, takes_activation=True, norm=layer)]


def _scale(factor: Any, offset: Any) -> list[Step]:
    def make(name: str, norm: Any, activation: str) -> Any:
        return twin.Scale(factor, offset, norm and copy_of(norm), activation, name=name)

    return [Step(make, takes_activation=True)]


def _rescaling(layer: Any) -> list[Step] | None:
    channels = _channels(layer)
    factor, offset = (np.asarray(v, np.float64) for v in (layer.scale, layer.offset))
    if channels is None or factor.size not in (1, channels) or offset.size not in (1, channels):
        return None
    return _scale(*(np.broadcast_to(v.reshape(-1), channels) for v in (factor, offset)))


def _fixed_normalization(layer: Any) -> list[Step] | None:
    channels = _channels(layer)
    if channels is None or not layer.built:
        return None
    mean = np.asarray(layer.mean, np.float64)
    deviation = np.maximum(np.sqrt(np.asarray(layer.variance, np.float64)), 1e-7)
    if mean.size not in (1, channels) or deviation.size not in (1, channels):
        return None
    if mean.size > 1 and mean.shape[-1] != channels:
        return None
    factor, offset = 1 / deviation, -mean / deviation
    if layer.invert:
        factor, offset = deviation, mean
    return _scale(*(np.broadcast_to(v.reshape(-1), channels) for v in (factor, offset)))


def _channels(layer: Any) -> int | None:
    """The size of the last axis of what a layer takes."""
    nodes = layer._inbound_nodes
    found: int | None = nodes[0].input_tensors[0].shape[-1] if nodes else None
    return found


def _function(name: str, output: str | tuple[float, float] = OWN, **more: Any) -> list[Step]:
    def make(layer_name: str, norm: Any, activation: str) -> Any:
        return functions.Function(name, name=layer_name)

    return [Step(make, output, **more)]


def _leak(slope: float) -> list[Step]:
    return [Step(lambda name, norm, activation: functions.Leak(slope, name=name))]


def _gate() -> list[Step]:
    return [Step(lambda name, norm, activation: functions.Gate(name=name))]


_ACTIVATIONS: dict[str, Callable[[], list[Step]]] = {
    "linear": list,
    "relu": lambda: _function("relu", activation="relu"),
    "relu6": lambda: _function("relu6", activation="relu6"),
    "leaky_relu": lambda: _leak(0.2),
    "hard_silu": lambda: _function("hard_silu"),
    "sigmoid": lambda: _function("sigmoid", UNIT),
    "tanh": lambda: _function("tanh", SIGNED_UNIT),
    "softmax": lambda: _function("softmax", UNIT),
    "silu": _gate,
}


def _activation(function: Any) -> list[Step] | None:
    """The steps of an activation function; none for `linear`."""
    name = getattr(function, "__name__", "") if function is not None else "linear"
    if name in _ACTIVATIONS and function in (None, getattr(keras.activations, name, None)):
        return _ACTIVATIONS[name]()
    # A layer may stand where a function does.
    rule = RULES.get(type(function).__name__) if isinstance(function, keras.Layer) else None
    return rule(function) if rule else None


def _relu(layer: Any) -> list[Step] | None:
    if layer.threshold:
        return None
    if layer.negative_slope:
        return _leak(float(layer.negative_slope)) if layer.max_value is None else None
    name = {None: "relu", 6: "relu6"}.get(layer.max_value)
    return _ACTIVATIONS[name]() if name else None


def _softmax(layer: Any) -> list[Step] | None:
    return _ACTIVATIONS["softmax"]() if layer.axis == -1 else None


def _learned_leak(layer: Any) -> list[Step] | None:
    return [Step(lambda name, norm, activation: functions.LearnedLeak(copy_of(layer), name=name))]


def _join(function: str) -> Rule:
    def make(name: str, norm: Any, activation: str) -> Any:
        return functions.Join(function, activation, name=name)

    return lambda layer: [Step(make, takes_activation=True, pairwise=True)]


def _enlarge(layer: Any) -> list[Step] | None:
    if layer.data_format != "channels_last" or layer.interpolation not in ("nearest", "bilinear"):
        return None
    nearest = layer.interpolation == "nearest"

    def make(name: str, norm: Any, activation: str) -> Any:
        return functions.Enlarge(tuple(layer.size), layer.interpolation, name=name)

    return [Step(make, SAME if nearest else ROUNDED)]


def _keeps(output: str) -> Rule:
    """A rule for layers that move, choose or average values."""

    def rule(layer: Any) -> list[Step] | None:
        first = getattr(layer, "data_format", "channels_last") == "channels_first"
        return None if first else [copied(layer, output)]

    return rule


def _weights(kind: str) -> Rule:
    return lambda layer: _weighted(getattr(twin, kind), layer)


RULES: dict[str, Rule] = {
    "Conv1D": _weights("Convolution"),
    "Conv2D": _weights("Convolution"),
    "DepthwiseConv1D": _weights("Depthwise"),
    "DepthwiseConv2D": _weights("Depthwise"),
    "SeparableConv1D": _separable,
    "SeparableConv2D": _separable,
    "Conv2DTranspose": lambda layer: (
        None if _pairs_differ(layer) else _weighted(twin.TransposedConvolution, layer)
    ),
    "Dense": _weights("FullyConnected"),
    "BatchNormalization": _normalization,
    "Rescaling": _rescaling,
    "Normalization": _fixed_normalization,
    "Activation": lambda layer: _activation(layer.activation),
    "ReLU": _relu,
    "LeakyReLU": lambda layer: _leak(float(layer.negative_slope)),
    "PReLU": _learned_leak,
    "Softmax": _softmax,
    "Add": _join("add"),
    "Subtract": _join("subtract"),
    "Multiply": _join("multiply"),
    "Concatenate": lambda layer: [replace(copied(layer), merges=True)],
    **dict.fromkeys(
        ("AveragePooling1D", "AveragePooling2D"), _keeps(ROUNDED)
    ),
    **dict.fromkeys(
        ("GlobalAveragePooling1D", "GlobalAveragePooling2D"), _keeps(OWN)
    ),
    **dict.fromkeys(
        (
            "MaxPooling1D", "MaxPooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D",
            "ZeroPadding1D", "ZeroPadding2D", "Cropping1D", "Cropping2D",
            "Reshape", "Flatten", "Permute",
        ),
        _keeps(SAME),
    ),
    **dict.fromkeys(
        (
            "Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "GaussianDropout",
            "ActivityRegularization", "Identity", "InputLayer",
        ),
        _keeps(SAME),
    ),
    "UpSampling2D": _enlarge,
    # Operators of `keras.ops`, and of Python's arithmetic on Keras tensors.
    "Relu": lambda layer: _ACTIVATIONS["relu"](),
    "Relu6": lambda layer: _ACTIVATIONS["relu6"](),
    "Sigmoid": lambda layer: _ACTIVATIONS["sigmoid"](),
    "Tanh": lambda layer: _ACTIVATIONS["tanh"](),
    "HardSilu": lambda layer: _ACTIVATIONS["hard_silu"](),
    "Silu": lambda layer: _gate(),
}  # fmt: skip


def _pairs_differ(layer: Any) -> bool:
    """Whether a transposed convolution does what TFLite's does not: dilation, output padding."""
    return tuple(layer.dilation_rate) != (1, 1) or layer.output_padding is not None


def steps_of(layer: Any, rules: Mapping[str, Rule]) -> list[Step]:
    """The steps of a layer; one that stays float where no rule gives any."""
    rule = rules.get(type(layer).__name__)
    found = rule(layer) if rule else None
    if found is None:
        return [copied(layer, integer=False)]
    return found or [copied(layer, SAME)]
