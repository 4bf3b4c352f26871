"""Finds the samples for a finished bundle again: calibration, evaluation, or its golden samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from packager.bundle import Manifest, read_json
from packager.children import Child
from packager.config import DataSource
from packager.datasets import Dataset
from packager.datasets.targets import Answer
from packager.errors import BundleError, DataError
from packager.quantize import halves
from packager.quantize.plan import ACTIVATIONS
from packager.quantize.pool import Subject
from packager.samples import open_source, write_golden_inputs

Array = np.ndarray[Any, Any]
FLOAT = "tflite/float32"
# More samples than this make the ranges no better, and each costs an inference.
CALIBRATION_LIMIT = 300
EVALUATION_LIMIT = 500


@dataclass(frozen=True)
class Given:
    """What the user named: sources of data, and how many samples to evaluate."""

    calibration: str | None = None
    evaluation: str | None = None
    samples: int | None = None


@dataclass(frozen=True)
class Found:
    """The samples, as files.

    Attributes:
        subject: The float file with its samples.
        remarks: Where they come from, and what that means for the numbers.
    """

    subject: Subject
    remarks: tuple[str, ...]


def find(
    bundle: Path,
    manifest: Manifest,
    given: Given,
    work: Path,
    litert: Child,
    *,
    halve: bool = False,
) -> Found:
    """Prepares the float file of a bundle for trials.

    What the user names comes first; then the files that the bundle's package.yaml names, where
    they are still there; at last the golden samples.

    Args:
        bundle: The bundle's folder.
        manifest: Its manifest.
        given: What the user named.
        work: A scratch folder.
        litert: The LiteRT child.
        halve: Also calibrate with each half of the samples; see `halves`.

    Raises:
        BundleError: The bundle has no float32 TFLite file.
        DataError: A source cannot be used.
        UnsupportedError: The file has loops, which are not calibrated.
    """
    model = _float_file(bundle, manifest)
    named = _named(bundle)
    remarks: list[str] = []
    limit = given.samples or EVALUATION_LIMIT
    answer = Answer(manifest.task, manifest.outputs[0].shape[1:])
    calibration = open_source(_source(given.calibration or named.get("calibration")), manifest)
    evaluation = open_source(_source(given.evaluation or named.get("evaluation")), manifest, answer)
    golden = _golden(bundle, manifest, work) if not (calibration and evaluation) else None
    ranges_from = _write(calibration, work / "calibration", CALIBRATION_LIMIT)
    inputs = _write(evaluation, work / "evaluation", limit)
    targets = None
    if evaluation is not None and evaluation.targets is not None:
        targets = evaluation.targets[_rows(evaluation, limit)]
    elif golden is not None and evaluation is None:
        targets = golden.targets
    remarks += _about_calibration(calibration, manifest, given)
    remarks += _about_evaluation(evaluation, golden, targets, manifest)
    if golden is not None:
        ranges_from, inputs = ranges_from or golden.inputs, inputs or golden.inputs
    if ranges_from is None or inputs is None:
        raise DataError(f"{bundle} has no samples", hint="give --calibration and --evaluation")
    ranges = calibrate(litert, model, ranges_from, work)
    if halve:
        ranges |= halves.calibrate(litert, model, ranges_from, work)
    subject = Subject(manifest, model, ranges, inputs, targets, known=layer_names(bundle))
    return Found(subject, tuple(remarks))


def calibrate(litert: Child, model: Path, inputs: Path, work: Path) -> dict[str, Path]:
    """Records the ranges by every algorithm for activations."""
    ranges = {name: work / f"ranges.{name}.json" for name in ACTIVATIONS}
    for name, path in ranges.items():
        litert.call(
            "calibrate",
            "calibrating",
            model=model,
            samples=inputs,
            ranges=path,
            algorithm=name,
        )
    return ranges


def layer_names(bundle: Path) -> tuple[str, ...]:
    """Names of the Keras layers, from the bundle's report or its TF.js model, where it has one."""
    report = bundle / "report/report.json"
    measured = read_json(report).get("measured") if report.is_file() else None
    if measured and measured.get("layer_names"):
        return tuple(measured["layer_names"])
    path = bundle / "tfjs/layers/model.json"
    if not path.is_file():
        return ()
    topology = read_json(path).get("modelTopology") or {}
    return tuple(dict.fromkeys(_names(topology.get("model_config", topology))))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        config = value.get("config")
        if isinstance(config, dict) and "layers" in config:
            for layer in config["layers"]:
                yield from _names(layer)
        elif isinstance(config, dict) and isinstance(config.get("name"), str):
            yield config["name"]


