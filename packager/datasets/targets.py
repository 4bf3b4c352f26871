"""Targets: class numbers from folder names, texts or arrays, and values to regress."""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Answer:
    """What the targets are compared with.

    Attributes:
        task: The manifest's `task`.
        shape: Shape of the model's first output without the batch axis; None for a free axis.
    """

    task: str
    shape: tuple[int | None, ...]

    @property
    def classes(self) -> int | None:
        """Number of classes; None where there are none, or nobody knows."""
        if self.task == "binary":
            return 2
        sizes = [size for size in self.shape if size is not None]
        known = self.task in ("classification", "multilabel") and len(sizes) == len(self.shape)
        return math.prod(sizes) if known else None


def class_numbers(texts: Sequence[str], labels: Sequence[str], where: str) -> list[int]:
    """Returns the classes that the texts of one data set name: all as labels, or all as numbers.

    With a single label, the positive class, every other text is class 0.

    Args:
        texts: Labels, in any Unicode normalization, or class numbers.
        labels: The model's labels.
        where: What the error message names.

    Raises:
        DataError: A text is none of the labels, or it is not clear what the texts are.
    """
    plain = [_plain(label) for label in labels]
    distinct = {text: _plain(text) for text in texts}
    are_labels = all(text in plain for text in distinct.values())
    clashing = sorted(
        text
        for text, name in distinct.items()
        if name in plain and text.strip().isdecimal() and plain.index(name) != int(text)
    )
    if not are_labels and clashing and all(t.strip().isdecimal() for t in distinct):
        raise DataError(
            f"{where}: are {_shown(sorted(distinct))} class numbers or labels? {clashing[0]!r} is"
            f" label number {plain.index(_plain(clashing[0]))}",
            hint="Name every class by its label.",
        )
    known = {text: _class_number(text, labels, where) for text in distinct}
    return [known[text] for text in texts]


def _class_number(text: str, labels: Sequence[str], where: str) -> int:
    plain = [_plain(label) for label in labels]
    if _plain(text) in plain:
        return plain.index(_plain(text)) if len(labels) > 1 else 1
    if text.strip().isdecimal():
        return int(text)
    if len(labels) == 1:
        return 0
    near = difflib.get_close_matches(_plain(text), plain, n=1)
    raise DataError(
        f"{where}: {text!r} is not one of the {len(labels)} labels ({_shown(labels)})",
        hint=f"Did you mean {near[0]!r}?" if near else "Rename it, or correct the labels.",
    )


def folder_classes(
    names: Sequence[str], labels: Sequence[str], answer: Answer, where: str
) -> list[int]:
    """Returns the class number of each class folder; without labels, their sorted order.

    Raises:
        DataError: No label names a folder, or without labels there are not as many folders as
            classes, or their order is not clear.
    """
    if answer.task == "regression":
        raise DataError(
            f"{where}: class folders ({_shown(names)}), but the task is a regression",
            hint="Give the values in a table: .csv with the columns path and target.",
        )
    if labels:
        numbers = class_numbers(names, labels, where)
        if len(set(numbers)) < len(numbers):
            raise DataError(
                f"{where}: two of the folders {_shown(names)} stand for the same class",
                hint="Give each folder the name of its label.",
            )
        return numbers
    order = sorted(names)
    if answer.classes not in (None, len(names)):
        raise DataError(
            f"{where}: {len(names)} class folders ({_shown(order)}), but {answer.classes} classes;"
            " without labels the folders are numbered in sorted order",
            hint="Give the labels: --labels labels.txt",
        )
    if all(name.isdecimal() for name in names) and sorted(names, key=int) != order:
        raise DataError(
            f"{where}: the class folders are numbers, and sorted as texts ({_shown(order)})"
            " they are in another order",
            hint="Give the labels: --labels labels.txt",
        )
    return [order.index(name) for name in names]


def check_targets(
    targets: Array, count: int, labels: Sequence[str], answer: Answer, where: str
) -> Array:
    """Returns the targets in the one form that the task has.

    Args:
        targets: One row per sample: texts, class numbers, one-hot or multi-hot rows, or values.
        count: Number of samples.
        labels: The model's labels; may be empty.
        answer: The task and the shape of the model's output.
        where: What the error message names.

    Returns:
        int64 `[N]` class numbers for `classification` and `binary`, float32 `[N, classes]` of 0
        and 1 for `multilabel`, float32 in the output's shape for `regression`. For the task
        `none`, which has no right answers, they are as they came.

    Raises:
        DataError: Another count, not finite, or not what the task has.
    """
    if len(targets) != count:
        raise DataError(f"{where}: {count} samples, but {len(targets)} targets")
    if targets.dtype.kind == "U":
        targets = _from_texts(targets, labels, where)
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        raise DataError(f"{where}: the targets hold NaN or infinities")
    if answer.task in ("classification", "binary"):
        return _class_numbers(targets, answer, where)
    if answer.task == "multilabel":
        return _multi_hot(targets, answer, where)
    return _values(targets, answer, where) if answer.task == "regression" else targets


