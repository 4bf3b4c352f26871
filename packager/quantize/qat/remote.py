"""`packager qat-worker`: trains with the chief, and writes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packager import describe, opening
from packager.bundle import Manifest
from packager.children import scratch
from packager.config import Config
from packager.console import Reporter
from packager.errors import ConfigError
from packager.publish import Staging
from packager.quantize.qat import devices, process, samples
from packager.samples import open_source


def run(config: Config, reporter: Reporter) -> int:
    """Takes part in a training until it ends; returns the number of steps.

    Raises:
        ConfigError: This process is the chief's, or TF_CONFIG or the shared folder is missing.
        PackagerError: The training failed, here or elsewhere.
    """
    config = replace(config, qat=replace(config.qat, strategy="multiworker"))
    folder = _refuse(config)
    found = opening.recognise(config.model)
    name = config.name or found.name
    with (
        scratch("qat-worker") as work,
        process.started(config.qat, reporter, work) as child,
    ):
        opened = opening.open_source(config.model, found, child, work, reporter)
        stage = Staging(work, Path(config.output) / name / "1", 1)
        manifest = describe.manifest_of(config, found, stage, opened)
        data = samples.prepare(config, manifest, work / "training", reporter.warn)
        ranges = _calibration(config, manifest, work)
        outcome = process.train(child, config, manifest, data, folder, ranges, reporter)
    return len(outcome["losses"])


def _refuse(config: Config) -> Path:
    if not devices.cluster():
        raise ConfigError(
            "qat-worker: TF_CONFIG is not set",
            hint="set it as docs/qat.md shows; the chief runs `packager build`",
        )
    if devices.is_chief("multiworker"):
        raise ConfigError(
            "qat-worker: by TF_CONFIG this is the chief, which writes the bundle",
            hint="run `packager build … --qat-strategy multiworker` here",
        )
    if config.qat.checkpoints is None:
        raise ConfigError(
            "qat-worker: which folder do the workers share?",
            hint="give all of them the same: --qat-checkpoints DIR",
        )
    return config.qat.checkpoints


def _calibration(config: Config, manifest: Manifest, work: Path) -> Path | None:
    """The chief's calibration samples: all workers must begin with the same ranges."""
    dataset = open_source(config.calibration, manifest)
    if dataset is None:
        return None
    folder = work / "calibration"
    folder.mkdir()
    dataset.write_inputs(folder)
    return folder