def _float_file(bundle: Path, manifest: Manifest) -> Path:
    for artifact in manifest.artifacts:
        if artifact.id == FLOAT:
            return bundle / artifact.path
    raise BundleError(
        f"{manifest.name}/{manifest.version} has no {FLOAT}, from which the trials are made",
        hint="build it again with --only tflite",
    )


def _named(bundle: Path) -> dict[str, str]:
    """Data files that the bundle's package.yaml names and that are there; code is not run."""
    path = bundle / "package.yaml"
    if not path.is_file():
        return {}
    stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for key in ("calibration", "evaluation"):
        section = stored.get(key) if isinstance(stored, dict) else None
        source = section.get("source") if isinstance(section, dict) else None
        if isinstance(source, str) and (bundle / source).exists():
            found[key] = str((bundle / source).resolve())
    return found


def _source(text: str | None) -> DataSource | None:
    return None if text is None else DataSource(text)


def _about_calibration(
    calibration: Dataset | None, manifest: Manifest, given: Given
) -> Iterator[str]:
    if calibration is None:
        yield (
            "no calibration data: the ranges come from the golden samples, and are narrower than"
            " real ones; give --calibration"
        )
        return
    stored = manifest.calibration
    if given.calibration is None and (stored is None or stored.count != calibration.count):
        yield f"{calibration.source} has changed since the bundle was built"
    yield f"calibration: {calibration.source}, {calibration.count} samples in it"


def _about_evaluation(
    evaluation: Dataset | None, golden: _Golden | None, targets: Array | None, manifest: Manifest
) -> Iterator[str]:
    if evaluation is not None:
        yield f"evaluation: {evaluation.source}, {evaluation.count} samples in it"
    elif golden is not None:
        yield (
            f"no evaluation data: measured on the bundle's {golden.count} golden samples"
            + (", which are random numbers" if golden.synthetic else "")
            + "; give --evaluation for numbers that mean something"
        )
    if targets is None:
        yield "no labels: agreement with the float file counts, not accuracy"
    elif manifest.task in ("classification", "binary") and len(np.unique(targets)) == 1:
        yield (
            f"all evaluation samples are of class {int(targets.reshape(-1)[0])}: a file that always"
            " answers it would seem perfect; give --evaluation with every class"
        )


def _rows(dataset: Dataset, limit: int) -> list[int]:
    """Seeded choice of samples: the first ones may be of one class."""
    if limit >= dataset.count:
        return list(range(dataset.count))
    chosen = np.random.default_rng(0).choice(dataset.count, limit, replace=False)
    return sorted(int(i) for i in chosen)


def _write(dataset: Dataset | None, folder: Path, limit: int) -> Path | None:
    if dataset is None:
        return None
    folder.mkdir()
    dataset.write_inputs(folder, _rows(dataset, limit))
    return folder


@dataclass(frozen=True)
class _Golden:
    inputs: Path
    targets: Array | None
    count: int
    synthetic: bool


def _golden(bundle: Path, manifest: Manifest, work: Path) -> _Golden | None:
    if manifest.golden is None:
        return None
    stored = read_json(bundle / manifest.golden.path)
    samples = stored["samples"]
    files = [sample["inputs"] for sample in samples]
    folder = write_golden_inputs(files, manifest, bundle, work / "golden")
    labels = [sample.get("label") for sample in samples]
    known = all(label is not None for label in labels) and not manifest.golden.synthetic
    targets = np.array(labels, np.int64) if known else None
    return _Golden(folder, targets, len(samples), manifest.golden.synthetic)
