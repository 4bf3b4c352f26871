"""What TF.js layers 4.22 computes exactly, and how each Keras layer is said in it.

A rule turns one Keras layer into a chain of TF.js layers that computes the same numbers, or
refuses. TF.js loads many configurations without a complaint and computes something else; so
every configuration key is either copied because TF.js honours it, or checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Layer, Weights
from packager.targets.tfjs_activations import (
    ACTIVATION_RULES,
    Chain,
    Config,
    Refused,
    Rule,
    Stock,
    activation,
    rescaling,
)
from packager.targets.tfjs_shapes import Shape, output_shape


@dataclass(frozen=True)
class Spec:
    """How a class that TF.js has is written.

    Attributes:
        keep: Configuration keys that TF.js honours, copied.
        weights: TF.js' weight name by Keras' name.
        initializers: Prefixes of the `…_initializer` keys, set to zeros: the weights follow, and
            random ones would only cost time, or are unknown to TF.js.
    """

    keep: tuple[str, ...] = ()
    weights: dict[str, str] = field(default_factory=dict)
    initializers: tuple[str, ...] = ()


def _same_names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_CONV = ("filters", "kernel_size", "strides", "padding", "use_bias")
_KERNEL_BIAS = ("kernel", "bias")
_POOL = Spec(("pool_size", "strides", "padding"))
_PLAIN = Spec()

SPECS: dict[str, Spec] = {
    "Dense": Spec(("units", "use_bias"), _same_names(*_KERNEL_BIAS), _KERNEL_BIAS),
    **{
        f"Conv{n}D": Spec((*_CONV, "dilation_rate"), _same_names(*_KERNEL_BIAS), _KERNEL_BIAS)
        for n in (1, 2, 3)
    },
    **{f"Conv{n}DTranspose": Spec(_CONV, _same_names(*_KERNEL_BIAS), _KERNEL_BIAS) for n in (2, 3)},
    "DepthwiseConv2D": Spec(
        ("kernel_size", "strides", "padding", "depth_multiplier", "use_bias"),
        {"kernel": "depthwise_kernel", "bias": "bias"},
        ("depthwise", "bias"),
    ),
    "SeparableConv2D": Spec(
        (*_CONV, "dilation_rate", "depth_multiplier"),
        _same_names("depthwise_kernel", "pointwise_kernel", "bias"),
        ("depthwise", "pointwise", "bias"),
    ),
    "BatchNormalization": Spec(
        ("momentum", "epsilon", "center", "scale"),
        _same_names("gamma", "beta", "moving_mean", "moving_variance"),
        ("gamma", "beta", "moving_mean", "moving_variance"),
    ),
    "LayerNormalization": Spec(
        ("axis", "epsilon", "center", "scale"), _same_names("gamma", "beta"), ("gamma", "beta")
    ),
    "Embedding": Spec(("input_dim", "output_dim"), _same_names("embeddings"), ("embeddings",)),
    "PReLU": Spec(("shared_axes",), _same_names("alpha"), ("alpha",)),
    **{f"{kind}Pooling{n}D": _POOL for kind in ("Max", "Average") for n in (1, 2, 3)},
    **{f"Global{kind}Pooling{n}D": _PLAIN for kind in ("Max", "Average") for n in (1, 2)},
    **{name: _PLAIN for name in ("Add", "Multiply", "Average", "Maximum", "Minimum", "Flatten")},
    "Concatenate": Spec(("axis",)),
    "Dot": Spec(("axes", "normalize")),
    "Permute": Spec(("dims",)),
    "RepeatVector": Spec(("n",)),
    "ZeroPadding2D": Spec(("padding",)),
    "Cropping2D": Spec(("cropping",)),
    "UpSampling2D": Spec(("size", "interpolation")),
}

# Values that a configuration key must have for TF.js to compute what Keras does, for every class:
# TF.js ignores the key, or reads it otherwise.
_CHANNELS_LAST = "build the model with data_format='channels_last'"
REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    "data_format": (("channels_last", None), _CHANNELS_LAST),
    "output_padding": ((None,), "leave output_padding out"),
    "mask_zero": ((False, None), "use mask_zero=False"),
    "rms_scaling": ((False, None), ""),
    "lora_rank": ((None,), "merge the LoRA weights before saving"),
    "quantization_config": ((None,), "save the model before it is quantized"),
}

# Layers that take several tensors.
MERGES = ("Add", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot")

# Layers that do nothing at inference.
IDENTITIES = (
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout"),
    *("GaussianDropout", "GaussianNoise", "ActivityRegularization", "Identity"),
    *("RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "RandomContrast"),
    "RandomBrightness",
)


def _zeros() -> Config:
    return {"class_name": "Zeros", "config": {}}


def _check_config(config: Config) -> None:
    for key, (allowed, way_out) in REQUIRED.items():
        if config.get(key) not in allowed:
            raise Refused(f"TF.js does not honour {key}={config[key]!r}", way_out)


def _mapped_weights(weights: Weights, names: dict[str, str]) -> Weights:
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise Refused(f"TF.js has no place for the weight {unknown[0]}")
    return {names[name]: array for name, array in weights.items()}


def stock(layer: Layer, shapes: Sequence[Shape] = (), **changes: object) -> Chain:
    """Writes a layer as the TF.js class of the same name, its activation included.

    Args:
        layer: The layer; its class is in `SPECS`.
        shapes: Not needed here; every rule gets the shapes of the inputs.
        **changes: Configuration values that replace the layer's own.
    """
    spec = SPECS[layer.class_name]
    _check_config(layer.config)
    config = {key: layer.config[key] for key in spec.keep if key in layer.config} | changes
    behind: Chain = ()
    if "activation" in layer.config:
        config["activation"], behind = activation(layer.config["activation"])
    config |= {f"{prefix}_initializer": _zeros() for prefix in spec.initializers}
    return (Stock(layer.class_name, config, _mapped_weights(layer.weights, spec.weights)), *behind)


def _ones(value: int | Sequence[int]) -> bool:
    return all(v == 1 for v in (value if isinstance(value, (list, tuple)) else [value]))


def _causal_conv(layer: Layer, shape: Shape) -> Chain:
    # TF.js refuses causal padding; zeros before the first step are the same. Padding exists for
    # images only, so the steps become the rows of a one-pixel-wide image for a moment.
    config = layer.config
    (size,), (dilation,) = config["kernel_size"], config["dilation_rate"]
    before = dilation * (size - 1)
    steps, channels = shape[1], shape[2]
    padded = None if steps is None else steps + before
    valid = Layer(layer.class_name, layer.name, config | {"padding": "valid"}, (), layer.weights)
    return (
        Stock("Reshape", {"target_shape": [_open(steps), 1, channels]}),
        Stock("ZeroPadding2D", {"padding": [[before, 0], [0, 0]]}),
        Stock("Reshape", {"target_shape": [_open(padded), channels]}),
        *stock(valid),
    )


def _open(size: int | None) -> int:
    return -1 if size is None else size


def _conv(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    config = layer.config
    groups = config.get("groups", 1)
    if groups != 1:
        return _depthwise_of_groups(layer, groups)
    if config["padding"] == "causal":
        return _causal_conv(layer, shapes[0])
    return stock(layer)


def _depthwise_of_groups(layer: Layer, groups: int) -> Chain:
    kernel = layer.weights["kernel"]
    if layer.class_name != "Conv2D" or kernel.shape[2] != 1:
        raise Refused(
            f"TF.js has no convolution with {groups} groups",
            "use groups=1, or one group per input channel",
        )
    multiplier = kernel.shape[3] // groups
    depthwise = Layer(
        "DepthwiseConv2D",
        layer.name,
        layer.config | {"depth_multiplier": multiplier},
        (),
        layer.weights | {"kernel": kernel.reshape(*kernel.shape[:2], groups, multiplier)},
    )
    return _depthwise(depthwise, ())


def _depthwise(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    if not _ones(layer.config.get("dilation_rate", 1)):
        raise Refused("TF.js drops the dilation of DepthwiseConv2D", "use dilation_rate=1")
    return stock(layer)


def _conv_transpose(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    if not _ones(layer.config.get("dilation_rate", 1)):
        raise Refused(f"TF.js drops the dilation of {layer.class_name}", "use dilation_rate=1")
    return stock(layer)


def _is_last(axis: int | Sequence[int], rank: int) -> bool:
    axes = [axis] if isinstance(axis, int) else axis
    return [a % rank for a in axes] == [rank - 1]


def _batch_normalization(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    if not _is_last(layer.config["axis"], len(shapes[0])):
        raise Refused(
            f"TF.js broadcasts BatchNormalization(axis={layer.config['axis']}) wrongly",
            "normalise the last axis",
        )
    return stock(layer, axis=-1)


def _softmax(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    if not _is_last(layer.config["axis"], len(shapes[0])):
        raise Refused(
            f"TF.js has no Softmax(axis={layer.config['axis']})",
            "take the softmax over the last axis, with Permute around it",
        )
    return (Stock("Softmax", {"axis": -1}),)


def _global_pooling(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    chain = stock(layer)
    if not layer.config.get("keepdims"):
        return chain
    kept = output_shape(layer, shapes)
    return (*chain, Stock("Reshape", {"target_shape": [_open(size) for size in kept[1:]]}))


def _merge(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    if len(shapes) < 2 or len({len(shape) for shape in shapes}) != 1:
        raise Refused(
            f"TF.js merges two or more inputs of one rank, here {[list(s) for s in shapes]}",
            "reshape the inputs to one rank",
        )
    return stock(layer)


def _reshape(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    target = output_shape(layer, shapes)[1:]
    return (Stock("Reshape", {"target_shape": [_open(size) for size in target]}),)


def _up_sampling(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    if layer.config["interpolation"] != "nearest":
        raise Refused(
            f"TF.js computes {layer.config['interpolation']} upsampling differently",
            "use interpolation='nearest' or Conv2DTranspose",
        )
    return stock(layer)


def _numbers(value: object) -> object:
    """Keras writes arrays in a configuration as a dictionary around a list."""
    if isinstance(value, dict):
        value = value.get("config", {}).get("value")
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
        return [float(v) for v in value]
    raise Refused("TF.js takes a number or one number per channel here")


def _rescaling_layer(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    return (rescaling(_numbers(layer.config["scale"]), _numbers(layer.config["offset"])),)


def _normalization(layer: Layer, shapes: Sequence[Shape]) -> Chain:
    config = layer.config
    axes = config["axis"]
    per_channel = axes not in (None, [], ())
    if per_channel and not _is_last(axes, len(shapes[0])):
        raise Refused("TF.js normalises over the last axis only", "use axis=-1")
    mean, variance = (
        np.asarray(layer.weights[key] if key in layer.weights else _numbers(config[key]))
        for key in ("mean", "variance")
    )
    # Keras computes (x - mean) / max(sqrt(variance), epsilon). Two steps keep its order of
    # operations: one multiplication and addition would cancel digits when the mean is large.
    deviation = np.maximum(np.sqrt(variance.astype(np.float32)), np.float32(1e-7)).ravel()
    mean = mean.astype(np.float32).ravel()
    centre = rescaling(1.0, _short(-mean))
    if config.get("invert"):
        return (rescaling(_short(deviation), 0.0), rescaling(1.0, _short(mean)))
    return (centre, rescaling(_short(1.0 / deviation.astype(np.float64)), 0.0))


def _short(values: np.ndarray[Any, Any]) -> object:
    listed = [float(v) for v in values]
    return listed[0] if len(listed) == 1 else listed


def _identity(_layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    return ()


def _each(names: Iterable[str], rule: Rule) -> dict[str, Rule]:
    return {name: rule for name in names}


LAYER_RULES: dict[str, Rule] = {
    **_each(SPECS, stock),
    **_each(("Conv1D", "Conv2D", "Conv3D"), _conv),
    **_each(("Conv2DTranspose", "Conv3DTranspose"), _conv_transpose),
    "DepthwiseConv2D": _depthwise,
    "BatchNormalization": _batch_normalization,
    "Softmax": _softmax,
    **ACTIVATION_RULES,
    **_each((f"Global{k}Pooling{n}D" for k in ("Max", "Average") for n in (1, 2)), _global_pooling),
    **_each(MERGES[:-1], _merge),
    "Reshape": _reshape,
    "UpSampling2D": _up_sampling,
    "Rescaling": _rescaling_layer,
    "Normalization": _normalization,
    **_each(IDENTITIES, _identity),
}

# Operators on tensors (`x + y`) become layers in Keras 3 that share names with its merge layers.
OPERATOR_RULES: dict[str, Rule] = _each(
    ("Add", "Multiply", "Maximum", "Minimum", "Concatenate"), _merge
)

# Rules of these classes look at the shapes of the inputs.
SHAPE_DEPENDENT = frozenset(
    {
        *("BatchNormalization", "Softmax", "Normalization", "Reshape", "Conv1D"),
        *MERGES[:-1],
        *(f"Global{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2)),
    }
)
