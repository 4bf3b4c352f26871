"""The samples of a build: golden, evaluation and calibration, as files for the runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from packager.bundle import Calibration, InputSpec, Manifest, to_json
from packager.config import Config, DataSource
from packager.datasets import Dataset, open_dataset
from packager.datasets.checks import check_calibration, check_evaluation
from packager.datasets.targets import Answer
from packager.preprocess import load_image, preprocess
from packager.verify import golden
from packager.verify.golden import Sample

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Samples:
    """Where a build's samples are.

    The folders hold `<input name>.npy`, `[N, ...]`, in the model's dtypes.

    Attributes:
        golden: The golden samples; their raw files are in the bundle already.
        golden_inputs: Folder of their model inputs.
        synthetic: The golden samples are random.
        evaluation_inputs: Folder of the evaluation set's model inputs, or None.
        evaluation_count: Number of evaluation samples.
        targets: The evaluation set's targets, or None.
        calibration: Provenance of the calibration samples, or None.
        calibration_inputs: Folder of the calibration set's model inputs, or None.
    """

    golden: tuple[Sample, ...]
    golden_inputs: Path
    synthetic: bool
    evaluation_inputs: Path | None
    evaluation_count: int
    targets: Array | None
    calibration: Calibration | None
    calibration_inputs: Path | None

    def summary(self) -> str:
        """One line for the console."""
        parts = [f"{len(self.golden)} golden" + (" (synthetic)" if self.synthetic else "")]
        if self.evaluation_inputs is not None:
            parts.append(f"{self.evaluation_count} evaluation")
        if self.calibration is not None:
            parts.append(f"{self.calibration.count} calibration")
        return ", ".join(parts)


def prepare(
    config: Config, manifest: Manifest, folder: Path, work: Path, warn: Callable[[str], None]
) -> Samples:
    """Reads, checks and preprocesses all data.

    Args:
        config: The configuration.
        manifest: The manifest so far: inputs, labels.
        folder: The bundle's folder, which gets the golden samples' raw files.
        work: A scratch folder.
        warn: Called with each warning.

    Raises:
        DataError: A source cannot be used.
    """
    main = manifest.outputs[0]
    evaluation = open_source(config.evaluation, manifest, Answer(manifest.task, main.shape[1:]))
    calibration = open_source(config.calibration, manifest)
    evaluation_inputs = _write(evaluation, work / "evaluation")
    calibration_inputs = _write(calibration, work / "calibration")
    inputs = [to_json(spec) for spec in manifest.inputs]
    if evaluation is not None and evaluation_inputs is not None:
        for text in check_evaluation(evaluation, inputs, evaluation_inputs):
            warn(text)
    if calibration is not None and calibration_inputs is not None:
        for text in check_calibration(calibration, evaluation, inputs, calibration_inputs):
            warn(text)
    if evaluation is not None and evaluation.targets is not None and manifest.task == "none":
        warn(
            "the evaluation labels are not used: the task is 'none'. Give --labels, or --task"
            " classification, binary, multilabel or regression"
        )
    chosen = _golden(config, manifest, evaluation, folder)
    return Samples(
        golden=chosen,
        golden_inputs=write_golden_inputs(
            [sample.files for sample in chosen], manifest, folder, work / "golden"
        ),
        synthetic=evaluation is None,
        evaluation_inputs=evaluation_inputs,
        evaluation_count=evaluation.count if evaluation else 0,
        targets=evaluation.targets if evaluation else None,
        calibration=_provenance(calibration),
        calibration_inputs=calibration_inputs,
    )


def read_raw(path: Path, spec: InputSpec) -> Array:
    """Reads one golden input file as the model's input, without the batch axis."""
    if path.suffix == ".png":
        return preprocess(path, to_json(spec))
    return np.asarray(np.load(path, allow_pickle=False))


@overload
def open_source(
    source: DataSource, manifest: Manifest, answer: Answer | None = None
) -> Dataset: ...


