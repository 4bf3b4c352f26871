"""TF.js layers as values, and how Keras' activations are said in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packager.loaders.keras2_table import HARD_SIGMOID
from packager.loaders.layer_graph import Layer, Weights
from packager.targets.tfjs_shapes import Shape

Config = dict[str, Any]


class Refused(Exception):
    """A layer has no exact form.

    Attributes:
        reason: Why.
        way_out: The change of the model that helps; empty when there is none.
    """

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


@dataclass(frozen=True)
class Stock:
    """One layer of TF.js: class name, configuration without name and dtype, weights."""

    class_name: str
    config: Config = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)


Chain = tuple[Stock, ...]
Rule = Callable[[Layer, Sequence[Shape]], Chain]


def rescaling(scale: object, offset: object) -> Stock:
    """`x * scale + offset`; each is a number or a list with one per channel."""
    return Stock("Rescaling", {"scale": scale, "offset": offset})


# TF.js' name by Keras' name, for activations of equal definition.
_SAME = (
    *("linear", "relu", "relu6", "sigmoid", "tanh", "softmax", "softplus", "softsign", "elu"),
    *("selu", "gelu", "mish", "log_softmax", "swish"),
)
ACTIVATIONS = {
    **{name: name for name in _SAME},
    "silu": "swish",
    # TF.js' own is the older 0.2 x + 0.5.
    HARD_SIGMOID: "hard_sigmoid",
}

# Keras 3: relu6(x + 3) / 6.
_HARD_SIGMOID: Chain = (
    rescaling(1.0, 3.0),
    Stock("ReLU", {"max_value": 6.0}),
    rescaling(1.0 / 6.0, 0.0),
)

ACTIVATION_CHAINS: dict[str, Chain] = {
    "hard_sigmoid": _HARD_SIGMOID,
    "leaky_relu": (Stock("LeakyReLU", {"alpha": 0.2}),),
}


def activation(value: object) -> tuple[str, Chain]:
    """Says an activation in TF.js.

    Args:
        value: Keras' configuration value: a name, None, or a serialised function.

    Returns:
        The name to write into the layer, and the layers to put behind it.

    Raises:
        Refused: TF.js has no equal activation.
    """
    name = "linear" if value is None else value
    if isinstance(name, dict) and name.get("config") == HARD_SIGMOID:
        name = HARD_SIGMOID
    if isinstance(name, str) and name in ACTIVATIONS:
        return ACTIVATIONS[name], ()
    if isinstance(name, str) and name in ACTIVATION_CHAINS:
        return "linear", ACTIVATION_CHAINS[name]
    shown = name if isinstance(name, str) else "given as a function"
    known = ", ".join(sorted({*ACTIVATIONS, *ACTIVATION_CHAINS} - {HARD_SIGMOID}))
    raise Refused(f"the activation {shown} is not in TF.js", f"use one of {known}")


def _activation_layer(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    name, behind = activation(layer.config["activation"])
    return behind or (Stock("Activation", {"activation": name}),)


def _relu(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    config = layer.config
    slope, threshold = config.get("negative_slope") or 0.0, config.get("threshold") or 0.0
    ceiling = config.get("max_value")
    if slope == 0 and threshold == 0:
        return (Stock("ReLU", {} if ceiling is None else {"max_value": ceiling}),)
    if threshold == 0 and ceiling is None:
        return (Stock("LeakyReLU", {"alpha": slope}),)
    if slope == 0 and ceiling is None:
        return (Stock("ThresholdedReLU", {"theta": threshold}),)
    raise Refused(
        "TF.js has no ReLU with more than one of max_value, negative_slope and threshold",
        "use one of them",
    )


def _leaky_relu(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    # TF.js knows the older name only and takes 0.3 when it is missing.
    return (Stock("LeakyReLU", {"alpha": layer.config["negative_slope"]}),)


def _elu(layer: Layer, _shapes: Sequence[Shape]) -> Chain:
    if layer.config.get("alpha", 1.0) != 1.0:
        raise Refused(f"TF.js has no ELU(alpha={layer.config['alpha']})", "use alpha=1")
    return (Stock("ELU", {"alpha": 1.0}),)


ACTIVATION_RULES: dict[str, Rule] = {
    "Activation": _activation_layer,
    "ReLU": _relu,
    "LeakyReLU": _leaky_relu,
    "ELU": _elu,
}
