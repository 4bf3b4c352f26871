"""Compares an artifact's outputs with the source model's and with the labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import OutputSpec

Array = np.ndarray[Any, Any]

_BLOCK = 1024
# Two regression outputs agree when they differ by at most this share of the output's range.
REGRESSION_TOLERANCE = 0.02


@dataclass(frozen=True)
class Task:
    """What the outputs mean; `threshold` is a probability."""

    kind: str
    outputs: tuple[OutputSpec, ...]
    threshold: float = 0.5

    @property
    def main(self) -> OutputSpec:
        """The output that carries the answer."""
        return self.outputs[0]


def measure(task: Task, source: Path, artifact: Path, targets: Array | None) -> dict[str, float]:
    """Compares two folders of `<output>.npy` arrays `[N, ...]`, block by block.

    Args:
        task: What the outputs mean.
        source: The source model's outputs.
        artifact: The artifact's outputs, float32.
        targets: Labels `[N]`, multi-hot labels `[N, classes]`, values, or None.

    Returns:
        `max_abs_diff` and `mean_abs_diff` in the output's units, `range_diff` (the largest
        difference as a share of its output's range), `agreement` (0..1), and with targets
        `accuracy` and `drop` (0..1), or `mean_abs_error` for a regression. `non_finite` counts
        the artifact's values that are NaN or infinite; everything else is absent then.
    """
    differences = [_difference(spec.name, source, artifact) for spec in task.outputs]
    non_finite = sum(d.non_finite for d in differences)
    if non_finite:
        return {"non_finite": float(non_finite)}
    found = {
        "max_abs_diff": max(d.largest for d in differences),
        "mean_abs_diff": sum(d.total for d in differences) / sum(d.count for d in differences),
        "range_diff": max(d.largest / d.spread for d in differences),
    }
    ours = np.load(artifact / f"{task.main.name}.npy", mmap_mode="r")
    theirs = np.load(source / f"{task.main.name}.npy", mmap_mode="r")
    found["agreement"] = _agreement(task, theirs, ours)
    if targets is not None and task.kind in ("classification", "binary", "multilabel"):
        reference = accuracy(task, theirs, targets)
        found["accuracy"] = accuracy(task, ours, targets)
        found["drop"] = reference - found["accuracy"]
    elif targets is not None and task.kind == "regression":
        found["mean_abs_error"] = float(np.mean(np.abs(ours - _like(targets, ours))))
    return found


def accuracy(task: Task, outputs: Array, targets: Array) -> float:
    """Share of right answers: top-1, the right side of the threshold, or right labels."""
    right = 0.0
    for block, rows in _blocks(outputs):
        answers = decide(task, block)
        wanted = np.asarray(targets[rows])
        if task.kind != "classification":
            wanted = _like(wanted, answers).astype(bool)
        right += float(np.sum(np.mean(answers == wanted, axis=tuple(range(1, answers.ndim)))))
    return right / len(outputs)


def decide(task: Task, outputs: Array) -> Array:
    """The answer: class numbers `[N]`, or booleans of the outputs' shape."""
    if task.kind == "classification":
        return np.asarray(np.argmax(outputs.reshape(len(outputs), -1), axis=1))
    if task.main.activation == "logits":
        # sigmoid(x) > t  <=>  x > log(t / (1 - t)), without overflow.
        return np.asarray(outputs > np.log(task.threshold / (1 - task.threshold)))
    return np.asarray(outputs > task.threshold)


@dataclass(frozen=True)
class _Difference:
    largest: float
    total: float
    count: int
    spread: float
    non_finite: int


def _difference(name: str, source: Path, artifact: Path) -> _Difference:
    theirs = np.load(source / f"{name}.npy", mmap_mode="r")
    ours = np.load(artifact / f"{name}.npy", mmap_mode="r")
    largest = total = 0.0
    count = non_finite = 0
    low, high = np.inf, -np.inf
    for block, rows in _blocks(theirs):
        wanted = block.astype(np.float64)
        got = np.asarray(ours[rows], dtype=np.float64).reshape(wanted.shape)
        non_finite += int(got.size - np.count_nonzero(np.isfinite(got)))
        gap = np.abs(got - wanted)
        largest, total = max(largest, float(gap.max())), total + float(gap.sum())
        count += gap.size
        low, high = min(low, float(wanted.min())), max(high, float(wanted.max()))
    # A constant output has no range; its magnitude stands in.
    spread = high - low or max(abs(high), 1.0)
    return _Difference(largest, total, count, spread, non_finite)


def _agreement(task: Task, theirs: Array, ours: Array) -> float:
    same = 0.0
    tolerance = REGRESSION_TOLERANCE * float(np.ptp(theirs) or 1.0)
    for block, rows in _blocks(theirs):
        other = np.asarray(ours[rows]).reshape(block.shape)
        if task.kind in ("regression", "none"):
            equal = np.abs(other - block) <= tolerance
        else:
            equal = decide(task, other) == decide(task, block)
        same += float(np.sum(np.mean(equal, axis=tuple(range(1, equal.ndim)))))
    return same / len(theirs)


def _blocks(array: Array) -> Iterator[tuple[Array, slice]]:
    for start in range(0, len(array), _BLOCK):
        rows = slice(start, start + _BLOCK)
        yield np.asarray(array[rows]), rows


def _like(targets: Array, outputs: Array) -> Array:
    """Targets in the shape of the outputs: `[N]` beside `[N, 1]`, for instance."""
    return np.asarray(targets).reshape(outputs.shape)
