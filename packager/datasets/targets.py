"""Targets: class numbers from folder names, texts or arrays, and values to regress."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from packager.errors import DataError

Array = np.ndarray[Any, Any]


def class_number(text: str, labels: Sequence[str], where: str) -> int:
    """Returns the class that `text` names.

    With a single label, the positive class, every other text is class 0.

    Args:
        text: A label, in any Unicode normalization, or a class number.
        labels: The model's labels.
        where: What the error message names.

    Raises:
        DataError: `text` is none of the labels.
    """
    plain = [_plain(label) for label in labels]
    if _plain(text) in plain:
        return plain.index(_plain(text)) if len(labels) > 1 else 1
    if text.strip().isdecimal():
        return int(text)
    if len(labels) == 1:
        return 0
    near = difflib.get_close_matches(_plain(text), plain, n=1)
    shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
    raise DataError(
        f"{where}: {text!r} is not one of the {len(labels)} labels ({shown})",
        hint=f"Did you mean {near[0]!r}?" if near else "Rename it, or correct the labels.",
    )


def folder_classes(names: Sequence[str], labels: Sequence[str], where: str) -> list[int]:
    """Returns the class number of each class folder; without labels, their sorted order."""
    if not labels:
        order = sorted(names)
        return [order.index(name) for name in names]
    return [class_number(name, labels, where) for name in names]


def check_targets(targets: Array, count: int, labels: Sequence[str], where: str) -> Array:
    """Returns `targets` as class numbers int64 [N], or as float32 [N, ...].

    Args:
        targets: One row per sample: texts, class numbers, or values.
        count: Number of samples.
        labels: The model's labels; empty for a regression.
        where: What the error message names.

    Raises:
        DataError: Another count, not finite, or a class that does not exist.
    """
    if len(targets) != count:
        raise DataError(f"{where}: {count} samples, but {len(targets)} targets")
    if targets.dtype.kind == "U":
        targets = _from_texts(targets, labels, where)
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        raise DataError(f"{where}: the targets hold NaN or infinities")
    if not labels and targets.dtype.kind == "f":
        return np.asarray(targets, np.float32)
    column = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if column.ndim > 1:
        return np.asarray(targets, np.float32)
    return _class_numbers(column, labels, where)


def _from_texts(targets: Array, labels: Sequence[str], where: str) -> Array:
    if not labels and not all(str(text).strip().isdecimal() for text in targets):
        raise DataError(
            f"{where}: the targets are texts, and no labels are given",
            hint="Give the labels: --labels labels.txt",
        )
    return np.array([class_number(str(text), labels, where) for text in targets], np.int64)


def _class_numbers(targets: Array, labels: Sequence[str], where: str) -> Array:
    numbers = targets.astype(np.int64)
    if not np.array_equal(numbers, targets):
        raise DataError(
            f"{where}: expected class numbers, received fractions such as {targets.flat[0]}",
            hint="A model with labels needs whole numbers; a regression has no labels.",
        )
    classes = max(2, len(labels))
    if labels and (numbers.min() < 0 or numbers.max() >= classes):
        raise DataError(
            f"{where}: class numbers from {numbers.min()} to {numbers.max()}; "
            f"with {len(labels)} labels they must be 0 to {classes - 1}",
            hint="Correct the labels file or the targets.",
        )
    return numbers


def _plain(text: str) -> str:
    # File names on macOS are decomposed, labels mostly composed.
    return unicodedata.normalize("NFC", text.strip())
