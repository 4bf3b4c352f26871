"""`--runtime`: what an interpreter on a device can run, by package and version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packager.errors import ConfigError, UnsupportedError

MICRO = "tflite-micro"
PACKAGES = ("ai-edge-litert", "tflite-runtime", "tensorflow", MICRO)
_SPEC = re.compile(r"(?P<package>[a-z-]+)\s*(?:(?P<how>==|>=)\s*(?P<version>\d+(?:\.\d+)*))?")
# Operators that the Python interpreter of tflite-micro 0.dev20261023 was seen to run right, in
# float32, int8 and int16 (tests/quantize). It has neither GELU nor TILE; the rest was not tried.
_MICRO_OPS = frozenset(
    (
        "ADD", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CONCATENATION", "CONV_2D",
        "DEPTHWISE_CONV_2D", "DEQUANTIZE", "FULLY_CONNECTED", "HARD_SWISH", "LEAKY_RELU",
        "LOGISTIC", "MAX_POOL_2D", "MEAN", "MUL", "NEG", "PAD", "QUANTIZE", "RELU", "RESHAPE",
        "RSQRT", "SOFTMAX", "SQUARED_DIFFERENCE", "SUB", "TANH", "TRANSPOSE_CONV",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """An interpreter.

    Attributes:
        package: Of `PACKAGES`.
        version: The oldest version that must run the files; empty: the newest will do.
    """

    package: str
    version: str = ""


def parse_all(specs: Iterable[str]) -> list[Profile]:
    """Reads `tflite-runtime==2.14`, `ai-edge-litert>=1` or `tflite-micro`.

    Raises:
        ConfigError: It is none of those.
    """
    return [_parse(spec) for spec in specs]


def check(specs: Iterable[str], artifact: str, described: Mapping[str, Any]) -> None:
    """Refuses a file that one of the interpreters cannot run, or runs wrong.

    Args:
        specs: As in `parse_all`.
        artifact: The artifact's id.
        described: What `tflite_file.describe` says of the file.

    Raises:
        UnsupportedError: Names the interpreter and the reason.
    """
    for profile in parse_all(specs):
        reason = problem(profile, described)
        if reason:
            raise UnsupportedError(
                f"{artifact}: --runtime {profile.package}{profile.version}: {reason}",
                hint="leave this artifact out with --only, or the runtime",
            )


def problem(profile: Profile, described: Mapping[str, Any]) -> str:
    """Says why an interpreter may not run a file; empty where it may."""
    if profile.package == MICRO:
        return _micro_problem(described)
    oldest = described["min_version"].get(profile.package)
    if oldest is None:
        return f"no version of it was seen to run {', '.join(described['ops'])} right"
    if profile.version and _release(profile.version) < _release(oldest):
        return f"{oldest} is the oldest version that was seen to run it right"
    return ""


def _micro_problem(described: Mapping[str, Any]) -> str:
    if described["hybrid_ops"]:
        names = ", ".join(described["hybrid_ops"])
        return f"it computes no floats with int8 weights ({names}); use tflite/int8"
    if described["float16_weights"]:
        return "it does not decode float16 weights; use tflite/float32 or tflite/int8"
    unseen = [name for name in described["ops"] if name not in _MICRO_OPS]
    return f"it was not seen to run {', '.join(unseen)}" if unseen else ""


def _parse(spec: str) -> Profile:
    match = _SPEC.fullmatch(spec.strip())
    if match is None or match["package"] not in PACKAGES:
        name = re.split(r"[=>\s]", spec.strip())[0]
        close = difflib.get_close_matches(name, PACKAGES, n=1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"--runtime: {spec!r} is no interpreter with a version{meant}",
            hint=f"known: {', '.join(PACKAGES)}, each with ==VERSION or >=VERSION",
        )
    return Profile(match["package"], match["version"] or "")


def _release(version: str) -> tuple[int, ...]:
    """Compares as numbers, 2.14 as 2.14.0."""
    parts = tuple(int(part) for part in version.split("."))
    return parts + (0,) * (4 - len(parts))
