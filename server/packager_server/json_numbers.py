"""Writes arrays as JSON text with TensorFlow Serving's number format.

A float is written with 6 significant digits where these give the same value back, else with 9
(double: 17); whole numbers get `.0` unless they are in exponent form. Numbers that are not
finite are the bare words NaN, Infinity and -Infinity, which JSON does not know.
"""

from __future__ import annotations

import base64
from math import prod

import numpy as np

from packager_server import json_text
from packager_server.codes import ServeError
from packager_server.model import Array

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_FULL = {np.dtype(np.float32): ".9g", np.dtype(np.float64): ".17g"}


def tensor_text(name: str, value: Array) -> str:
    """Returns the JSON text of a whole tensor; `name` decides how bytes are written."""
    return _nested(_scalars(name, value), value.shape)


def row_texts(name: str, value: Array) -> list[str]:
    """Returns the JSON text of each row of a tensor `[N, ...]`."""
    texts = _scalars(name, value)
    size = prod(value.shape[1:])
    return [
        _nested(texts[index * size : (index + 1) * size], value.shape[1:])
        for index in range(len(value))
    ]


def float_texts(values: Array) -> list[str]:
    """Returns the JSON text of each value of a flat float32 or float64 array."""
    numbers = values.tolist()
    texts = [f"{number:.6g}" for number in numbers]
    exact = np.array(texts, np.float64).astype(values.dtype) == values
    if not exact.all():
        full = _FULL[values.dtype]
        for index in np.flatnonzero(~exact).tolist():
            texts[index] = format(numbers[index], full)
    return [_decimal(text) for text in texts]


def _decimal(text: str) -> str:
    if "." in text or "e" in text:
        return text
    return _WORDS.get(text) or text + ".0"


def _scalars(name: str, value: Array) -> list[str]:
    kind = value.dtype.kind
    if value.dtype in _FULL:
        return float_texts(value.ravel())
    if kind in "iu" and value.dtype.isnative:
        return [str(number) for number in value.ravel().tolist()]
    if kind == "b":
        return ["true" if one else "false" for one in value.ravel().tolist()]
    if kind in "OS":
        return [_string(name, one) for one in value.ravel().tolist()]
    known = {"float16": "half"}.get(value.dtype.name, value.dtype.name)
    raise ServeError(f"Failed to write JSON value for tensor type: {known}")


def _string(name: str, value: bytes | str) -> str:
    data = value.encode() if isinstance(value, str) else value
    if name.endswith("_bytes"):
        return f'{{"b64": "{base64.b64encode(data).decode()}"}}'
    try:
        return json_text.text(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ServeError(
            f"output {name!r} holds bytes that are not UTF-8: JSON cannot hold them. Export it as "
            f"'{name}_bytes' to get base64, or use gRPC."
        ) from None


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    if 0 in shape:
        return _empty(shape)
    for size in reversed(shape):
        texts = [
            "[" + ", ".join(texts[start : start + size]) + "]"
            for start in range(0, len(texts), size)
        ]
    return texts[0]


def _empty(shape: tuple[int, ...]) -> str:
    if shape[0] == 0:
        return "[]"
    return "[" + ", ".join([_empty(shape[1:])] * shape[0]) + "]"
