"""Decides the plan of each int8 artifact of a build: as configured, or by climbing the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packager.errors import ConfigError, PackagerError
from packager.quantize import columns, halves, ladder, pool
from packager.quantize.exclude import Holds, closeness, within
from packager.quantize.ladder import Climb, Ladder
from packager.quantize.plan import ACTIVATIONS, Plan
from packager.quantize.pool import Subject
from packager.quantize.settings import Int8
from packager.quantize.trial import Trial

if TYPE_CHECKING:
    from packager.job import Job
    from packager.targets import Target

RANGES = "calibration.json"
# Of a large evaluation set, the ladder looks at this many samples; the gates see all of them.
EVALUATION_LIMIT = 1000
_MODES = ("int8", "int8_float_io", "edgetpu")


def ranges(job: Job, plan: Plan | None) -> Path:
    """The calibrated ranges that a plan needs, calibrating where that has not been done."""
    algorithm = "min_max" if plan is None else plan.activations
    path = job.work / (RANGES if algorithm == "min_max" else f"calibration.{algorithm}.json")
    if not path.is_file() and job.data is not None:
        job.litert.call(
            "calibrate",
            "calibrating",
            reads=["model", "samples"],
            writes=[path],
            model=job.integer_base,
            samples=job.data.calibration_inputs,
            ranges=path,
            algorithm=algorithm,
        )
    return path


def plans(job: Job, targets: Sequence[Target], base: Path) -> dict[str, Plan]:
    """The plans of the int8 artifacts by id; those that are not in it follow their recipe.

    Args:
        job: The build, calibrated.
        targets: The integer artifacts that are to be made.
        base: The float file that they are made from.
    """
    job.integer_base = base
    chosen = [target for target in targets if target.mode in _MODES]
    wanted = job.config.int8
    starts = {target.id: _start(wanted, target.mode) for target in chosen}
    _keep_columns(job, chosen, starts)
    if not wanted.auto:
        # The recipes of `recipes.RECIPES` are the plain plan.
        return {name: plan for name, plan in starts.items() if not _is_plain(plan)}
    found: dict[str, Plan] = {}
    for target in chosen:
        with job.making([target], f"{target.id}: look for what keeps the gates") as detail:
            found[target.id] = _found(job, target, starts[target.id], detail)
    return found


def _start(wanted: Int8, mode: str) -> Plan:
    """The plan of one artifact before anything is tried."""
    if mode == "edgetpu":
        # One scale for Dense weights (google-ai-edge/litert-torch#384), and int8 throughout.
        uint8 = wanted.edgetpu_io == "uint8"
        return replace(wanted.plan, layers={}, dense="per_tensor", uint8_io=uint8)
    return replace(wanted.plan, float_io=mode == "int8_float_io")


def _keep_columns(job: Job, targets: Sequence[Target], starts: dict[str, Plan]) -> None:
    """Keeps the first scaling in float where one scale for the whole input would lose columns."""
    data = job.data
    if data is None or data.calibration_inputs is None:
        return
    lost = columns.lost(job.manifest, data.calibration_inputs)
    if not lost:
        return
    named = columns.described(lost)
    for target in targets:
        if target.mode != "int8_float_io" or job.config.int8.require_integer:
            job.reporter.warn(
                f"{target.id}: {named} are so small beside others that an int8 input loses them;"
                " use tflite/int8_float_io, or scale each column before the model"
            )
            continue
        with (
            job.making([target], f"{target.id}: keep small columns") as detail,
            pool.opened(
                subject(job, starts[target.id]),
                job.work,
                processes=job.config.jobs,
                cache=job.cache,
            ) as trials,
        ):
            sets = columns.first_layers(trials.reference.ops, list(lost))
            start = starts[target.id]
            plans = [
                replace(start, layers={**dict.fromkeys(names, "float"), **start.layers})
                for names in sets
            ]
            plain, *kept = trials.run([start, *plans])
            chosen = _first_that_holds(kept, within(job.config.gates))
            starts[target.id] = plans[chosen]
            cost = _bytes(kept[chosen]) - _bytes(plain)
            text = f"{named}: {', '.join(sets[chosen])} stay float, which costs {cost:+d} bytes"
            detail.append(text)
            job.reporter.warn(f"{target.id}: {text}")


def _is_plain(plan: Plan) -> bool:
    return replace(plan, float_io=False) == Plan()


def _first_that_holds(trials: Sequence[Trial | PackagerError], holds: Holds) -> int:
    """The first set that keeps the gates, which is the smallest; else the nearest to float."""
    made = {i: t for i, t in enumerate(trials) if not isinstance(t, PackagerError)}
    good = [i for i, trial in made.items() if holds(trial)]
    return good[0] if good else max(made, key=lambda i: closeness(made[i]), default=0)


def _bytes(trial: Trial | PackagerError) -> int:
    return 0 if isinstance(trial, PackagerError) else trial.size_bytes


def _found(job: Job, target: Target, start: Plan, detail: list[str]) -> Plan:
    """Climbs for one artifact, unless an artifact of the same kind has climbed with success."""
    others = {} if target.mode == "edgetpu" or start.layers else job.climbs
    name, climb = next(((n, c) for n, c in others.items() if c.chosen.holds), (target.id, None))
    if climb is None:
        climb = job.climbs[name] = _climb(job, start, only_int8=target.mode == "edgetpu")
    steps = f"{len(climb.steps)} steps" if name == target.id else f"as {name}"
    detail.append(f"{steps}: {climb.reason}")
    return replace(climb.chosen.plan or start, float_io=start.float_io, uint8_io=start.uint8_io)


def _climb(job: Job, start: Plan, *, only_int8: bool) -> Climb:
    tried = subject(job, start)
    data = job.data
    if data is not None and data.calibration_inputs is not None:
        halved = halves.calibrate(job.litert, tried.model, data.calibration_inputs, job.work)
        tried = replace(tried, ranges={**tried.ranges, **halved})
    with pool.opened(
        tried,
        job.work,
        processes=job.config.jobs,
        verbose=job.reporter.verbose,
        cache=job.cache,
    ) as trials:
        compared = halves.compare(trials, tried.ranges, start)
        if compared is not None and not compared.stable:
            job.reporter.warn(halves.sentence(compared))
        integer = only_int8 or job.config.int8.require_integer
        conditions = Ladder(trials, start, within(job.config.gates), integer)
        return ladder.climb(conditions, (ladder.algorithms,) if only_int8 else ladder.RUNGS)


def subject(job: Job, start: Plan) -> Subject:
    """The float file with the evaluation samples, or the golden ones where there are none.

    Args:
        job: The build, whose plans are being or have been decided.
        start: The plan whose ranges, by each algorithm, are calibrated.
    """
    data = job.data
    if data is None or job.integer_base is None:
        raise ConfigError("--auto needs evaluation samples", hint="add --evaluation DATA")
    return Subject(
        manifest=job.manifest,
        model=job.integer_base,
        ranges={name: ranges(job, replace(start, algorithm=name)) for name in ACTIVATIONS},
        inputs=data.evaluation_inputs or data.golden_inputs,
        targets=data.targets,
        limit=EVALUATION_LIMIT,
        known=job.layer_names,
    )
