"""The int8 TFLite file of quantization-aware training, and the trained float model beside it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle import Runtime, to_json
from packager.console import human_size
from packager.errors import PackagerError
from packager.quantize import training_rung
from packager.quantize.qat import checkpoints, process, samples
from packager.quantize.qat.samples import TrainingSamples
from packager.targets import Target, tflite

if TYPE_CHECKING:
    from packager.job import Job


def ask(job: Job) -> TrainingSamples:
    """Reads the training samples, so that wrong ones are told before any work."""
    with job.reporter.stage("prepare the training samples") as detail:
        data = samples.prepare(job.config, job.manifest, job.work / "training", job.reporter.warn)
        detail.append(f"{data.count} {'labelled' if data.labelled else 'unlabelled'}")
    return data


def files(job: Job, target: Target) -> list[Path]:
    """The int8 file, the float model, and the record of the training."""
    name = job.manifest.name
    return [
        job.folder / "tflite" / f"{name}.{target.mode}.tflite",
        job.folder / "qat" / f"{name}.keras",
        job.folder / "qat" / "training.json",
    ]


def checkpoint_folder(job: Job) -> Path:
    """Where an interrupted training of this bundle goes on from."""
    given = job.config.qat.checkpoints
    return given or Path(job.config.output) / f".{job.manifest.name}.qat"


def make(job: Job, data: TrainingSamples) -> None:
    """Trains the twin, and adds its int8 file; with `--auto` where nothing else keeps the gates."""
    (target,) = job.selection.of(__name__)
    if not training_rung.is_needed(job):
        training_rung.spare(job, target)
        return
    _train(job, target, data)
    training_rung.add_step(job, target)


def _train(job: Job, target: Target, data: TrainingSamples) -> None:
    folder = checkpoint_folder(job)
    with (
        job.losing([target], *files(job, target)),
        process.started(job.config.qat, job.reporter, job.work) as child,
    ):
        job.source.again(child)
        child.call("shapes", "setting shapes", input_shapes=job.config.model.input_shape)
        ranges = job.data.calibration_inputs if job.data else None
        with _kept(folder, job):
            outcome = process.train(
                child, job.config, job.manifest, data, folder, ranges, job.reporter
            )
        _write(job, target, child, data, outcome)
        checkpoints.remove(folder)


@contextlib.contextmanager
def _kept(folder: Path, job: Job) -> Iterator[None]:
    """Says what an interrupted training leaves."""
    try:
        yield
    except PackagerError:
        raise
    except BaseException:
        if (folder / checkpoints.NAME).exists():
            job.reporter.warn(
                "the training was interrupted; the same command goes on from its checkpoint in"
                f" {folder}"
            )
        raise


def _write(
    job: Job, target: Target, child: Any, data: TrainingSamples, outcome: dict[str, Any]
) -> None:
    path, float_model, record = files(job, target)
    for file in (path, float_model):
        file.parent.mkdir(exist_ok=True)
    with job.reporter.stage(target.id) as detail:
        raw = job.work / "qat-converter.tflite"
        written = child.call("write", f"converting {target.id}", tflite=raw, keras_file=float_model)
        described = job.litert.call(
            "complete", f"completing {target.id}", reads=["source"], writes=[path],
            source=raw, target=path,
            inputs=written["inputs"], outputs=written["outputs"], mode=target.mode,
        )  # fmt: skip
        if job.config.qat.require_integer:
            samples.refuse_floats(described)
        runtime = Runtime("tflite", described["min_version"])
        card = {**job.manifest.card(), "runtime": to_json(runtime)}
        tflite.embed_card(job, target, path, card)
        artifact = tflite.describe(job.manifest.name, target.mode, path, described, runtime)
        detail.append(human_size(artifact.size_bytes))
        detail.append(f"{described['integer_op_share']:.0%} integer operators")
    for name in written["float_layers"]:
        job.reporter.warn(f"{target.id}: the layer {name} has no int8 form and stays float")
    _record(record, job, data, outcome)
    job.artifacts.append(artifact)
    job.operators[target.id] = described["ops"]


def _record(path: Path, job: Job, data: TrainingSamples, outcome: dict[str, Any]) -> None:
    settings = {k: v for k, v in asdict(job.config.qat).items() if k != "checkpoints"}
    kept = ("objective", "metric", "history", "best_epoch", "stopped", "resumed_at")
    found = {
        "samples": {"source": data.source, "count": data.count, "sha256": data.sha256},
        "settings": settings,
        **{name: outcome[name] for name in kept},
    }
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
