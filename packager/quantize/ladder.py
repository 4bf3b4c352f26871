"""`packager build --auto`: from plain int8 upwards, until the gates hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from packager.errors import PackagerError
from packager.quantize import blame, exclude
from packager.quantize.exclude import Holds, closeness
from packager.quantize.plan import ALGORITHMS, Plan
from packager.quantize.pool import Pool
from packager.quantize.trial import Trial

Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One plan that was tried.

    Attributes:
        rung: The rung's name.
        plan: The plan; None: a file that quantization-aware training made.
        trial: What it gave; None where it could not be made.
        holds: Whether it keeps the gates.
        note: What else there is to say, such as the error.
    """

    rung: str
    plan: Plan | None
    trial: Trial | None
    holds: bool
    note: str = ""

    @property
    def summary(self) -> str:
        """One line for people."""
        return "quantization-aware training" if self.plan is None else self.plan.summary()


@dataclass(frozen=True)
class Climb:
    """What was tried, in order, and what was chosen.

    Attributes:
        steps: Every step.
        chosen: The step that is built: the first that holds, else the nearest to the float file.
        reason: Why it stopped there.
    """

    steps: tuple[Step, ...]
    chosen: Step
    reason: str


@dataclass(frozen=True)
class Ladder:
    """The conditions of a climb.

    Attributes:
        pool: The trials.
        start: The plan on the lowest rung.
        holds: Whether a trial keeps the gates.
        integer_only: No layer may stay in float.
    """

    pool: Pool
    start: Plan
    holds: Holds
    integer_only: bool = False

    def step(self, rung: str, plan: Plan, note: str = "") -> Step:
        """Runs and times one plan."""
        try:
            trial = self.pool.one(plan)
            trial = replace(trial, latency_ms=self.pool.time(plan))
        except PackagerError as error:
            return Step(rung, plan, None, False, error.message)
        return self.judged(rung, plan, trial, note)

    def judged(self, rung: str, plan: Plan | None, trial: Trial, note: str = "") -> Step:
        """The step of what was tried."""
        whole = trial.integer_op_share == 1.0
        if self.integer_only and not whole:
            note = f"stays float: {', '.join(trial.float_ops)}"
        return Step(rung, plan, trial, self.holds(trial) and (whole or not self.integer_only), note)


# A rung yields its steps one by one, so that the climb can stop at the first that holds. The
# last argument is the best step so far.
Rung = Callable[[Ladder, "Step | None"], Iterator[Step]]


def algorithms(ladder: Ladder, best: Step | None) -> Iterator[Step]:
    """Full int8, with each way to find the scales."""
    for name in ALGORITHMS:
        yield ladder.step("calibration", replace(ladder.start, algorithm=name))


def higher_precision(ladder: Ladder, best: Step | None) -> Iterator[Step]:
    """The smallest set of layers in float; in int16 where floats are forbidden."""
    start = best.plan if best is not None and best.plan is not None else ladder.start
    precision = "int16" if ladder.integer_only else "float"
    try:
        blamed = blame.blame(ladder.pool, start)
        found = exclude.smallest(ladder.pool, blamed, start, ladder.holds, precision=precision)
    except PackagerError as error:
        yield Step("layers", start, None, False, error.message)
        return
    if found is not None:
        # Of the sets that hold only the smallest counts, and that is the last one.
        below = [plan for plan, trial in found.path if not ladder.holds(trial)]
        for plan in below if below[-1:] == [found.plan] else [*below, found.plan]:
            yield ladder.step("layers", plan, f"{found.tried} sets of layers tried")


# The third rung makes a file of its own: `training_rung`.
RUNGS: tuple[Rung, ...] = (algorithms, higher_precision)


def climb(ladder: Ladder, rungs: tuple[Rung, ...] = RUNGS) -> Climb:
    """Climbs until a step keeps the gates.

    Raises:
        PackagerError: Nothing could be made at all.
    """
    steps: list[Step] = []
    for rung in rungs:
        for step in rung(ladder, _nearest(steps)):
            steps.append(step)
            if step.holds:
                return _stopped(steps, step)
    nearest = _nearest(steps)
    if nearest is None:
        raise PackagerError(f"no int8 file could be made: {steps[0].note if steps else ''}")
    return _stopped(steps, nearest)


def one_more(found: Climb, step: Step) -> Climb:
    """A climb that did not hold, with one more step."""
    steps = [*found.steps, step]
    return _stopped(steps, step if step.holds else _nearest(steps) or found.chosen)


def _stopped(steps: list[Step], chosen: Step) -> Climb:
    """A climb that ended with a step, and why."""
    if chosen.holds:
        return Climb(tuple(steps), chosen, f"{chosen.summary} keeps the gates")
    reason = f"nothing that was tried keeps the gates; {chosen.summary} is nearest"
    return Climb(tuple(steps), chosen, reason)


def to_json(found: Climb) -> Json:
    """A climb for `report.json`."""
    return {
        "reason": found.reason,
        "chosen": found.steps.index(found.chosen),
        "steps": [_step_json(step) for step in found.steps],
    }


def _step_json(step: Step) -> Json:
    entry: Json = {
        "rung": step.rung,
        "plan": None if step.plan is None else step.plan.to_json(),
        "summary": step.summary,
        "holds": step.holds,
        "note": step.note,
    }
    if step.trial is not None:
        entry |= {
            "metrics": step.trial.metrics,
            "size_bytes": step.trial.size_bytes,
            "integer_op_share": step.trial.integer_op_share,
            "latency_ms": step.trial.latency_ms,
        }
        if step.trial.snr_db is not None:
            entry["snr_db"] = step.trial.snr_db
    return entry


def _nearest(steps: list[Step]) -> Step | None:
    made = [step for step in steps if step.trial is not None]
    return max(made, key=lambda s: closeness(s.trial) if s.trial else (0.0, 0.0), default=None)
