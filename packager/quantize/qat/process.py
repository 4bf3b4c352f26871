"""Starts the training process and shows what it tells. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packager.bundle import Manifest
from packager.children import Child
from packager.config import Config
from packager.console import Reporter
from packager.errors import ChildCrashed, ConversionError
from packager.quantize.qat import samples
from packager.quantize.qat.samples import TrainingSamples
from packager.quantize.qat.settings import Qat


@contextlib.contextmanager
def started(settings: Qat, reporter: Reporter, work: Path) -> Iterator[Child]:
    """Yields the training process, with its devices set up."""
    child = Child(
        "packager.quantize.qat.worker",
        verbose=reporter.verbose,
        temporary=work,
        # Workers of one job reach each other by the network, and find each other by TF_CONFIG.
        trusted=True,
        # Training may use the GPUs that the user's shell allows.
        environment={"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")},
    )
    with child:
        given = {key: value for key, value in asdict(settings).items() if key != "checkpoints"}
        with _explained(settings):
            devices = child.call("start", "setting up the devices", keep=True, settings=given)
        if settings.strategy != "none" and not reporter.quiet:
            reporter.rich.print(f"  {settings.strategy} on {', '.join(devices)}", markup=False)
        yield child


def train(
    child: Child,
    config: Config,
    manifest: Manifest,
    data: TrainingSamples,
    checkpoints: Path,
    calibration: Path | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """Trains in the process, whose model is open, and shows how it goes.

    Raises:
        PackagerError: What the training raised.
    """
    answer = {
        "task": manifest.task,
        "activations": [output.activation for output in manifest.outputs],
        "threshold": manifest.threshold,
        "labelled": data.labelled,
    }
    with Display(reporter) as display:
        child.on_event = display.show
        with _explained(config.qat):
            outcome: dict[str, Any] = child.call(
                "train",
                "training",
                samples=data.folder,
                answer=answer,
                checkpoints=checkpoints,
                digest=samples.digest(manifest, data, config.qat),
                calibration=calibration,
            )
    if outcome["stopped"]:
        reporter.warn(f"training stopped: {outcome['stopped']}")
    return outcome


@contextlib.contextmanager
def _explained(settings: Qat) -> Iterator[None]:
    """Says of a process that ended itself why it did; see `worker._Watch`."""
    try:
        yield
    except ChildCrashed as error:
        if settings.strategy != "multiworker":
            raise
        raise ConversionError(
            f"distributed training: {error.message}; it ends itself after"
            f" {settings.worker_timeout} s without progress, when a worker is gone or never came",
            hint="look at the other workers and at TF_CONFIG, then start all again: the training"
            " goes on from its last checkpoint",
        ) from error


class Display:
    """The progress of a training: a bar on a terminal, and one line per epoch."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._bar: Any = None

    def __enter__(self) -> Display:
        import sys

        if not self._reporter.quiet and sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(),
                TimeRemainingColumn(), console=self._reporter.rich, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("training", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, event: dict[str, Any]) -> None:
        """Shows one thing that the process told."""
        if "resumed" in event:
            text = f"go on after step {event['resumed']} of {event['of']}"
            self._reporter.done("checkpoint found", 0.0, text)
        elif "epoch_done" in event:
            name = f"epoch {event['epoch_done']}/{event['epochs']}"
            if not event["epoch_done"]:
                name = "before training"
            self._reporter.done(name, event["seconds"], _figures(event))
        elif self._bar is not None:
            self._bar.update(
                self._task,
                completed=event["step"],
                total=event["of"],
                description=f"epoch {event['epoch']}  {_figures(event)}",
            )


def _figures(event: dict[str, Any]) -> str:
    known = ("loss", "accuracy", "agreement", "val_loss", "val_accuracy", "val_agreement")
    return ", ".join(f"{name} {event[name]:.4f}" for name in known if name in event)
