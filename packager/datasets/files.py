"""Data sets in files: a folder of images, and tables in `.csv`."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packager.datasets.sources import IMAGE_SUFFIXES, ArraySource, FileSource, Source, Spool
from packager.datasets.targets import Answer, folder_classes
from packager.errors import DataError

Array = np.ndarray[Any, Any]

TARGET_COLUMNS = ("label", "target")
PATH_COLUMN = "path"


def open_folder(
    folder: Path, input_name: str, labels: Sequence[str], answer: Answer | None
) -> tuple[FileSource, Array | None, tuple[str, ...]]:
    """Opens images in `folder` itself, or in one folder per class.

    Returns:
        The source in the order of the paths; class numbers int64 [N], or None for a flat folder
        or without `answer`; the names of the class folders, sorted.

    Raises:
        DataError: No images, images on both levels, or a folder that no label names.
    """
    flat = _images(folder)
    groups = {child.name: _images(child) for child in _visible(folder) if child.is_dir()}
    groups = {name: paths for name, paths in groups.items() if paths}
    if flat and groups:
        raise DataError(
            f"{folder}: {len(flat)} images beside class folders ({_shown(list(groups))})",
            hint="Move each image into a class folder, or all images into one folder.",
        )
    if not flat and not groups:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(
            f"{folder}: no images here; looked for {suffixes}",
            hint="give a folder that holds images, or one folder of images per class",
        )
    paths = flat + [path for group in groups.values() for path in group]
    source = FileSource(input_name, tuple(paths))
    if flat or answer is None:
        return source, None, tuple(groups)
    numbers = folder_classes(list(groups), labels, answer, str(folder))
    targets = np.repeat(np.array(numbers, np.int64), [len(group) for group in groups.values()])
    return source, targets, tuple(groups)


def _visible(folder: Path) -> list[Path]:
    try:
        children = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    return [child for child in children if not child.name.startswith(".")]


def _images(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.suffix.lower() in IMAGE_SUFFIXES]


def open_csv(
    path: Path, spec: Mapping[str, Any], labels: Sequence[str], *, with_targets: bool
) -> tuple[Source, Array | None]:
    """Opens a table with a header: image paths, or one column per value of the only input.

    Args:
        path: UTF-8, with or without a byte order mark. A column `path` holds image files,
            relative to the table; else all columns but the target's are the input, flattened.
        spec: The input, as in the manifest.
        labels: The model's labels; may be empty.
        with_targets: Read the column `label` or `target`.

    Returns:
        The source, and the target column as texts or numbers [N], or None.

    Raises:
        DataError: Not a table, or a row that does not fit.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            return _read_table(path, header, rows, spec, labels, with_targets=with_targets)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a UTF-8 table: {error}") from error


def _read_table(
    path: Path,
    header: list[str],
    rows: Iterator[list[str]],
    spec: Mapping[str, Any],
    labels: Sequence[str],
    *,
    with_targets: bool,
) -> tuple[Source, Array | None]:
    lowered = [name.lower() for name in header]
    target = next((lowered.index(name) for name in TARGET_COLUMNS if name in lowered), None)
    texts: list[str] = []
    full = _full_rows(path, rows, len(header), target, texts)
    source: Source
    if PATH_COLUMN in lowered:
        column = lowered.index(PATH_COLUMN)
        paths = tuple(path.parent / row[column].strip() for _, row in full)
        source = FileSource(spec["name"], paths)
    else:
        features = [column for column in range(len(header)) if column != target]
        source = _read_features(path, header, features, full, spec)
    return source, _target_column(texts, labels) if texts and with_targets else None


def _read_features(
    path: Path,
    header: list[str],
    features: list[int],
    rows: Iterator[tuple[int, list[str]]],
    spec: Mapping[str, Any],
) -> ArraySource:
    shape = _static_shape(path, [header[i] for i in features], spec)
    with Spool(str(path)) as spool:
        for line, row in rows:
            spool.append(_numbers([row[i] for i in features], f"{path}:{line}"))
        table = spool.finish()
    table = table.reshape(len(table), *shape)
    return ArraySource(str(path), {spec["name"]: table})


def _static_shape(path: Path, columns: list[str], spec: Mapping[str, Any]) -> list[int]:
    shape = spec["shape"][1:]
    if None in shape:
        message = f"{path}: the input {spec['name']!r} has the free shape {shape}"
        raise DataError(message, hint="Give --input-shape, or the data as .npz.")
    if math.prod(shape) != len(columns):
        raise DataError(
            f"{path}: {len(columns)} feature columns ({_shown(columns)}), but the input "
            f"{spec['name']!r} of shape {shape} takes {math.prod(shape)} values",
            hint="The target column must be called label or target, image files' column path.",
        )
    return list(shape)


def _full_rows(
    path: Path, rows: Iterator[list[str]], width: int, target: int | None, texts: list[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and cells; the target's cell is added to `texts` on the way."""
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != width:
            raise DataError(f"{path}:{line}: expected {width} columns, received {len(row)}")
        if target is not None:
            texts.append(row[target].strip())
        yield line, row


def _numbers(cells: list[str], where: str) -> Array:
    try:
        return np.array([float(cell) for cell in cells], np.float32)
    except ValueError as error:
        raise DataError(f"{where}: not a number: {error}") from error


def _target_column(texts: list[str], labels: Sequence[str]) -> Array:
    """Without labels a column of numbers is a value to regress, or a class number."""
    if not labels:
        try:
            numbers = np.array([float(text) for text in texts])
        except ValueError:
            return np.array(texts)
        whole = np.isfinite(numbers).all() and np.array_equal(numbers, np.round(numbers))
        return numbers.astype(np.int64) if whole else numbers
    return np.array(texts)


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
