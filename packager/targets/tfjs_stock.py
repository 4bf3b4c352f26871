"""The layers that TF.js has, and what of their configuration it honours.

TF.js loads many configurations without a complaint and computes something else; so every
configuration key is either copied because TF.js honours it, or checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packager.loaders.layer_graph import Weights
from packager.targets.tfjs_activations import activation
from packager.targets.tfjs_parts import Chain, Config, Part, Refused, Site


@dataclass(frozen=True)
class StockClass:
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
_POOL = StockClass(("pool_size", "strides", "padding"))
_PLAIN = StockClass()

STOCK: dict[str, StockClass] = {
    "Dense": StockClass(("units", "use_bias"), _same_names(*_KERNEL_BIAS), _KERNEL_BIAS),
    **{
        f"Conv{n}D": StockClass((*_CONV, "dilation_rate"), _same_names(*_KERNEL_BIAS), _KERNEL_BIAS)
        for n in (1, 2, 3)
    },
    **{
        f"Conv{n}DTranspose": StockClass(_CONV, _same_names(*_KERNEL_BIAS), _KERNEL_BIAS)
        for n in (2, 3)
    },
    "DepthwiseConv2D": StockClass(
        ("kernel_size", "strides", "padding", "depth_multiplier", "use_bias"),
        {"kernel": "depthwise_kernel", "bias": "bias"},
        ("depthwise", "bias"),
    ),
    "SeparableConv2D": StockClass(
        (*_CONV, "dilation_rate", "depth_multiplier"),
        _same_names("depthwise_kernel", "pointwise_kernel", "bias"),
        ("depthwise", "pointwise", "bias"),
    ),
    "BatchNormalization": StockClass(
        ("momentum", "epsilon", "center", "scale"),
        _same_names("gamma", "beta", "moving_mean", "moving_variance"),
        ("gamma", "beta", "moving_mean", "moving_variance"),
    ),
    "LayerNormalization": StockClass(
        ("axis", "epsilon", "center", "scale"), _same_names("gamma", "beta"), ("gamma", "beta")
    ),
    "Embedding": StockClass(
        ("input_dim", "output_dim"), _same_names("embeddings"), ("embeddings",)
    ),
    "PReLU": StockClass(("shared_axes",), _same_names("alpha"), ("alpha",)),
    **{f"{kind}Pooling{n}D": _POOL for kind in ("Max", "Average") for n in (1, 2, 3)},
    **{f"Global{kind}Pooling{n}D": _PLAIN for kind in ("Max", "Average") for n in (1, 2)},
    **{name: _PLAIN for name in ("Add", "Multiply", "Average", "Maximum", "Minimum", "Flatten")},
    "Concatenate": StockClass(("axis",)),
    "Dot": StockClass(("axes", "normalize")),
    "Permute": StockClass(("dims",)),
    "RepeatVector": StockClass(("n",)),
    "ZeroPadding2D": StockClass(("padding",)),
    "Cropping2D": StockClass(("cropping",)),
    "UpSampling2D": StockClass(("size", "interpolation")),
}

_CHANNELS_LAST = "build the model with data_format='channels_last'"
# Values that a configuration key must have, for every layer: what is written knows no others.
REQUIRED: dict[str, tuple[tuple[Any, ...], str]] = {
    "data_format": (("channels_last", None), _CHANNELS_LAST),
    "lora_rank": ((None,), "merge the LoRA weights before saving"),
    "quantization_config": ((None,), "save the model before it is quantized"),
}


def check_config(config: Config) -> None:
    """Refuses settings that nothing that is written for TF.js can say.

    Raises:
        Refused: Names the setting.
    """
    for key, (allowed, way_out) in REQUIRED.items():
        if config.get(key) not in allowed:
            raise Refused(f"TF.js does not honour {key}={config[key]!r}", way_out)


def mapped_weights(weights: Weights, names: dict[str, str]) -> Weights:
    """Weights by their names in TF.js.

    Raises:
        Refused: There is one without a place.
    """
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise Refused(f"TF.js has no place for the weight {unknown[0]}")
    return {names[name]: array for name, array in weights.items()}


def zeros() -> Config:
    """The initializer of weights that follow anyway."""
    return {"class_name": "Zeros", "config": {}}


def stock(site: Site, **changes: object) -> Chain:
    """Writes a layer as the TF.js class of the same name, its activation included.

    Args:
        site: The call; its layer's class is in `STOCK`.
        **changes: Configuration values that replace the layer's own.
    """
    spec = STOCK[site.layer.class_name]
    config = {key: site.config[key] for key in spec.keep if key in site.config} | changes
    behind: Chain = ()
    if "activation" in site.config:
        config["activation"], behind = activation(site.config["activation"])
    config |= {f"{prefix}_initializer": zeros() for prefix in spec.initializers}
    weights = mapped_weights(site.weights, spec.weights)
    return (Part(site.layer.class_name, config, weights), *behind)
