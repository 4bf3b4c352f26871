"""The `qat:` section of `package.yaml`, which the `--qat-…` flags set, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packager.values import Values

LOSSES = ("auto", "labels", "distill")
STRATEGIES = ("none", "mirrored", "central_storage", "multiworker")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class Qat:
    """How quantization-aware training runs.

    Attributes:
        epochs: Passes over the training samples.
        batch_size: Samples of one step, over all devices and workers together.
        learning_rate: Of Adam.
        loss: `labels` learns the training set's targets, `distill` the float model's outputs and
            needs no targets; `auto` is `labels` where there are some.
        seed: Decides the order of the samples, the held-out ones, and dropout.
        freeze_bn_epoch: From the end of this epoch on, normalizations keep their statistics; None:
            the last third of the training.
        strategy: Of `tf.distribute`.
        precision: Keras' dtype policy of the training; the exported file is int8 in any case.
        require_integer: Refuse a model with a layer that stays float.
        checkpoints: Folder for what an interrupted training goes on from; None: beside the bundle.
            Workers share it.
        checkpoint_steps: Steps between two checkpoints.
        gpus: Which of the visible GPUs to use; empty: all.
        gpu_memory_limit: Megabytes to reserve on each; None: all.
        gpu_memory_growth: Take the memory as it is needed.
        log_device_placement: Log where each operator runs; see it with `--verbose`.
        logical_cpus: Divide the CPU into so many devices, to try `mirrored` without GPUs.
        worker_timeout: Seconds without a finished step after which a distributed training ends.
    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-4
    loss: str = "auto"
    seed: int = 0
    freeze_bn_epoch: int | None = None
    strategy: str = "none"
    precision: str = "float32"
    require_integer: bool = False
    checkpoints: Path | None = None
    checkpoint_steps: int = 100
    gpus: tuple[int, ...] = ()
    gpu_memory_limit: int | None = None
    gpu_memory_growth: bool = False
    log_device_placement: bool = False
    logical_cpus: int = 1
    worker_timeout: int = 300

    @property
    def frozen_from(self) -> int:
        """The first epoch, counted from 0, in which normalizations keep their statistics."""
        if self.freeze_bn_epoch is not None:
            return self.freeze_bn_epoch
        return self.epochs - self.epochs // 3


def _numbers(values: Values, value: object, key: str) -> tuple[int, ...]:
    """Whole numbers: a list, one, or texts such as "0,1"."""
    if isinstance(value, str):
        value = [int(part) if part.strip().isdecimal() else part for part in value.split(",")]
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(values.whole(item, key, 0) for item in items)


def _read(method: str) -> Callable[[Values, object, str], Any]:
    """A reader of `Values`, whose module the command line must not import."""
    return lambda values, value, key: getattr(values, method)(value, key)


READERS: dict[str, Any] = {
    "epochs": _read("whole"),
    "batch_size": _read("whole"),
    "learning_rate": lambda values, value, key: values.number(value, key, 1e-12, 10.0),
    "loss": lambda values, value, key: values.one_of(value, key, LOSSES),
    "seed": _read("seed"),
    "freeze_bn_epoch": _read("seed"),
    "strategy": lambda values, value, key: values.one_of(value, key, STRATEGIES),
    "precision": lambda values, value, key: values.one_of(value, key, PRECISIONS),
    "require_integer": _read("switch"),
    "checkpoints": _read("path"),
    "checkpoint_steps": _read("whole"),
    "gpus": _numbers,
    "gpu_memory_limit": _read("whole"),
    "gpu_memory_growth": _read("switch"),
    "log_device_placement": _read("switch"),
    "logical_cpus": _read("whole"),
    "worker_timeout": _read("whole"),
}
