"""A plan: which layers of one file get which precision, and how the scales are found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from packager.quantize.recipes import FLOAT_ENDS, Rule, rule, static

# How the scales are found. The first part is about activations (the true minimum and maximum over
# all samples, or the average of each sample's), the second about weights.
ALGORITHMS: dict[str, tuple[str, str]] = {
    "min_max": ("min_max", "min_max_uniform_quantize"),
    "mse": ("min_max", "MSE"),
    "octav": ("min_max", "OCTAV"),
    "average": ("average", "min_max_uniform_quantize"),
    "average_mse": ("average", "MSE"),
}
ACTIVATIONS = tuple(dict.fromkeys(activations for activations, _ in ALGORITHMS.values()))
PRECISIONS = ("int8", "int16", "float")
DENSE = {"per_channel": "CHANNELWISE", "per_tensor": "TENSORWISE"}
# What the algorithms for weights are registered for in litert-quantizer 0.11.
_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED")


@dataclass(frozen=True)
class Plan:
    """How one file is quantized.

    Attributes:
        base: Precision of the layers that are not named: of `PRECISIONS`.
        layers: Precision by layer name, for the others.
        algorithm: A key of `ALGORITHMS`.
        dense: `per_channel` or `per_tensor`: the scales of Dense weights.
        float_io: Inputs and outputs stay float32.
        uint8_io: int8 inputs and outputs become uint8.
        half: `a` or `b`: the ranges of one half of the calibration samples only.
    """

    base: str = "int8"
    layers: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = "min_max"
    dense: str = "per_channel"
    float_io: bool = False
    uint8_io: bool = False
    half: str = ""

    @property
    def activations(self) -> str:
        """Which calibration result it needs: `min_max`, `average`, or that of a half."""
        return ALGORITHMS[self.algorithm][0] + (f".{self.half}" if self.half else "")

    def summary(self) -> str:
        """One line for people."""
        parts = [f"{self.base}, {self.algorithm}"]
        if self.dense == "per_tensor":
            parts.append("Dense per tensor")
        for precision in PRECISIONS:
            names = [name for name, given in self.layers.items() if given == precision]
            if names:
                parts.append(f"{precision}: {', '.join(names)}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
        return {**asdict(self), "layers": dict(self.layers)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """The way back from `to_json`; other keys are ignored."""
        names = {item.name for item in fields(cls)}
        return cls(**{key: item for key, item in value.items() if key in names})


def rules(plan: Plan, tensors: Mapping[str, Iterable[str]]) -> list[Rule]:
    """Returns the plan as a recipe of litert-quantizer.

    Args:
        plan: The plan.
        tensors: Names of the tensors that each layer's operators write, by layer.
    """
    found = _precision(plan, plan.base, ".*")
    for layer, precision in plan.layers.items():
        names = "|".join(re.escape(name) for name in tensors[layer])
        # litert-quantizer ends each name of an operator's outputs with a semicolon.
        found += _precision(plan, precision, f"^(?:{names});") or [
            rule("*", "no_quantize", regex=f"^(?:{names});")
        ]
    return [*found, *FLOAT_ENDS] if plan.float_io else found


def _precision(plan: Plan, precision: str, regex: str) -> list[Rule]:
    if precision == "float":
        return []
    bits = 16 if precision == "int16" else 8
    algorithm = ALGORITHMS[plan.algorithm][1]
    # A per-channel Dense with int16 activations is wrong on tflite-runtime 2.14 (see `recipes`).
    dense = "TENSORWISE" if bits == 16 else DENSE[plan.dense]
    weighted = [
        static(
            bits,
            operation,
            dense if operation == "FULLY_CONNECTED" else "CHANNELWISE",
            algorithm=algorithm,
            regex=regex,
        )
        for operation in _WEIGHTED
    ]
    return [static(bits, regex=regex), *weighted]
