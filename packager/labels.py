"""Class labels: one per line of a UTF-8 file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packager.errors import DataError


def read_labels(path: Path) -> list[str]:
    """Returns the labels in `path`, in the order of the lines.

    UTF-8 with or without a byte order mark, and any line ends. Space around a label and empty
    lines at the end do not count.

    Raises:
        DataError: The file is missing, empty or not UTF-8 text, or a label is empty or occurs
            twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: the labels cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text (byte {error.start})", hint="Save the labels as UTF-8."
        ) from error
    if "\0" in text:
        raise DataError(f"{path}: a binary file, not one label per line")
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    check_distinct(lines, str(path))
    return lines


def check_distinct(labels: Sequence[str], where: str) -> None:
    """Checks that there are labels, none empty and none twice.

    Raises:
        DataError: They are not like that; `where` names them.
    """
    if not labels:
        raise DataError(f"{where}: no labels in it", hint="Write one label per line.")
    if "" in labels:
        raise DataError(
            f"{where}:{labels.index('') + 1}: an empty line between labels",
            hint="Remove it: a label's line number is its class number.",
        )
    repeated, times = Counter(labels).most_common(1)[0]
    if times > 1:
        raise DataError(
            f"{where}: the label {repeated!r} occurs {times} times",
            hint="Give each class its own label.",
        )


def check_labels(labels: Sequence[str], outputs: Sequence[Mapping[str, Any]], task: str) -> None:
    """Checks the number of labels against the model's first output.

    Args:
        labels: May be empty: then class numbers are shown.
        outputs: The manifest's `outputs`.
        task: The manifest's `task`.

    Raises:
        DataError: `classification` and `multilabel` need one label per value, `binary` needs
            two labels or one, and the other tasks take none.
    """
    if not labels:
        return
    if task in ("regression", "none"):
        raise DataError(
            f"{len(labels)} labels, but the task {task!r} has no classes",
            hint="Leave the labels out, or give the task: classification, binary, multilabel.",
        )
    size = outputs[0]["shape"][-1]
    if task == "binary":
        if len(labels) > 2:
            raise DataError(
                f"{len(labels)} labels, but a binary model takes two (negative, positive) or one",
                hint="Correct the labels file.",
            )
        return
    if size is not None and size != len(labels):
        raise DataError(
            f"{len(labels)} labels, but the output {outputs[0]['name']!r} has {size} values",
            hint=_count_hint(len(labels), size),
        )


def _count_hint(labels: int, size: int) -> str:
    if labels == size + 1:
        return "Is the first label a background class that this model does not have?"
    return "The labels file needs one line per class, in the order of the output."
