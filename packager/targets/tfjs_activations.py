"""How Keras' activations are said in TF.js."""

from __future__ import annotations

from packager.loaders.keras2_table import HARD_SIGMOID
from packager.targets.tfjs_parts import (
    CUSTOM,
    TENSOR,
    Chain,
    Part,
    Refused,
    Rule,
    Site,
    operator,
    rescaling,
)

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
    Part("ReLU", {"max_value": 6.0}),
    rescaling(1.0 / 6.0, 0.0),
)

ACTIVATION_CHAINS: dict[str, Chain] = {
    "hard_sigmoid": _HARD_SIGMOID,
    "leaky_relu": (Part("LeakyReLU", {"alpha": 0.2}),),
    "hard_tanh": (
        rescaling(1.0, 1.0),
        Part("ReLU", {"max_value": 2.0}),
        rescaling(1.0, -1.0),
    ),
    "sparse_sigmoid": (
        rescaling(0.5, 0.5),
        Part("ReLU", {"max_value": 1.0}),
    ),
}

# Registered by web/packager-layers.js: Keras' name and the name there.
_OWN = {
    "hard_silu": "HardSilu",
    "hard_swish": "HardSilu",
    "exponential": "Exponential",
    "log_sigmoid": "LogSigmoid",
    "celu": "Celu",
    "glu": "Glu",
    "hard_shrink": "HardShrink",
    "soft_shrink": "SoftShrink",
    "sparse_plus": "SparsePlus",
    "sparsemax": "Sparsemax",
    "squareplus": "Squareplus",
    "tanh_shrink": "TanhShrink",
    "threshold": "Threshold",
    # Where a chain cannot stand behind: inside recurrent layers.
    "hard_sigmoid": "HardSigmoid",
    "leaky_relu": "LeakyRelu",
    "hard_tanh": "HardTanh",
    "sparse_sigmoid": "SparseSigmoid",
}
OWN_ACTIVATIONS = {name: CUSTOM + own for name, own in _OWN.items()}


def activation(value: object) -> tuple[str, Chain]:
    """Says an activation in TF.js.

    Args:
        value: Keras' configuration value: a name, None, or a serialised function.

    Returns:
        The name to write into the layer, and the layers to put behind it.

    Raises:
        Refused: TF.js has no equal activation.
    """
    name = _name(value)
    if name in ACTIVATIONS:
        return ACTIVATIONS[name], ()
    if name in ACTIVATION_CHAINS:
        return "linear", ACTIVATION_CHAINS[name]
    return inside(value), ()


def inside(value: object) -> str:
    """Says an activation by one name, for layers that nothing can be put behind.

    Raises:
        Refused: As `activation` does.
    """
    name = _name(value)
    found = ACTIVATIONS.get(name) or OWN_ACTIVATIONS.get(name)
    if found is None:
        shown = name or "given as a function"
        known = ", ".join(sorted({*ACTIVATIONS, *_OWN} - {HARD_SIGMOID}))
        raise Refused(f"the activation {shown} is not in TF.js", f"use one of {known}")
    return found


def _name(value: object) -> str:
    if isinstance(value, dict):
        # Any other function is the user's own, whatever its name.
        return HARD_SIGMOID if value.get("config") == HARD_SIGMOID else ""
    if value is None:
        return "linear"
    return value if isinstance(value, str) else ""


def _activation_layer(site: Site) -> Chain:
    name, behind = activation(site.config["activation"])
    return behind or (Part("Activation", {"activation": name}),)


def _relu(site: Site) -> Chain:
    config = site.config
    slope, threshold = config.get("negative_slope") or 0.0, config.get("threshold") or 0.0
    ceiling = config.get("max_value")
    if slope == 0 and threshold == 0:
        return (Part("ReLU", {} if ceiling is None else {"max_value": ceiling}),)
    if threshold == 0 and ceiling is None:
        return (Part("LeakyReLU", {"alpha": slope}),)
    if slope == 0 and ceiling is None and threshold > 0:
        return (Part("ThresholdedReLU", {"theta": threshold}),)
    return (operator("reluGeneral", TENSOR, slope, ceiling, threshold),)


def _leaky_relu(site: Site) -> Chain:
    # TF.js knows the older name only and takes 0.3 when it is missing.
    return (Part("LeakyReLU", {"alpha": site.config["negative_slope"]}),)


def _elu(site: Site) -> Chain:
    alpha = site.config.get("alpha", 1.0)
    return (Part("ELU", {"alpha": 1.0}) if alpha == 1 else operator("elu", TENSOR, alpha),)


ACTIVATION_RULES: dict[str, Rule] = {
    "Activation": _activation_layer,
    "ReLU": _relu,
    "LeakyReLU": _leaky_relu,
    "ELU": _elu,
}
