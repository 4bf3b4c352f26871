"""Which layers lose accuracy under int8: each quantized alone, and each left out.

What a layer's weights lose goes away when its operators stay float. What its output loses goes
away only when the layers that read it stay float, too, for a float result is quantized again in
front of an integer reader. Both are tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from packager.errors import PackagerError
from packager.quantize import op_layers
from packager.quantize.plan import Plan
from packager.quantize.pool import Pool
from packager.quantize.trials import Trial

# A channel this many times larger than a quarter of them leaves those few of the 256 steps.
WIDE = 10.0
# Nothing is lost where the difference from float is this small.
_SILENT_DB = 120.0
# Stands for the noise of a file with outputs that are not finite.
_BROKEN = 1e12


@dataclass(frozen=True)
class Effect:
    """What one change did, against the plan it is compared with.

    Attributes:
        points: Gain in accuracy (0..1), or in agreement with the float file without labels; for
            a regression the share of the float file's mean absolute error that goes away.
        noise: Share of the noise power at the output that goes away; 0..1, negative for worse.
        size_bytes: Bytes that the file grows by.
    """

    points: float
    noise: float
    size_bytes: int


@dataclass(frozen=True)
class LayerBlame:
    """One layer's part in the loss.

    Attributes:
        layer: The Keras layer.
        ops: Its operators in the file.
        fused: Layers that the converter merged into it.
        readers: The layers that read its output.
        alone_points: What is lost when only this layer is int8: in points as in `Effect`.
        alone_snr_db: Signal to noise of the output then; None: no difference.
        in_float: Leaving its operators in float.
        with_readers: Leaving its operators and its readers in float, so that its output is never
            quantized.
        spread: The largest channel of its output over its smallest quarter.
        weight_spread: The same of the inputs of its weights, within one output channel.
        rank: 1 for the worst.
    """

    layer: str
    ops: tuple[str, ...]
    fused: tuple[str, ...]
    readers: tuple[str, ...]
    alone_points: float
    alone_snr_db: float | None
    in_float: Effect
    with_readers: Effect
    spread: float | None = None
    weight_spread: float | None = None
    rank: int = 0

    @property
    def best(self) -> Effect:
        """The better of both ways to leave it in float."""
        return max((self.in_float, self.with_readers), key=lambda e: (e.noise, e.points))


@dataclass(frozen=True)
class Blame:
    """All layers, the worst first, and what they are compared with.

    Attributes:
        base: The plan whose loss is explained.
        trial: What it gave.
        metric: What `points` are: `accuracy`, `agreement` or `mean_abs_error`.
        noise_floor: Gains in points below this are within chance for so many samples.
        layers: The layers.
    """

    base: Plan
    trial: Trial
    metric: str
    noise_floor: float
    layers: tuple[LayerBlame, ...]


def blame(pool: Pool, base: Plan) -> Blame:
    """Tries every layer of the file.

    Args:
        pool: The trials.
        base: The plan whose loss is to be explained; its layers are all int8.

    Raises:
        PackagerError: The plan itself cannot be made or run.
    """
    # With integer ends the input would be quantized whatever its first layer is.
    base = replace(base, float_io=True)
    whole = pool.one(base)
    members = op_layers.by_layer(list(pool.reference.ops))
    readers = {name: op_layers.readers_of(list(pool.reference.ops), name) for name in members}
    ways: dict[tuple[str, str], Plan] = {}
    for name in members:
        ways[name, "alone"] = replace(base, base="float", layers={name: "int8"})
        ways[name, "in_float"] = replace(base, layers={name: "float"})
        ways[name, "with_readers"] = replace(
            base, layers=dict.fromkeys((name, *readers[name]), "float")
        )
    trials = dict(zip(ways, pool.run(ways.values()), strict=True))
    spreads = pool.ask("spreads", "measuring the channels")
    metric = metric_of(whole)
    found = []
    for name, ops in members.items():
        alone = trials[name, "alone"]
        found.append(
            LayerBlame(
                layer=name,
                ops=tuple(dict.fromkeys(op.op for op in ops)),
                fused=tuple(dict.fromkeys(f for op in ops for f in op.fused if f != name)),
                readers=readers[name],
                alone_points=0.0 if isinstance(alone, PackagerError) else loss(alone),
                alone_snr_db=None if isinstance(alone, PackagerError) else alone.snr_db,
                in_float=_effect(trials[name, "in_float"], whole),
                with_readers=_effect(trials[name, "with_readers"], whole),
                spread=spreads.get(name, {}).get("output"),
                weight_spread=spreads.get(name, {}).get("weights"),
            )
        )
    floor = noise_floor(whole, pool.reference.samples)
    ranked = sorted(found, key=lambda entry: _key(entry, floor), reverse=True)
    ranked = [replace(entry, rank=i) for i, entry in enumerate(ranked, 1)]
    return Blame(base, whole, metric, floor, tuple(ranked))


def metric_of(trial: Trial) -> str:
    """What a loss is measured in: accuracy and error need labels."""
    for name in ("accuracy", "mean_abs_error"):
        if name in trial.metrics:
            return name
    return "agreement"


def loss(trial: Trial) -> float:
    """What a trial loses against the float file, in points as in `Effect`; 1 where it is broken."""
    found = trial.metrics
    if found.get("non_finite"):
        return 1.0
    for name in ("drop", "error_growth"):
        if name in found:
            return found[name]
    return 1.0 - found["agreement"]


def noise(trial: Trial) -> float:
    """Power of the difference from float over the float outputs' power."""
    if trial.metrics.get("non_finite"):
        return _BROKEN
    snr = _SILENT_DB if trial.snr_db is None else trial.snr_db
    return float(10 ** (-snr / 10))


