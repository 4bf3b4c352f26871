"""Operands of operators on tensors: types, constants, and the operator of packager-layers.js."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Spec, Weights
from packager.targets.tfjs_parts import TENSOR, Chain, Refused, Rule, Site, operator

_FLOATS = ("float32", "float16", "bfloat16", "float64")


def dtype_of(spec: Spec) -> str:
    """The type of a tensor in TF.js."""
    if spec.dtype in _FLOATS:
        return "float32"
    return "bool" if spec.dtype == "bool" else "int32"


class Constants:
    """Collects the constant arrays of one call as weights."""

    def __init__(self) -> None:
        self.weights: Weights = {}

    def say(self, value: Any) -> Any:
        """An operand as a JSON value of packager-layers.js.

        Raises:
            Refused: It is none of tensor, number, or array of numbers.
        """
        if isinstance(value, dict) and set(value) == {"tensor"}:
            return value
        if isinstance(value, (bool, int)):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": _infinite(value)}
        array = np.asarray(_array(value))
        if array.dtype.kind not in "biuf":
            raise Refused("an operand is neither a tensor nor a number")
        name = f"constant{len(self.weights)}"
        kind = np.float32 if array.dtype.kind == "f" else np.int32
        self.weights[name] = array.astype(kind)
        return {"weight": name}


def _infinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _array(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("class_name") in ("__numpy__", "__tensor__"):
            config = value["config"]
            return np.asarray(config["value"], config["dtype"])
        raise Refused(f"an operand is a {value.get('class_name', 'dictionary')}")
    return value


def own(
    site: Site,
    op: str,
    *operands: Any,
    cast: str | None = None,
    constants: Constants | None = None,
) -> Chain:
    """One operator of packager-layers.js on this call's tensors."""
    outputs = site.call.outputs or {0: site.output}
    shapes = [outputs[i].shape for i in sorted(outputs)]
    weights = constants.weights if constants else None
    part = operator(
        op,
        *operands,
        outputs=shapes,
        dtype=dtype_of(outputs[min(outputs)]),
        operand_dtype=cast,
        weights=weights,
    )
    return (part,)


def with_keys(op: str, *keys: str) -> Rule:
    """A rule of an operator on one tensor whose other arguments are in the configuration."""

    def rule(site: Site) -> Chain:
        return own(site, op, TENSOR, *(site.config.get(key) for key in keys))

    return rule
