"""Turns the values of a predict request into arrays, by TensorFlow Serving's rules.

The quick way handles what almost every request holds: a rectangular nest of numbers. Whatever it
does not take goes element by element, which finds the first error in TensorFlow Serving's order.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from packager_server import json_text
from packager_server.codes import Code, ServeError
from packager_server.model import Array, TensorInfo

# The largest rank of a tensor; deeper lists are no tensor.
MAX_RANK = 254

_INT_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
# Read as a 32-bit integer, then cut to their width: TensorFlow Serving does not check the range.
_NARROW = ("int8", "uint8", "int16", "uint16")
FLOATS = ("float32", "float64")
SUPPORTED = (*FLOATS, *_INT_RANGES, *_NARROW, "bool", "string")


def is_base64(value: Any) -> bool:
    """Whether a JSON value is an object `{"b64": "..."}` and nothing else."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def is_object(value: Any) -> bool:
    """Whether a JSON value is an object of named values."""
    return isinstance(value, dict) and not is_base64(value)


def decode_base64(value: str) -> bytes:
    """Returns the bytes of standard base64; padding is optional, whitespace is skipped.

    Raises:
        ServeError: Another alphabet, or a length that no bytes have.
    """
    packed = "".join(value.split()).rstrip("=")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ServeError(
            "Unable to base64 decode: expected the standard alphabet (A-Z a-z 0-9 + /)"
        ) from None


def check_supported(info: TensorInfo) -> None:
    """Raises `ServeError` (unimplemented) if JSON has no form for the input's dtype."""
    if info.dtype not in SUPPORTED:
        raise ServeError(
            f"Conversion of JSON Value to type: {info.dtype_text} is not supported: use gRPC",
            Code.UNIMPLEMENTED,
        )


def quick_array(value: Any, dtype: str) -> Array | None:
    """Returns the array of a rectangular nest of numbers, or None if it is anything else.

    `value` must hold no booleans: NumPy would read them as numbers.
    """
    if dtype not in FLOATS and dtype not in _INT_RANGES:
        return None
    shape: list[int] = []
    flat: Any = value if isinstance(value, list) else [value]
    while flat and isinstance(flat[0], list):
        try:
            lengths = set(map(len, flat))
        except TypeError:
            return None
        if len(lengths) != 1 or len(shape) >= MAX_RANK:
            return None
        shape.append(lengths.pop())
        flat = list(chain.from_iterable(flat))
    numbers = _numbers(flat, dtype)
    if numbers is None:
        return None
    lead = [len(value)] if isinstance(value, list) else []
    return numbers.reshape([*lead, *shape])


def _numbers(flat: list[Any], dtype: str) -> Array | None:
    try:
        found = np.array(flat)
    except ValueError:
        return None
    if dtype in FLOATS:
        if found.dtype.kind not in "fiu" or found.ndim != 1:
            return None
        # By way of double, as RapidJSON reads them: integers are rounded twice, too.
        with np.errstate(over="ignore"):
            return found.astype(np.float64, copy=False).astype(dtype, copy=False)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        return None
    low, high = _INT_RANGES[dtype]
    inside = found.size == 0 or (int(found.min()) >= low and int(found.max()) <= high)
    return found.astype(dtype, copy=False) if inside else None


def array(value: Any, info: TensorInfo, *, numbers_only: bool = False) -> Array:
    """Returns the array of one JSON value.

    Args:
        value: Nested lists of scalars, or one scalar.
        info: The input that it is for; only the dtype is looked at.
        numbers_only: The request is known to hold no booleans: NumPy would read them as numbers.

    Raises:
        ServeError: A wrong type, a ragged list, or a dtype that JSON cannot express.
    """
    check_supported(info)
    quick = quick_array(value, info.dtype) if numbers_only else None
    if quick is not None:
        return quick
    shape = dense_shape(value)
    flat: list[Any] = []
    _fill(value, shape, 0, _converter(info), flat)
    return _as_array(flat, shape, info.dtype)


def dense_shape(value: Any) -> tuple[int, ...]:
    """Returns the shape that a nest of lists has along its first members.

    Raises:
        ServeError: It is nested more deeply than a tensor's largest rank.
    """
    shape: list[int] = []
    while isinstance(value, list):
        if len(shape) == MAX_RANK:
            raise ServeError(f"Lists are nested more than {MAX_RANK} deep: no tensor has that rank")
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _fill(
    value: Any, shape: tuple[int, ...], level: int, convert: Callable[[Any], Any], flat: list[Any]
) -> None:
    if isinstance(value, list):
        if level >= len(shape) or len(value) != shape[level]:
            expected = shape[level] if level < len(shape) else 0
            raise ServeError(
                f"Encountered list at unexpected size: {len(value)} at level: {level} "
                f"expected size: {expected}"
            )
        for one in value:
            _fill(one, shape, level + 1, convert, flat)
        return
    if level != len(shape):
        raise ServeError(
            f"JSON Value: {json_text.shown(value)} found at incorrect level: {level + 1} "
            f"in the JSON DOM. Expected at level: {len(shape)}"
        )
    flat.append(convert(value))


def _as_array(flat: list[Any], shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "string":
        strings = np.empty(len(flat), object)
        strings[:] = flat
        return strings.reshape(shape)
    with np.errstate(over="ignore"):
        if dtype in _NARROW:
            return np.array(flat, np.int64).astype(dtype).reshape(shape)
        if dtype in FLOATS:
            return np.array(flat, np.float64).astype(dtype).reshape(shape)
        return np.array(flat, dtype).reshape(shape)


def _converter(info: TensorInfo) -> Callable[[Any], Any]:
    def wrong(value: Any) -> ServeError:
        return ServeError(
            f"JSON Value: {json_text.shown(value)} Type: {json_text.type_name(value)} "
            f"is not of expected type: {info.dtype_text}"
        )

    def number(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(value)
        try:
            return float(value)
        except OverflowError:
            raise ServeError("JSON Parse error: Number too big to be stored in double.") from None

    def integer(value: Any) -> int:
        low, high = _INT_RANGES.get(info.dtype, _INT_RANGES["int32"])
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(value)
        return value

    def boolean(value: Any) -> bool:
        if not isinstance(value, bool):
            raise wrong(value)
        return value

    def string(value: Any) -> bytes:
        return _string_bytes(value, wrong)

    if info.dtype in FLOATS:
        return number
    return {"bool": boolean, "string": string}.get(info.dtype, integer)


def _string_bytes(value: Any, wrong: Callable[[Any], ServeError]) -> bytes:
    if is_base64(value):
        return decode_base64(value["b64"])
    if isinstance(value, dict):
        raise ServeError(
            f"JSON Value: {json_text.shown(value)} not formatted correctly for base64 data"
        )
    if not isinstance(value, str):
        raise wrong(value)
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        message = "JSON Parse error: The surrogate pair in string is invalid."
        raise ServeError(message) from None
