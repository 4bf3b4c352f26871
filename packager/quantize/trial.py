"""What quantizing in one way gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """What one plan gave.

    Attributes:
        metrics: As `metrics.measure` returns them, against the float file.
        snr_db: Power of the float file's outputs over that of the difference, in dB; None where
            there is no difference or a value is not finite.
        size_bytes: Size of the file.
        integer_op_share: Share (0..1) of the operators that compute on integers.
        float_ops: The operators that stay float.
        latency_ms: Median time of one sample on one thread; None unless it was asked for.
    """

    metrics: dict[str, float]
    snr_db: float | None
    size_bytes: int
    integer_op_share: float
    float_ops: tuple[str, ...]
    latency_ms: float | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trial:
        """The way back from `asdict`, through JSON."""
        return cls(**{**value, "float_ops": tuple(value["float_ops"])})
