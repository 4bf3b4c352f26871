"""Compares an artifact's outputs with the source model's and with the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import OutputSpec

Array = np.ndarray[Any, Any]

_BLOCK = 1024
# Two regression outputs agree when they differ by at most this share of the output's range.
REGRESSION_TOLERANCE = 0.02
_SMALLEST_SHARE = 0.05
# A source's error below this share of its output's range counts as this much: what grows from
# nothing would have grown without bounds.
_LEAST_ERROR = 0.01


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


def load(folder: Path, output: OutputSpec) -> Array:
    """Returns an output's array `[N, ...]` in a folder of `<output>.npy`, memory-mapped."""
    array: Array = np.load(folder / f"{output.name}.npy", mmap_mode="r")
    return array


def output_range(outputs: Array) -> float:
    """Returns maximum - minimum of outputs `[N, ...]`, always positive.

    At least a twentieth of the outputs' magnitude, so that a limit of 1e-5 never asks for less
    than four units in the last place of a float32; 1 for zeros.
    """
    low, high = np.inf, -np.inf
    for block, _ in _blocks(outputs):
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    return max(high - low, _SMALLEST_SHARE * max(abs(low), abs(high))) or 1.0


def largest_difference(theirs: Array, ours: Array) -> float:
    """The largest difference of two arrays `[N, ...]`, in their units."""
    return _difference(theirs, ours).largest


def measure(
    task: Task,
    source: Path,
    artifact: Path,
    targets: Array | None,
    ranges: Mapping[str, float],
) -> dict[str, float]:
    """Compares two folders of `<output>.npy` arrays `[N, ...]`, block by block.

    Args:
        task: What the outputs mean.
        source: The source model's outputs; they are finite.
        artifact: The artifact's outputs, float32.
        targets: As `datasets.targets.fit` returns them, or None.
        ranges: The `output_range` of each output of the source model, by name.

    Returns:
        `max_abs_diff` and `mean_abs_diff` in the output's units, `range_diff` (the largest
        difference as a share of its output's range), `agreement` (0..1), and with targets
        `accuracy` and `drop` (0..1), or for a regression `mean_abs_error` and `error_growth`, its
        growth as a share of the source's. `non_finite` counts
        the artifact's values that are NaN or infinite; everything else is absent then.
    """
    non_finite = sum(_non_finite(load(artifact, spec)) for spec in task.outputs)
    if non_finite:
        return {"non_finite": float(non_finite)}
    differences = {
        spec.name: _difference(load(source, spec), load(artifact, spec)) for spec in task.outputs
    }
    found = {
        "max_abs_diff": max(d.largest for d in differences.values()),
        "mean_abs_diff": (
            sum(d.total for d in differences.values()) / sum(d.count for d in differences.values())
        ),
        "range_diff": max(d.largest / ranges[name] for name, d in differences.items()),
    }
    theirs, ours = load(source, task.main), load(artifact, task.main)
    found["agreement"] = _agreement(task, theirs, ours, ranges[task.main.name])
    if targets is not None and task.kind in ("classification", "binary", "multilabel"):
        found["accuracy"] = accuracy(task, ours, targets)
        found["drop"] = accuracy(task, theirs, targets) - found["accuracy"]
    elif targets is not None and task.kind == "regression":
        error, least = mean_error(targets, ours), _LEAST_ERROR * ranges[task.main.name]
        source_error = mean_error(targets, theirs)
        found["mean_abs_error"] = error
        found["error_growth"] = (error - source_error) / max(source_error, least)
    return found


def mean_error(targets: Array, outputs: Array) -> float:
    """The mean absolute difference of outputs from targets, both `[N, ...]`, in their units."""
    found = _difference(targets, outputs)
    return found.total / found.count


def accuracy(task: Task, outputs: Array, targets: Array) -> float:
    """Share of right answers: top-1, the right side of the threshold, or right labels."""
    right = total = 0
    for block, rows in _blocks(outputs):
        answers = decide(task, block)
        wanted = np.asarray(targets[rows]).astype(answers.dtype).reshape(answers.shape)
        right += int(np.count_nonzero(answers == wanted))
        total += answers.size
    return right / total


def decide(task: Task, outputs: Array) -> Array:
    """The answer: class numbers int64 `[N]`, or booleans of the outputs' shape.

    A score counts from the threshold on (`>=`), in float64, exactly as in `edge/run.py`.
    """
    if task.kind == "classification":
        return np.asarray(np.argmax(outputs.reshape(len(outputs), -1), axis=1), np.int64)
    scores = outputs.astype(np.float64)
    if task.main.activation == "logits":
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, and tanh cannot overflow.
        scores = (1.0 + np.tanh(scores / 2)) / 2
    return np.asarray(scores >= task.threshold)


@dataclass(frozen=True)
class _Difference:
    largest: float
    total: float
    count: int


def _difference(theirs: Array, ours: Array) -> _Difference:
    largest = total = 0.0
    count = 0
    for block, rows in _blocks(theirs):
        wanted = block.astype(np.float64)
        gap = np.abs(np.asarray(ours[rows], dtype=np.float64).reshape(wanted.shape) - wanted)
        largest, total = max(largest, float(gap.max())), total + float(gap.sum())
        count += gap.size
    return _Difference(largest, total, count)


def _non_finite(outputs: Array) -> int:
    return sum(block.size - int(np.isfinite(block).sum()) for block, _ in _blocks(outputs))


def _agreement(task: Task, theirs: Array, ours: Array, spread: float) -> float:
    same = total = 0
    for block, rows in _blocks(theirs):
        other = np.asarray(ours[rows]).reshape(block.shape)
        if task.kind in ("regression", "none"):
            gap = np.abs(other.astype(np.float64) - block)
            equal = gap <= REGRESSION_TOLERANCE * spread
        else:
            equal = decide(task, other) == decide(task, block)
        same += int(np.count_nonzero(equal))
        total += equal.size
    return same / total


def _blocks(array: Array) -> Iterator[tuple[Array, slice]]:
    for start in range(0, len(array), _BLOCK):
        rows = slice(start, start + _BLOCK)
        yield np.asarray(array[rows]), rows
