"""Quality gates: measured values against their limits."""

from __future__ import annotations

from packager.bundle import Gate, GateCheck, GateLimits

# float16 keeps 11 bits, 2**13 times coarser than float32; deep networks add some of that up. A
# share of the output's range, below which no float16 artifact fails.
FLOAT16_DIFF = 0.05
# Modes whose outputs must equal the source's up to rounding, and their least strict limit. Weights
# of TF.js in 16 bits are about as coarse as float16; in 8 bits, only answers can be compared.
_EXACT_MODES = {
    "float32": 0.0,
    "float16": FLOAT16_DIFF,
    "float16_weights": FLOAT16_DIFF,
    "uint16_weights": FLOAT16_DIFF,
}
# Some models enlarge rounding: with a logarithm of small powers, basic_pitch moves by 7e-5 when its
# inputs are rounded to their neighbours, and by 15e-5 between two kernels of LiteRT for the same
# file. Differences up to this many times the former are rounding, not another computation.
ROUNDING_FACTOR = 8
# Weights in float16 are off by up to 2**12 of the steps that the inputs are moved by.
_FLOAT16_ROUNDING = 2**11
# A model that enlarges rounding beyond these shares of its range makes a step of it somewhere,
# and says nothing about rounding any more.
LARGEST_SHARE = 1e-3
_LARGEST_FLOAT16_SHARE = 0.15
# A drop of 0.991 - 0.981 is a little above 0.01 in floats. Two shares of N counts differ by at
# least 1 / N, far more than this; half a sample would let 1 of 50 pass a limit of 1 point.
_ROUNDING = 1e-9


def check(
    mode: str,
    size_bytes: int,
    metrics: dict[str, float],
    limits: GateLimits,
    *,
    synthetic: bool,
    rounding: float = 0.0,
) -> Gate:
    """Compares an artifact's metrics with the limits.

    Args:
        mode: The artifact's quantization mode; `float32` for those without one.
        size_bytes: Its size.
        metrics: What `metrics.measure` returned.
        limits: The limits.
        synthetic: The samples were random, so that agreement says nothing.
        rounding: How much the source's outputs move, as a share of their range, when its inputs
            are moved to neighbouring floats.
    """
    if metrics.get("non_finite"):
        count = metrics["non_finite"]
        text = f"{count:.0f} output value{'s are' if count > 1 else ' is'} NaN or infinite"
        return Gate("failed", text, (GateCheck("finite", "failed", reason=text),))
    checks = [
        _upper(
            "max_drop",
            metrics.get("drop"),
            limits.max_drop,
            "no labelled evaluation data",
            slack=_ROUNDING,
        ),
        _lower(
            "min_agreement",
            None if synthetic else metrics.get("agreement"),
            limits.min_agreement,
            "no evaluation data",
            slack=_ROUNDING,
        ),
    ]
    if "error_growth" in metrics:
        growth = metrics["error_growth"]
        checks.append(_upper("max_error_growth", growth, limits.max_error_growth, ""))
    if mode in _EXACT_MODES:
        limit = _diff_limit(limits.max_abs_diff, mode, rounding)
        checks.append(_upper("max_abs_diff", metrics.get("range_diff"), limit, "not measured"))
    checks.append(_upper("max_bytes", float(size_bytes), limits.max_bytes, ""))
    return _summarise(tuple(c for c in checks if c is not None))


def _diff_limit(given: float | None, mode: str, rounding: float) -> float | None:
    """The limit of `max_abs_diff`; a limit that the user set holds as it is."""
    if given is None:
        return None
    limit = max(given, _EXACT_MODES[mode])
    if given != GateLimits().max_abs_diff:
        return limit
    factor, most = ROUNDING_FACTOR, LARGEST_SHARE
    if mode == "float16":
        factor, most = _FLOAT16_ROUNDING, _LARGEST_FLOAT16_SHARE
    return max(limit, min(factor * rounding, most))


def _upper(
    name: str, value: float | None, limit: float | None, missing: str, slack: float = 0.0
) -> GateCheck | None:
    holds = value is not None and limit is not None and value <= limit + slack
    return _checked(name, value, limit, missing, holds=holds)


def _lower(
    name: str, value: float | None, limit: float | None, missing: str, slack: float = 0.0
) -> GateCheck | None:
    holds = value is not None and limit is not None and value >= limit - slack
    return _checked(name, value, limit, missing, holds=holds)


def _checked(
    name: str, value: float | None, limit: float | None, missing: str, *, holds: bool
) -> GateCheck | None:
    if limit is None:
        return None
    if value is None:
        return GateCheck(name, "skipped", limit=limit, reason=missing)
    return GateCheck(name, "passed" if holds else "failed", value, limit)


def _summarise(checks: tuple[GateCheck, ...]) -> Gate:
    failed = [c for c in checks if c.status == "failed"]
    if failed:
        reason = "; ".join(f"{c.name} {c.value:.8g}, limit {c.limit:.8g}" for c in failed)
        return Gate("failed", reason, checks)
    # A size below its limit says nothing about the answers.
    measured = [c for c in checks if c.status == "passed" and c.name != "max_bytes"]
    if measured:
        return Gate("passed", None, checks)
    skipped = [c.reason for c in checks if c.reason]
    return Gate("skipped", skipped[0] if skipped else "no gate applies", checks)