@overload
def open_source(
    source: DataSource | None, manifest: Manifest, answer: Answer | None = None
) -> Dataset | None: ...


def open_source(
    source: DataSource | None, manifest: Manifest, answer: Answer | None = None
) -> Dataset | None:
    """Opens a data set for a model's inputs; None where none is named.

    Args:
        source: What the user named.
        manifest: Its `inputs` and `labels` count.
        answer: What the targets should be; None: targets are not wanted.

    Raises:
        DataError: It cannot be used.
    """
    if source is None:
        return None
    return open_dataset(
        source.source,
        inputs=[to_json(spec) for spec in manifest.inputs],
        labels=list(manifest.labels),
        limit=source.limit,
        answer=answer,
    )


def _write(dataset: Dataset | None, folder: Path) -> Path | None:
    if dataset is None:
        return None
    folder.mkdir()
    dataset.write_inputs(folder)
    return folder


def _provenance(dataset: Dataset | None) -> Calibration | None:
    if dataset is None:
        return None
    return Calibration(dataset.source, dataset.count, dataset.sha256, "min_max")


def _golden(
    config: Config, manifest: Manifest, evaluation: Dataset | None, folder: Path
) -> tuple[Sample, ...]:
    count, seed = config.golden.count, config.golden.seed
    labels: list[int | None] = [None] * count
    if evaluation is None:
        rows = _synthetic(config, manifest)
    else:
        targets = evaluation.targets if manifest.task in ("classification", "binary") else None
        indices = golden.choose(evaluation.count, targets, count, seed)
        rows = [_raw(evaluation, i, manifest) for i in indices]
        labels = [None if targets is None else int(targets[i]) for i in indices]
    return tuple(
        Sample(
            id=f"{i:03d}",
            files={
                name: golden.write_raw(folder, f"{i:03d}", name, raw.values, is_pixels=raw.pixels)
                for name, raw in row.items()
            },
            label=label,
        )
        for i, (row, label) in enumerate(zip(rows, labels, strict=True))
    )


@dataclass(frozen=True)
class _Raw:
    """One input of a sample: uint8 pixels, or the model's input without the batch axis."""

    values: Array
    pixels: bool


def _synthetic(config: Config, manifest: Manifest) -> list[dict[str, _Raw]]:
    count, seed = config.golden.count, config.golden.seed
    shapes = config.model.input_shape
    arrays = {
        s.name: golden.synthetic(
            s,
            shapes.get(s.name) or shapes.get(s.source_name) or shapes.get("") or s.shape,
            count,
            (seed, position),
        )
        for position, s in enumerate(manifest.inputs)
    }
    return [
        {s.name: _Raw(arrays[s.name][i], s.image is not None) for s in manifest.inputs}
        for i in range(count)
    ]


def _raw(dataset: Dataset, index: int, manifest: Manifest) -> dict[str, _Raw]:
    """A sample's pixels where it has pixels, else its model input."""
    raw = dataset.raw(index)
    values: dict[str, _Raw] = {}
    for spec in manifest.inputs:
        value = raw[spec.name]
        if isinstance(value, Path) or (value.dtype == np.uint8 and spec.image is not None):
            values[spec.name] = _Raw(load_image(value), pixels=True)
        else:
            values[spec.name] = _Raw(dataset.sample(index)[spec.name], pixels=False)
    return values


def write_golden_inputs(
    samples: Sequence[Mapping[str, str]], manifest: Manifest, bundle: Path, folder: Path
) -> Path:
    """Preprocesses the golden samples from their stored files, as every runner does.

    Args:
        samples: The files of each sample by input name.
        manifest: Its `inputs` count.
        bundle: The folder that the files are relative to.
        folder: A new folder; it gets `<input>.npy` `[N, ...]`.

    Returns:
        The folder.
    """
    folder.mkdir()
    for spec in manifest.inputs:
        rows = [read_raw(bundle / files[spec.name], spec) for files in samples]
        np.save(folder / f"{spec.name}.npy", np.stack(rows))
    return folder
