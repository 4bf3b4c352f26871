"""Quality gates: measured values against their limits."""

from __future__ import annotations

import operator
from collections.abc import Callable

from packager.bundle import Gate, GateCheck, GateLimits

# float16 keeps 11 bits, 2**13 times coarser than float32; deep networks add some of that up.
FLOAT16_DIFF_FACTOR = 5000.0
# Modes whose outputs must equal the source's up to rounding.
_EXACT_MODES = {"float32": 1.0, "float16": FLOAT16_DIFF_FACTOR}


def check(
    mode: str, size_bytes: int, metrics: dict[str, float], limits: GateLimits, *, synthetic: bool
) -> Gate:
    """Compares an artifact's metrics with the limits.

    Args:
        mode: The artifact's quantization mode; `float32` for those without one.
        size_bytes: Its size.
        metrics: What `metrics.measure` returned.
        limits: The limits.
        synthetic: The samples were random, so that agreement says nothing.
    """
    if metrics.get("non_finite"):
        text = f"{metrics['non_finite']:.0f} output values are NaN or infinite"
        return Gate("failed", text, (GateCheck("finite", "failed", reason=text),))
    checks = [
        _upper("max_drop", metrics.get("drop"), limits.max_drop, "no labelled evaluation data"),
        _lower(
            "min_agreement",
            None if synthetic else metrics.get("agreement"),
            limits.min_agreement,
            "no evaluation data",
        ),
    ]
    if mode in _EXACT_MODES:
        limit = limits.max_abs_diff
        scaled = None if limit is None else limit * _EXACT_MODES[mode]
        checks.append(_upper("max_abs_diff", metrics.get("range_diff"), scaled, "not measured"))
    checks.append(_upper("max_bytes", float(size_bytes), limits.max_bytes, ""))
    return _summarise(tuple(c for c in checks if c is not None))


def _upper(name: str, value: float | None, limit: float | None, missing: str) -> GateCheck | None:
    return _compare(name, value, limit, missing, operator.le)


def _lower(name: str, value: float | None, limit: float | None, missing: str) -> GateCheck | None:
    return _compare(name, value, limit, missing, operator.ge)


def _compare(
    name: str,
    value: float | None,
    limit: float | None,
    missing: str,
    holds: Callable[[float, float], bool],
) -> GateCheck | None:
    if limit is None:
        return None
    if value is None:
        return GateCheck(name, "skipped", limit=limit, reason=missing)
    return GateCheck(name, "passed" if holds(value, limit) else "failed", value, limit)


def _summarise(checks: tuple[GateCheck, ...]) -> Gate:
    failed = [c for c in checks if c.status == "failed"]
    if failed:
        reason = "; ".join(f"{c.name} {c.value:.3g}, limit {c.limit:.3g}" for c in failed)
        return Gate("failed", reason, checks)
    # A size below its limit says nothing about the answers.
    measured = [c for c in checks if c.status == "passed" and c.name != "max_bytes"]
    if measured:
        return Gate("passed", None, checks)
    skipped = [c.reason for c in checks if c.reason]
    return Gate("skipped", skipped[0] if skipped else "no gate applies", checks)
