"""Names of a model's ends, as TensorFlow's signatures accept them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]+")


def sanitise(names: Iterable[str], fallback: str) -> list[str]:
    """Turns layer names into unique identifiers, `[A-Za-z_][A-Za-z0-9_]*`.

    Args:
        names: The original names, in order.
        fallback: What a name becomes that has no usable character: `input`, `output`.
    """
    found: list[str] = []
    for original in names:
        name = _NOT_ALLOWED.sub("_", original).strip("_") or fallback
        if not (name[0].isalpha() or name[0] == "_") or keyword.iskeyword(name):
            name = f"{fallback}_{name}"
        candidate, number = name, 1
        while candidate in found:
            candidate, number = f"{name}_{number}", number + 1
        found.append(candidate)
    return found
