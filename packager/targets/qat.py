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
    """Trains, unless an earlier build did on the same; see `packager.cache`."""
    with job.losing([target], *files(job, target)):
        raw, float_model = job.work / "qat-converter.tflite", files(job, target)[1]
        float_model.parent.mkdir(exist_ok=True)

        def train() -> dict[str, Any]:
            return _trained(job, data, raw, float_model)

        # The user's code may do what it likes, and so may other workers.
        if job.config.model.runs_code or job.config.qat.strategy == "multiworker":
            trained = train()
        else:
            trained = job.cache.remembered(
                _key(job, data),
                [raw, float_model],
                train,
                keep=lambda found: not found["outcome"]["stopped"],
            )
        _write(job, target, raw, trained["written"])
        _record(files(job, target)[2], job, data, trained["outcome"])


def _key(job: Job, data: TrainingSamples) -> str:
    if job.cache.folder is None:
        return ""
    calibration = job.data.calibration_inputs if job.data else None
    apart = ("checkpoints", "checkpoint_steps", "worker_timeout", "log_device_placement")
    return job.cache.key(
        {
            "model": [job.manifest.source.sha256, job.config.model.signature],
            "settings": {k: v for k, v in asdict(job.config.qat).items() if k not in apart},
            "samples": [job.cache.digest(data.folder), data.labelled],
            "calibration": job.cache.digest(calibration) if calibration else "",
            "ends": [to_json(job.manifest.inputs), to_json(job.manifest.outputs)],
            "task": [job.manifest.task, job.manifest.threshold],
            "shapes": job.config.model.input_shape,
        }
    )


def _trained(job: Job, data: TrainingSamples, raw: Path, float_model: Path) -> dict[str, Any]:
    """Trains the twin in a process of its own; writes its int8 file and its float model."""
    folder = checkpoint_folder(job)
    with process.started(job.config.qat, job.reporter, job.work) as child:
        job.source.again(child)
        child.call("shapes", "setting shapes", input_shapes=job.config.model.input_shape)
        ranges = job.data.calibration_inputs if job.data else None
        with _kept(folder, job):
            outcome = process.train(
                child, job.config, job.manifest, data, folder, ranges, job.reporter
            )
        stage = "converting the trained model"
        written = child.call("write", stage, tflite=raw, keras_file=float_model)
    checkpoints.remove(folder)
    return {"outcome": outcome, "written": written}


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


def _write(job: Job, target: Target, raw: Path, written: dict[str, Any]) -> None:
    path = files(job, target)[0]
    path.parent.mkdir(exist_ok=True)
    with job.reporter.stage(target.id) as detail:
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