def noise_floor(trial: Trial, samples: int) -> float:
    """Two standard errors of a difference in accuracy between two files of one model.

    Only samples with different answers count, and each counts +1 or -1.
    """
    differing = max(1.0 - trial.metrics.get("agreement", 0.0), 1.0 / samples)
    return 2.0 * math.sqrt(differing / samples)


def sentence(entry: LayerBlame, found: Blame) -> str:
    """Says in plain words what a layer does to the accuracy, and why where that was measured."""
    better = entry.with_readers if entry.best is entry.with_readers else entry.in_float
    what = "it" if better is entry.in_float else f"it and {', '.join(entry.readers)}"
    unit = {"accuracy": "accuracy", "agreement": "agreement", "mean_abs_error": "the error"}
    gain = f"{100 * better.points:+.1f} points of {unit[found.metric]}"
    if abs(better.points) <= found.noise_floor:
        gain += " (within chance)"
    text = (
        f"{entry.layer}: leaving {what} in float removes {100 * better.noise:.0f} % of the noise"
        f" ({gain}) and adds {better.size_bytes / 1000:.1f} kB."
    )
    return f"{text} {cause}" if (cause := _cause(entry)) else text


def _cause(entry: LayerBlame) -> str:
    if entry.spread is not None and entry.spread >= WIDE:
        return (
            f"Its largest output channel is {entry.spread:.0f} times those of its smallest quarter:"
            f" one scale for all leaves them {max(1.0, 255 / entry.spread):.0f} of 256 steps."
        )
    if entry.weight_spread is not None and entry.weight_spread >= WIDE:
        return (
            f"Within an output channel its largest weights are {entry.weight_spread:.0f} times"
            " those of the smallest quarter of its inputs, which round to few steps."
        )
    return ""


def _effect(trial: Trial | PackagerError, whole: Trial) -> Effect:
    if isinstance(trial, PackagerError):
        return Effect(0.0, 0.0, 0)
    return Effect(
        points=loss(whole) - loss(trial),
        noise=1.0 - noise(trial) / noise(whole),
        size_bytes=trial.size_bytes - whole.size_bytes,
    )


def _key(entry: LayerBlame, floor: float) -> tuple[float, float]:
    """Points that are more than chance come first; then the share of the noise."""
    points = entry.best.points
    return (points if abs(points) > floor else 0.0, entry.best.noise)
