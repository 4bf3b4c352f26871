"""Decides for one layer of a flat graph which TF.js layers stand for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Layer, Weights
from packager.targets.tfjs_activations import Chain, Refused, Stock, rescaling
from packager.targets.tfjs_flatten import FlatLayer
from packager.targets.tfjs_rules import (
    IDENTITIES,
    LAYER_RULES,
    MERGES,
    OPERATOR_RULES,
    SHAPE_DEPENDENT,
)
from packager.targets.tfjs_shapes import Shape

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "int64")
_POLICIES = (*_FLOATS, "mixed_float16", "mixed_bfloat16")


def chain_of(item: FlatLayer, shapes: Sequence[Shape] | None) -> Chain:
    """Returns the TF.js layers that compute what a layer does.

    Args:
        item: The layer.
        shapes: The input shapes of its first call, batch axis included; None when they are not
            known because a layer before it was refused. Then only a part is judged.

    Returns:
        The chain; empty when the layer does nothing at inference or when it was judged in part.

    Raises:
        Refused: There is no exact form.
    """
    layer = item.layer
    if layer.class_name == "InputLayer":
        return (_input(layer),)
    if layer.class_name not in IDENTITIES:
        layer = replace(layer, weights=_converted(layer.weights))
    _check_policy(layer)
    arguments = _arguments(item)
    if _is_operator(layer):
        return _operator(layer, arguments, shapes)
    _check_module(layer)
    if arguments:
        raise Refused(f"TF.js takes no {', '.join(map(str, arguments))} when it calls a layer")
    rule = LAYER_RULES.get(layer.class_name)
    if rule is None:
        raise Refused(f"TF.js has no layer that computes exactly what {layer.class_name} does")
    if layer.class_name not in MERGES and any(len(inputs) != 1 for inputs in item.calls):
        raise Refused("TF.js gives the layer one tensor; a second one, such as a mask, is lost")
    if shapes is None and layer.class_name in SHAPE_DEPENDENT:
        return ()
    return rule(layer, shapes or ())


def _is_operator(layer: Layer) -> bool:
    return layer.module.startswith(("keras.ops", "keras.src.ops"))


def _operator(
    layer: Layer, arguments: dict[str | int, Any], shapes: Sequence[Shape] | None
) -> Chain:
    scalar = _scalar(layer.class_name, arguments)
    if scalar is not None:
        return (scalar,)
    rule = OPERATOR_RULES.get(layer.class_name)
    if rule is None or arguments:
        raise Refused(
            f"TF.js has no layer for the operator {layer.class_name} on these arguments",
            "use layers instead of operators on tensors",
        )
    return () if shapes is None else rule(layer, shapes)


def _scalar(operator: str, arguments: dict[str | int, Any]) -> Stock | None:
    """Says arithmetic of a tensor and a number as a Rescaling."""
    if len(arguments) != 1 or set(arguments) > {0, 1}:
        return None
    ((place, value),) = arguments.items()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    known: dict[tuple[str, str | int], tuple[float, float]] = {
        ("Add", 0): (1.0, value),
        ("Add", 1): (1.0, value),
        ("Multiply", 0): (value, 0.0),
        ("Multiply", 1): (value, 0.0),
        ("Subtract", 0): (-1.0, value),
        ("Subtract", 1): (1.0, -value),
        **({("TrueDivide", 1): (1.0 / value, 0.0)} if value else {}),
    }
    found = known.get((operator, place))
    return None if found is None else rescaling(float(found[0]), float(found[1]))


def _input(layer: Layer) -> Stock:
    dtype = layer.config.get("dtype") or "float32"
    if dtype not in (*_FLOATS, *_INTEGERS):
        raise Refused(f"TF.js has no input of {dtype}", "use a float32 or int32 input")
    if layer.config.get("sparse") or layer.config.get("ragged"):
        raise Refused("TF.js has no sparse or ragged input", "use a dense input")
    shape = [None, *layer.config["batch_shape"][1:]]
    # TF.js has no smaller integers, and refuses to feed a uint8 input.
    written = "float32" if dtype in _FLOATS else "int32"
    return Stock("InputLayer", {"batch_input_shape": shape, "dtype": written, "sparse": False})


def _check_policy(layer: Layer) -> None:
    policy = layer.config.get("dtype")
    name = policy.get("config", {}).get("name") if isinstance(policy, dict) else policy
    if name is not None and name not in _POLICIES:
        raise Refused(f"TF.js computes in float32, the layer in {name}", "save it unquantized")


def _check_module(layer: Layer) -> None:
    module = layer.module
    if module != "keras" and not module.startswith("keras."):
        raise Refused(
            f"{layer.class_name} is custom code ({module or 'no module'}), which TF.js cannot run",
            "build it of Keras layers",
        )


def _arguments(item: FlatLayer) -> dict[str | int, Any]:
    """The arguments that change what a call computes at inference, by name or position.

    `training` is none of them: a model called for inference overrides what its layers were
    called with.
    """
    found: dict[str | int, Any] = {}
    for call in item.originals:
        found |= dict(enumerate(call.args)) | call.kwargs
    return {
        key: value for key, value in found.items() if key != "training" and not _has_tensor(value)
    }


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_tensor(item) for item in value)
    return value is None or (isinstance(value, dict) and set(value) == {"tensor"})


def _converted(weights: Weights) -> Weights:
    """Weights as TF.js stores them: float32 or int32."""
    return {name: _converted_weight(name, array) for name, array in weights.items()}


def _converted_weight(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.name in _INTEGERS:
        return array.astype(np.int32)
    if array.dtype.name not in _FLOATS:
        raise Refused(f"TF.js has no weight of {array.dtype}, which {name} is")
    single = array.astype(np.float32)
    if not np.isfinite(single).all():
        raise Refused(f"its weight {name} holds NaN or infinities", "train or load it again")
    return single
