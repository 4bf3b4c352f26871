"""Are there enough calibration samples? Two disjoint halves of them should say the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from packager.children import Child
from packager.errors import PackagerError
from packager.quantize import blame
from packager.quantize.op_layers import OpLayer
from packager.quantize.plan import Plan
from packager.quantize.pool import Pool

NAMES = ("a", "b")
# A range that differs by more than this between the halves is named.
UNSTABLE = 1.25
_LISTED = 5


@dataclass(frozen=True)
class Unstable:
    """A tensor whose range depends on the samples: `ratio` is the wider over the narrower."""

    layer: str
    tensor: str
    ratio: float


@dataclass(frozen=True)
class Comparison:
    """What the two halves say.

    Attributes:
        losses: The loss with the ranges of each half, in points as in `blame.loss`.
        ranges: The tensors whose ranges differ most, the worst first.
        stable: Whether the losses differ by no more than chance.
    """

    losses: tuple[float, ...]
    ranges: tuple[Unstable, ...]
    stable: bool


def calibrate(litert: Child, model: Path, inputs: Path, work: Path) -> dict[str, Path]:
    """Records the ranges of every second sample, and of the others.

    Returns:
        The files, under the names that `Plan.activations` has for them.
    """
    found = {}
    for start, half in enumerate(NAMES):
        folder = work / f"calibration-{half}"
        folder.mkdir(exist_ok=True)
        for path in inputs.glob("*.npy"):
            np.save(folder / path.name, np.load(path, mmap_mode="r")[start::2])
        found[f"min_max.{half}"] = work / f"ranges.{half}.json"
        litert.call(
            "calibrate",
            "calibrating one half",
            reads=["model", "samples"],
            writes=[found[f"min_max.{half}"]],
            model=model,
            samples=folder,
            ranges=found[f"min_max.{half}"],
        )
    return found


def compare(pool: Pool, ranges: Mapping[str, Path], base: Plan) -> Comparison | None:
    """Runs int8 with the ranges of each half; None where one of them cannot be made.

    Args:
        pool: The trials.
        ranges: What `calibrate` returned, among others.
        base: The plan; the true minimum and maximum are compared, whatever its algorithm is.
    """
    trials = pool.run(replace(base, algorithm="min_max", half=half) for half in NAMES)
    if any(isinstance(trial, PackagerError) for trial in trials):
        return None
    made = [trial for trial in trials if not isinstance(trial, PackagerError)]
    losses = tuple(blame.loss(trial) for trial in made)
    floor = max(blame.noise_floor(trial, pool.reference.samples) for trial in made)
    stored = [json.loads(ranges[f"min_max.{half}"].read_text()) for half in NAMES]
    return Comparison(
        losses=losses,
        ranges=_unstable(stored[0], stored[1], pool.reference.ops),
        stable=abs(losses[0] - losses[1]) <= floor,
    )


def sentence(found: Comparison) -> str:
    """Says it in words."""
    first, second = (f"{100 * loss:.1f}" for loss in found.losses)
    text = (
        f"with each half of the calibration samples alone, int8 loses {first} and {second} points"
    )
    if found.ranges:
        worst = found.ranges[0]
        text += f"; the range of {worst.layer} differs most, {worst.ratio:.2f} times"
    return text if found.stable else f"{text}: give more calibration samples"


def _unstable(
    first: Mapping[str, list[float]], second: Mapping[str, list[float]], ops: tuple[OpLayer, ...]
) -> tuple[Unstable, ...]:
    layers = {name: op.layer for op in ops for name in op.outputs}
    found = []
    for name, (low, high) in first.items():
        widths = sorted((high - low, second[name][1] - second[name][0])) if name in second else []
        if widths and widths[0] > 0 and widths[1] / widths[0] > UNSTABLE:
            found.append(Unstable(layers.get(name, name), name, widths[1] / widths[0]))
    return tuple(sorted(found, key=lambda entry: -entry.ratio)[:_LISTED])
