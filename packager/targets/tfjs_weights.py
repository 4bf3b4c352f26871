"""How the weights of a TF.js model are stored: as they are, or in fewer bits.

TF.js turns every weight into float32 (or int32, bool) when it loads a model. Fewer bits make the
download smaller, never the model faster.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.bundle import Quantization
from packager.errors import ConfigError, ConversionError

Array = np.ndarray[Any, Any]

# From the finest to the coarsest.
DTYPES = ("uint16", "float16", "uint8")
# Weights with fewer axes are biases and the like: nothing to gain, and much to lose.
_LEAST_AXES = 2


@dataclass(frozen=True)
class Rule:
    """Stores the float32 weights whose names match a pattern in fewer bits.

    Attributes:
        dtype: One of `DTYPES`.
        pattern: As in a shell, `conv*/kernel`; empty: every weight with two axes or more that no
            other rule names.
    """

    dtype: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.dtype}:{self.pattern}" if self.pattern else self.dtype


def parse(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Reads `float16`, or `uint8:PATTERN`.

    Raises:
        ConfigError: A data type is unknown, a pattern is missing, or a rule is given twice.
    """
    rules: list[Rule] = []
    for text in texts:
        dtype, colon, pattern = text.partition(":")
        if dtype not in DTYPES or (colon and not pattern):
            raise ConfigError(
                f"--tfjs-weights: expected one of {', '.join(DTYPES)}, alone or as"
                f" {DTYPES[-1]}:PATTERN, received {text!r}",
                hint="for example --tfjs-weights float16, or --tfjs-weights 'uint8:conv*/kernel'",
            )
        rules.append(Rule(dtype, pattern))
    if len({rule.pattern for rule in rules}) < len(rules):
        raise ConfigError(
            "--tfjs-weights: two rules have the same pattern",
            hint="give one rule without a pattern at most, and each pattern once",
        )
    return tuple(rules)


def quantization(rules: Sequence[Rule]) -> Quantization | None:
    """What the manifest says about a model with these rules."""
    if not rules:
        return None
    coarsest = max((rule.dtype for rule in rules), key=DTYPES.index)
    return Quantization(f"{coarsest}_weights")


def assign(rules: Sequence[Rule], weights: Mapping[str, Array]) -> dict[str, Rule]:
    """Tells which rule stores which weight.

    Raises:
        ConfigError: A rule matches no float32 weight, or two patterns match the same one.
    """
    floats = [name for name, array in weights.items() if array.dtype == np.float32]
    found: dict[str, Rule] = {}
    for rule in sorted(rules, key=lambda rule: not rule.pattern):
        if rule.pattern:
            matches = fnmatch.filter(floats, rule.pattern)
        else:
            matches = [n for n in floats if weights[n].ndim >= _LEAST_AXES and n not in found]
        if not matches:
            raise ConfigError(
                f"--tfjs-weights {rule} matches no weight",
                hint=f"the weights of this model: {_listed(floats)}",
            )
        for name in matches:
            if name in found:
                raise ConfigError(
                    f"--tfjs-weights: {found[name]} and {rule} both match the weight {name}",
                    hint="make the patterns narrower",
                )
            found[name] = rule
    return found


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none of float32") + more


def encode(name: str, array: Array, rule: Rule | None) -> tuple[dict[str, Any], bytes]:
    """Returns a weight's entry in `weightsManifest` and its bytes.

    Args:
        name: Its name.
        array: float32, int32, bool, complex64, or bytes as objects.
        rule: How to store it; None: as it is.

    Raises:
        ConversionError: It cannot be stored that way.
    """
    entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
    if rule is not None:
        stored, how = _in_fewer_bits(name, array, rule)
        entry["quantization"] = {"dtype": rule.dtype, "original_dtype": "float32", **how}
        return entry, _little_endian(stored)
    if array.dtype == object:
        entry["dtype"] = "string"
        return entry, b"".join(struct.pack("<I", len(text)) + text for text in array.reshape(-1))
    if array.dtype.name not in ("float32", "int32", "bool", "complex64"):
        raise ConversionError(f"weight {name}: TF.js has no {array.dtype}; it is a writer's bug")
    return entry, _little_endian(array)


def _little_endian(array: Array) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).tobytes()


def _in_fewer_bits(name: str, array: Array, rule: Rule) -> tuple[Array, dict[str, float]]:
    if not np.isfinite(array).all():
        raise ConversionError(f"weight {name}: infinite values cannot be stored as {rule.dtype}")
    if rule.dtype == "float16":
        if np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
            raise ConversionError(
                f"weight {name}: {np.abs(array).max():.6g} is beyond float16, which ends at 65504",
                hint=f"store it otherwise: --tfjs-weights 'uint16:{name}'",
            )
        return array.astype(np.float16), {}
    return _affine(array, np.dtype(rule.dtype))


def _affine(array: Array, dtype: np.dtype[Any]) -> tuple[Array, dict[str, float]]:
    """Integers with `value = integer * scale + min`, where zero stays exactly zero."""
    low, high = float(array.min(initial=np.inf)), float(array.max(initial=-np.inf))
    if not low < high:
        # One value, or none at all.
        constant = low if low == high else 0.0
        return np.zeros(array.shape, dtype), {"scale": 1.0, "min": constant}
    most = int(np.iinfo(dtype).max)
    scale = (high - low) / most
    if low <= 0.0 <= high:
        low = -round(-low / scale) * scale
    integers = np.rint((array.astype(np.float64) - low) / scale).clip(0, most)
    return integers.astype(dtype), {"scale": scale, "min": low}