def _from_texts(targets: Array, labels: Sequence[str], where: str) -> Array:
    if not labels and not all(str(text).strip().isdecimal() for text in targets.flat):
        raise DataError(
            f"{where}: the targets are texts, and no labels are given",
            hint="Give the labels: --labels labels.txt",
        )
    numbers = class_numbers([str(text) for text in targets.flat], labels, where)
    return np.array(numbers, np.int64).reshape(targets.shape)


def _class_numbers(targets: Array, answer: Answer, where: str) -> Array:
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim > 1:
        targets = _from_one_hot(targets, answer, where)
    fractions = targets[np.floor(targets) != targets]
    if fractions.size:
        raise DataError(
            f"{where}: expected class numbers, received fractions such as {fractions[0]}",
            hint="Classes are whole numbers; for values to predict, give --task regression.",
        )
    low, high, classes = int(targets.min()), int(targets.max()), answer.classes
    if low < 0 or (classes is not None and high >= classes):
        wanted = "not be negative" if classes is None else f"be 0 to {classes - 1}"
        raise DataError(
            f"{where}: class numbers from {low} to {high}; for {_described(answer)} they must"
            f" {wanted}",
            hint="Class numbers start at 0: subtract 1."
            if (low, high) == (1, classes)
            else "Correct the targets, or the labels if these are texts.",
        )
    return targets.astype(np.int64)


def _from_one_hot(targets: Array, answer: Answer, where: str) -> Array:
    """Returns the class numbers `[N]` of one-hot rows `[N, classes]`."""
    if answer.task == "binary" or not _has_classes(targets, answer):
        raise _wrong_shape(targets, answer, "class numbers [N]", where)
    rows = targets.reshape(len(targets), -1)
    _check_zeros_and_ones(rows, answer, where)
    sums = rows.sum(axis=1)
    if (sums != 1).any():
        index = int(np.flatnonzero(sums != 1)[0])
        raise DataError(
            f"{where}: the target of sample {index} names {int(sums[index])} classes, a"
            " classification has exactly one",
            hint="If several labels can be right at once, give --task multilabel.",
        )
    return np.asarray(np.argmax(rows, axis=1))


def _multi_hot(targets: Array, answer: Answer, where: str) -> Array:
    if targets.ndim == 1 and answer.classes == 1:
        targets = targets[:, None]
    if not _has_classes(targets, answer):
        shown = "classes" if answer.classes is None else answer.classes
        raise _wrong_shape(targets, answer, f"a 0 or 1 for each label, [N, {shown}]", where)
    _check_zeros_and_ones(targets, answer, where)
    return targets.reshape(len(targets), -1).astype(np.float32)


def _has_classes(targets: Array, answer: Answer) -> bool:
    """Whether the targets are `[N, classes]`, or have the output's own shape."""
    if answer.classes is None:
        return targets.ndim == 2
    return targets.shape[1:] in ((answer.classes,), answer.shape)


def _values(targets: Array, answer: Answer, where: str) -> Array:
    shape = answer.shape
    # [N] and [N, 1] are the same values; nothing else is reshaped.
    if shape in ((), (1,)) and targets.shape[1:] in ((), (1,)):
        return targets.reshape(len(targets), *shape).astype(np.float32)
    fits = targets.ndim == len(shape) + 1 and all(
        own in (None, given) for own, given in zip(shape, targets.shape[1:], strict=True)
    )
    if not fits:
        wanted = ", ".join("?" if size is None else str(size) for size in shape)
        raise _wrong_shape(targets, answer, f"values [N, {wanted}]", where)
    return targets.astype(np.float32)


def _check_zeros_and_ones(targets: Array, answer: Answer, where: str) -> None:
    wrong = ~np.isin(targets, (0, 1))
    if wrong.any():
        raise DataError(
            f"{where}: for {_described(answer)} the rows of the targets hold 0 and 1, received"
            f" {targets[wrong][0]}",
            hint="Smoothed labels and probabilities are no right answers: give the true classes.",
        )


def _wrong_shape(targets: Array, answer: Answer, expected: str, where: str) -> DataError:
    return DataError(
        f"{where}: for {_described(answer)} expected {expected}, received targets of shape"
        f" {list(targets.shape)}",
        hint="Correct the targets, or give the task that they belong to: --task.",
    )


def _described(answer: Answer) -> str:
    count = "" if answer.classes is None else f" with {answer.classes} classes"
    return f"the task {answer.task!r}{count}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _plain(text: str) -> str:
    # File names on macOS are decomposed, labels mostly composed.
    return unicodedata.normalize("NFC", text.strip())
