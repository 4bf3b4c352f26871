"""What a training gets and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.errors import DataError

Array = np.ndarray[Any, Any]

# Of the training samples this share is held out, at most so many, to tell the best epoch.
_HELD_OUT, _MOST_HELD_OUT = 0.1, 1000


@dataclass(frozen=True)
class Data:
    """Training samples, as arrays `[N, ...]` that may stay on disk.

    Attributes:
        inputs: One array per input, in the model's order.
        wanted: What the outputs should be: targets, or the float model's outputs.
        calibration: One array per input, for the first ranges; None: training samples.
    """

    inputs: Sequence[Array]
    wanted: Sequence[Array]
    calibration: Sequence[Array] | None = None

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])


@dataclass
class Outcome:
    """A finished training.

    Attributes:
        twin: The best twin, outside of any strategy.
        history: One entry per epoch, 0 being the twin before training: `loss`, `metric`,
            `val_loss`, `val_metric`, `seconds`, `steps`.
        best_epoch: The entry that the twin is of.
        stopped: Why the training ended early; empty if it did not.
        resumed_at: The step that a checkpoint held; 0 without one.
        losses: The loss of each step of this run.
    """

    twin: Any
    history: list[dict[str, Any]]
    best_epoch: int
    stopped: str = ""
    resumed_at: int = 0
    losses: list[float] = field(default_factory=list)


def split(count: int, seed: int) -> tuple[Array, Array]:
    """Numbers of the samples to train on, and of those held out.

    Raises:
        DataError: Fewer than two samples.
    """
    if count < 2:
        raise DataError(f"training: {count} samples", hint="give some hundreds of typical samples")
    held = min(_MOST_HELD_OUT, max(1, int(count * _HELD_OUT)))
    order = np.random.default_rng((seed, 1)).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])
