"""Parses JSON as TensorFlow Serving's parser (RapidJSON) does: more tolerant than Python's.

It takes NaN, Inf and Infinity, stops where the root value ends, skips a byte order mark, and of
two equal keys the first wins. What it does not take becomes a `ServeError` with RapidJSON's text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from packager_server.codes import ServeError

_BOM = b"\xef\xbb\xbf"
_WHITESPACE = " \t\r\n"
# A string, or the literal that Python's parser does not know.
_INF = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b', re.DOTALL)
_MESSAGES = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid control character at": "Invalid encoding in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
}
_SHOWN_BYTES = 256


def parse(body: bytes) -> Any:
    """Returns the root value of `body`; integers stay `int`, other numbers are `float`.

    Raises:
        ServeError: It is not JSON in the sense of this module, or nested too deeply.
    """
    text = _decode(body)
    start = len(text) - len(text.lstrip(_WHITESPACE))
    if start == len(text):
        raise ServeError("JSON Parse error: The document is empty at offset: 0")
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _parse_error(text, error) from None
    except RecursionError:
        raise ServeError("JSON Parse error: the document is nested too deeply") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise ServeError(
            f"JSON Parse error: Number too big to be stored in double. {error}"
        ) from None
    return value


def _decode(body: bytes) -> str:
    try:
        text = body.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        raise ServeError(message) from None
    if "Inf" not in text:
        return text
    # "Infinity" has no word boundary after "Inf" and stays as it is.
    return _INF.sub(lambda m: "Infinity" if m.group() == "Inf" else m.group(), text)


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Only repeated keys need the second look; the order of the keys stays that of the text.
    return found if len(found) == len(pairs) else {**found, **dict(reversed(pairs))}


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ServeError("JSON Parse error: Number too big to be stored in double.")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_first_wins, parse_float=_finite)


def _parse_error(text: str, error: json.JSONDecodeError) -> ServeError:
    message = _MESSAGES.get(error.msg)
    if message is None:  # "Expecting ',' delimiter", or a kind that is new
        inside_list = text.rfind("[", 0, error.pos) > text.rfind("{", 0, error.pos)
        message = (
            "Missing a comma or ] after an array element."
            if inside_list
            else "Missing a comma or } after an object member."
        )
    offset = len(text[: error.pos].encode())
    return ServeError(f"JSON Parse error: {message} at offset: {offset}")


def type_name(value: Any) -> str:
    """Returns the JSON type of a parsed value as TensorFlow Serving's messages name it."""
    if value is None:
        return "Null"
    for kind, name in ((bool, "Bool"), (str, "String"), (list, "Array"), (dict, "Object")):
        if isinstance(value, kind):
            return name
    return "Number"


def shown(value: Any) -> str:
    """Returns a value as JSON text for a message, cut at 256 bytes."""
    text = json.dumps(value if not isinstance(value, (list, dict)) else _head(value))
    return text[:_SHOWN_BYTES]


def _head(value: Any, budget: int = 4) -> Any:
    """Returns the first few members at each level, so that a long value need not be written."""
    if budget == 0:
        return "..."
    if isinstance(value, list):
        return [_head(one, budget - 1) for one in value[:64]]
    if isinstance(value, dict):
        return {key: _head(value[key], budget - 1) for key in list(value)[:64]}
    return value


def text(value: Any) -> str:
    """Returns `value` as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
