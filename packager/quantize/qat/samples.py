"""The training samples as files for the training process. Imports no TensorFlow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import Manifest, to_json
from packager.config import Config
from packager.datasets.checks import check_training
from packager.datasets.targets import Answer
from packager.errors import ConfigError, DataError, UnsupportedError
from packager.quantize.qat.settings import Qat
from packager.samples import open_source

_NO_TARGETS = ("none",)


@dataclass(frozen=True)
class TrainingSamples:
    """Training samples on disk.

    Attributes:
        folder: `<input>.npy` `[N, ...]`, and `targets.npy` for a labelled loss.
        source: As in `Dataset`.
        count: Number of samples.
        sha256: As in `Dataset`.
        labelled: The loss uses targets.
    """

    folder: Path
    source: str
    count: int
    sha256: str
    labelled: bool


def prepare(
    config: Config, manifest: Manifest, folder: Path, warn: Callable[[str], None]
) -> TrainingSamples:
    """Reads, checks and preprocesses the training samples.

    Raises:
        ConfigError: The loss does not fit the task.
        DataError: The samples cannot be used, or a labelled loss has no labels.
    """
    if config.train is None:
        raise ConfigError(
            "quantization-aware training needs samples", hint="give --train DIR_OR_NPZ"
        )
    loss = config.qat.loss
    if loss == "labels" and manifest.task in _NO_TARGETS:
        raise ConfigError(
            f"qat: the loss `labels` needs a task with targets, and the task is {manifest.task!r}",
            hint="give --task or --labels, or learn from the float model: --qat-loss distill",
        )
    wants = loss != "distill" and manifest.task not in _NO_TARGETS
    inputs = [to_json(spec) for spec in manifest.inputs]
    answer = Answer(manifest.task, manifest.outputs[0].shape[1:])
    training = open_source(config.train, manifest, answer if wants else None)
    labelled = wants and training.targets is not None
    if loss == "labels" and not labelled:
        raise DataError(
            f"{config.train.source}: no labels in it, and the loss `labels` needs them",
            hint="give an .npz with x and y, class folders, a .csv with targets or a function that"
            " yields pairs; or learn from the float model: --qat-loss distill",
        )
    folder.mkdir(parents=True)
    training.write_inputs(folder)
    if training.targets is not None and labelled:
        np.save(folder / "targets.npy", training.targets)
    evaluation = open_source(config.evaluation, manifest)
    for text in check_training(training, evaluation, inputs, folder):
        warn(text)
    return TrainingSamples(folder, training.source, training.count, training.sha256, labelled)


def digest(manifest: Manifest, samples: TrainingSamples, settings: Qat) -> str:
    """What a checkpoint belongs to: model, samples and whatever decides the steps."""
    decides = {
        key: value
        for key, value in asdict(settings).items()
        if key in ("epochs", "batch_size", "learning_rate", "loss", "seed", "freeze_bn_epoch",
                   "precision")
    }  # fmt: skip
    text = json.dumps([manifest.source.sha256, samples.sha256, samples.labelled, decides])
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_floats(description: dict[str, Any]) -> None:
    """Refuses a file with operators that stay float.

    Raises:
        UnsupportedError: Names them.
    """
    if description["float_ops"]:
        raise UnsupportedError(
            f"these operators stay float: {', '.join(description['float_ops'])}",
            hint="see docs/qat.md for the layers that have an int8 form; without --require-integer"
            " the file is kept as it is",
        )
