"""Is a calibration set fit to set the ranges of an integer model, an evaluation set to judge?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.datasets.dataset import Dataset
from packager.datasets.sources import ArraySource, read_npy
from packager.errors import DataError

FEW_SAMPLES = 100
# Augmented data leave the declared range a little; unscaled pixels leave it by far.
TOLERATED_EXCESS = 0.05
# Data scaled to 0..1 fill 0.4 % of a declared range of 0..255.
LEAST_SHARE = 0.02
IMAGE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Range:
    """What one input holds over all samples.

    Attributes:
        low: Smallest value.
        high: Largest value.
        whole: Every value is a whole number.
    """

    low: float = np.inf
    high: float = -np.inf
    whole: bool = True

    def widened(self, value: np.ndarray[Any, Any]) -> Range:
        """Returns the range with one sample more; texts have none."""
        if value.dtype.kind == "S":
            return self
        return Range(
            low=min(self.low, float(value.min())),
            high=max(self.high, float(value.max())),
            whole=self.whole and bool(np.array_equal(value, np.round(value))),
        )


def check_calibration(
    calibration: Dataset,
    evaluation: Dataset | None,
    inputs: Sequence[Mapping[str, Any]],
    written: Path,
) -> list[str]:
    """Checks a calibration set before it is used.

    Args:
        calibration: The samples; they must be finite.
        evaluation: No sample may be in both sets, from whatever kind of source.
        inputs: The manifest's `inputs`.
        written: Where `calibration.write_inputs` wrote them: preprocessing once is enough.

    Returns:
        Warnings: few samples, or values that look like pixels that were never scaled.

    Raises:
        DataError: Constant data, values that contradict the declared preprocessing, a sample
            that cannot be read, or one that is in the evaluation set too.
    """
    warnings = _check_used(calibration, evaluation, inputs, written, "calibration")
    if calibration.count < FEW_SAMPLES:
        warnings.append(
            f"{calibration.source}: {calibration.count} calibration samples; "
            f"{FEW_SAMPLES} to 500 give steadier ranges"
        )
    return warnings


def check_evaluation(
    evaluation: Dataset, inputs: Sequence[Mapping[str, Any]], written: Path
) -> list[str]:
    """Checks that an evaluation set's values fit the declared preprocessing.

    Args, returned warnings and errors are those of `check_calibration`.
    """
    return _check_ranges(evaluation, _ranges(evaluation, inputs, written), inputs)


def check_training(
    training: Dataset,
    evaluation: Dataset | None,
    inputs: Sequence[Mapping[str, Any]],
    written: Path,
) -> list[str]:
    """Checks the samples of quantization-aware training, as `check_calibration` does its own."""
    return _check_used(training, evaluation, inputs, written, "training")


def _check_used(
    used: Dataset,
    evaluation: Dataset | None,
    inputs: Sequence[Mapping[str, Any]],
    written: Path,
    kind: str,
) -> list[str]:
    """Checks samples that an artifact is made with, and that are not those that measure it."""
    ranges = _ranges(used, inputs, written)
    _check_not_constant(used, ranges, inputs)
    warnings = _check_ranges(used, ranges, inputs)
    if evaluation is not None:
        _check_disjoint(used, evaluation, kind)
    return warnings


def _ranges(
    dataset: Dataset, inputs: Sequence[Mapping[str, Any]], written: Path
) -> dict[str, Range]:
    names = [spec["name"] for spec in inputs]
    ranges = dict.fromkeys(names, Range())
    arrays = {name: read_npy(written / f"{name}.npy") for name in names}
    samples = ArraySource(dataset.source, arrays)
    for index in range(samples.count):
        for name, value in samples.raw(index).items():
            ranges[name] = ranges[name].widened(value)
    return ranges


def _check_not_constant(
    calibration: Dataset, ranges: Mapping[str, Range], inputs: Iterable[Mapping[str, Any]]
) -> None:
    for spec in inputs:
        found = ranges[spec["name"]]
        # Integer inputs are not quantized; one that never changes may be a switch.
        if spec["dtype"].startswith("float") and found.low >= found.high:
            raise DataError(
                f"{calibration.source}: every value of the input {spec['name']!r} is {found.low:g}",
                hint="Calibrate with real samples: their ranges become the integer model's.",
            )
    if (
        calibration.count > 1
        and len({calibration.digest(i) for i in range(calibration.count)}) == 1
    ):
        raise DataError(
            f"{calibration.source}: all {calibration.count} samples are equal",
            hint="Calibrate with different, real samples.",
        )


def _check_ranges(
    dataset: Dataset, ranges: Mapping[str, Range], inputs: Iterable[Mapping[str, Any]]
) -> list[str]:
    warnings = []
    for spec in inputs:
        found = ranges[spec["name"]]
        if spec.get("image"):
            _check_declared_range(dataset.source, spec, found)
        elif _looks_like_pixels(spec, found):
            warnings.append(
                f"{dataset.source}: the input {spec['name']!r} holds whole numbers from "
                f"{found.low:g} to {found.high:g}, like pixels that were never scaled; if the "
                "model was trained on 0..1, scale them or give --preprocess 0..1"
            )
    return warnings


def _check_declared_range(source: str, spec: Mapping[str, Any], found: Range) -> None:
    low, high = declared_range(spec["image"])
    width = high - low
    text = (
        f"{source}: the input {spec['name']!r} holds {found.low:g} to {found.high:g}, but pixels "
        f"become {low:g} to {high:g} by the declared preprocessing"
    )
    excess = max(low - found.low, found.high - high)
    if excess > TOLERATED_EXCESS * width:
        hint = "Float data are model input and are not scaled again: scale them, or store uint8."
        raise DataError(text, hint=hint)
    if found.high - found.low < LEAST_SHARE * width:
        hint = "Correct --preprocess, or store the pixels as uint8."
        raise DataError(f"{text}: they fill almost none of it", hint=hint)


def _looks_like_pixels(spec: Mapping[str, Any], found: Range) -> bool:
    shape = spec["shape"]
    image_shaped = len(shape) == 4 and shape[-1] in IMAGE_CHANNELS
    is_float = spec["dtype"].startswith("float")
    return image_shaped and is_float and found.whole and found.low >= 0 and 1 < found.high <= 255


def declared_range(image: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the smallest and the largest value that a pixel can become, over all channels."""
    scale, offset = np.broadcast_arrays(
        np.asarray(image["scale"], float), np.asarray(image["offset"], float)
    )
    ends = np.stack([offset, 255 * scale + offset])
    return float(ends.min()), float(ends.max())


def _check_disjoint(calibration: Dataset, evaluation: Dataset, kind: str) -> None:
    own = {calibration.digest(index): index for index in range(calibration.count)}
    shared = [i for i in range(evaluation.count) if evaluation.digest(i) in own]
    if shared:
        first = calibration.where(own[evaluation.digest(shared[0])])
        raise DataError(
            f"{evaluation.source}: {len(shared)} of {evaluation.count} evaluation samples are "
            f"{kind} samples too, the first one is {first}",
            hint="Accuracy on data that set the model's ranges says too much: split them.",
        )
