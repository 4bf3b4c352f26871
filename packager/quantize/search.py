"""`packager search`: mixed precision under limits, with Optuna as the black-box optimiser.

Optuna proposes plans in the parent, two LiteRT children run them. What blame suggests is tried
first, so that a short search is never worse than the ladder.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.errors import ConfigError, EnvironmentLacks, PackagerError
from packager.quantize import blame
from packager.quantize.blame import Blame
from packager.quantize.plan import ALGORITHMS, DENSE, PRECISIONS, Plan
from packager.quantize.pool import Pool, Reference, Subject
from packager.quantize.trial import Trial

if TYPE_CHECKING:
    import optuna

Json = dict[str, Any]
STUDY = "packager"
# More layers than this make the space too large for a short search; the others stay int8.
MOST_LAYERS = 24
PROCESSES = 2
_TIMED = 20
# A loss of 0.991 - 0.981 is a little above 0.01 in floats.
_ROUNDING = 1e-9
_SEED = 0


@dataclass(frozen=True)
class Limits:
    """What a configuration must keep, and how long may be searched.

    Attributes:
        max_drop: Largest loss, in points as `blame.loss` has them; 0..1.
        max_bytes: Largest file, or None.
        max_latency_ms: Largest median time on this machine, or None.
        trials: Number of configurations to try, those of an earlier search included.
        seconds: Time limit.
    """

    max_drop: float = 0.01
    max_bytes: int | None = None
    max_latency_ms: float | None = None
    trials: int = 60
    seconds: float = 600.0


@dataclass(frozen=True)
class Entry:
    """One configuration that was tried; `trial` is None where it could not be made."""

    number: int
    plan: Plan
    loss: float
    trial: Trial | None
    error: str = ""


@dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
        entries: Every configuration.
        best: The smallest within the limits, or None where none is.
        nearest: The configuration with the smallest loss.
        pareto: Numbers of the configurations that no other beats in both loss and size.
        layers: The layers whose precision was searched.
        reason: Why the search ended.
    """

    entries: tuple[Entry, ...]
    best: Entry | None
    nearest: Entry | None
    pareto: tuple[int, ...]
    layers: tuple[str, ...]
    reason: str


def search(pool: Pool, subject: Subject, limits: Limits, storage: Path | None) -> Result:
    """Searches until the budget is used up.

    Args:
        pool: The trials.
        subject: What is tried; its identity guards a resumed search.
        limits: Limits and budget.
        storage: A file that holds what was tried, to go on from; None keeps nothing.

    Raises:
        EnvironmentLacks: Optuna is not installed.
        ConfigError: The storage belongs to another model or other data.
    """
    study = _study(storage, _identity(subject))
    blamed = blame.blame(pool, Plan())
    layers = tuple(entry.layer for entry in blamed.layers[:MOST_LAYERS])
    if not study.trials:
        for plan in _first(blamed, layers):
            study.enqueue_trial(_parameters(plan, layers), skip_if_exists=True)
    timed = _TIMED if limits.max_latency_ms is not None else 0
    started = time.monotonic()
    reason = f"{limits.trials} configurations were tried"
    while sum(t.state.is_finished() for t in study.trials) < limits.trials:
        if time.monotonic() - started > limits.seconds:
            reason = f"{limits.seconds:.0f} s were over"
            break
        asked = [study.ask() for _ in range(PROCESSES)]
        plans = [_plan(trial, layers) for trial in asked]
        for trial, plan, found in zip(asked, plans, pool.run(plans, timed=timed), strict=True):
            _tell(study, trial, plan, found, limits)
    entries = tuple(_entry(t) for t in study.trials if t.state.is_finished())
    return _result(entries, limits, layers, reason)


def within(entry: Entry, limits: Limits) -> bool:
    """Whether a configuration keeps all limits."""
    trial = entry.trial
    if trial is None or entry.loss > limits.max_drop + _ROUNDING:
        return False
    slow = limits.max_latency_ms is not None and (
        trial.latency_ms is None or trial.latency_ms > limits.max_latency_ms
    )
    return not slow and (limits.max_bytes is None or trial.size_bytes <= limits.max_bytes)


def _study(storage: Path | None, identity: str) -> optuna.Study:
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise EnvironmentLacks(
            "the search needs Optuna, which is not installed", hint="pip install 'packager[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    study = optuna.create_study(
        study_name=STUDY,
        storage=JournalStorage(JournalFileBackend(str(storage))) if storage else None,
        directions=["minimize", "minimize"],
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=_SEED, n_startup_trials=8),
    )
    known = study.user_attrs.get("identity")
    if known is not None and known != identity:
        raise ConfigError(
            f"{storage}: this search was begun on another model or with other samples",
            hint="name another --storage, or give the same bundle and data",
        )
    study.set_user_attr("identity", identity)
    return study


def _identity(subject: Subject) -> str:
    """A hash of the float file, the ranges and the samples."""
    digest = hashlib.sha256(subject.model.read_bytes())
    for path in [*subject.ranges.values(), *sorted(subject.inputs.glob("*.npy"))]:
        digest.update(path.read_bytes())
    if subject.targets is not None:
        digest.update(subject.targets.tobytes())
    return digest.hexdigest()


def _first(blamed: Blame, layers: Sequence[str]) -> Iterator[Plan]:
    """Every algorithm in full int8, and growing sets of the layers that blame ranks first."""
    for name in ALGORITHMS:
        yield Plan(algorithm=name)
    for dense in DENSE:
        yield Plan(dense=dense)
    chosen: list[str] = []
    for entry in blamed.layers[:4]:
        with_readers = entry.best is entry.with_readers
        chosen += [entry.layer, *(entry.readers if with_readers else ())]
        for precision in ("float", "int16"):
            names = [name for name in dict.fromkeys(chosen) if name in layers]
            yield Plan(layers=dict.fromkeys(names, precision))


def _parameters(plan: Plan, layers: Sequence[str]) -> Json:
    precisions = {f"layer {name}": plan.layers.get(name, "int8") for name in layers}
    return {"algorithm": plan.algorithm, "dense": plan.dense, **precisions}


def _plan(trial: optuna.Trial, layers: Sequence[str]) -> Plan:
    algorithm = trial.suggest_categorical("algorithm", list(ALGORITHMS))
    dense = trial.suggest_categorical("dense", list(DENSE))
    given = {name: trial.suggest_categorical(f"layer {name}", PRECISIONS) for name in layers}
    chosen = {name: precision for name, precision in given.items() if precision != "int8"}
    return Plan(algorithm=algorithm, dense=dense, layers=chosen)


def _tell(
    study: optuna.Study,
    asked: optuna.Trial,
    plan: Plan,
    found: Trial | PackagerError,
    limits: Limits,
) -> None:
    import optuna

    asked.set_user_attr("plan", plan.to_json())
    if isinstance(found, PackagerError):
        asked.set_user_attr("error", found.message)
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return
    loss = blame.loss(found)
    asked.set_constraint("max_drop", loss - limits.max_drop - _ROUNDING)
    if limits.max_bytes is not None:
        asked.set_constraint("max_bytes", float(found.size_bytes - limits.max_bytes))
    if limits.max_latency_ms is not None:
        asked.set_constraint("max_latency_ms", (found.latency_ms or 0.0) - limits.max_latency_ms)
    asked.set_user_attr("trial", asdict(found))
    study.tell(asked, [loss, float(found.size_bytes)])


def _entry(trial: optuna.trial.FrozenTrial) -> Entry:
    plan = Plan.from_json(trial.user_attrs.get("plan", {}))
    stored = trial.user_attrs.get("trial")
    if stored is None:
        return Entry(trial.number, plan, 1.0, None, trial.user_attrs.get("error", "stopped"))
    return Entry(trial.number, plan, float(trial.values[0]), Trial.from_json(stored))


def _result(
    entries: tuple[Entry, ...], limits: Limits, layers: tuple[str, ...], reason: str
) -> Result:
    made = [entry for entry in entries if entry.trial is not None]
    good = [entry for entry in made if within(entry, limits)]
    return Result(
        entries=entries,
        best=min(good, key=_size_first, default=None),
        nearest=min(made, key=lambda e: (e.loss, _size_first(e)), default=None),
        pareto=_pareto(made),
        layers=layers,
        reason=reason,
    )


def _size_first(entry: Entry) -> tuple[int, float, int]:
    return (entry.trial.size_bytes if entry.trial else 0, entry.loss, entry.number)


def _pareto(entries: Sequence[Entry]) -> tuple[int, ...]:
    """Numbers of the entries that none is at least as small and as good as, by size."""
    front: list[Entry] = []
    for entry in sorted(entries, key=_size_first):
        if not front or entry.loss < front[-1].loss:
            front.append(entry)
    return tuple(entry.number for entry in front)


def to_json(found: Result, limits: Limits, reference: Reference) -> Json:
    """The document that `--to` writes, and `packager build --from-search` reads."""
    return {
        "schema": 1,
        "limits": asdict(limits),
        "reason": found.reason,
        "float32": {
            "size_bytes": reference.size_bytes,
            "samples": reference.samples,
            **({} if reference.accuracy is None else {"accuracy": reference.accuracy}),
        },
        "layers": list(found.layers),
        "best": found.best.number if found.best else None,
        "nearest": found.nearest.number if found.nearest else None,
        "pareto": list(found.pareto),
        "trials": [_entry_json(entry, limits) for entry in found.entries],
    }


def _entry_json(entry: Entry, limits: Limits) -> Json:
    document: Json = {
        "number": entry.number,
        "plan": entry.plan.to_json(),
        "summary": entry.plan.summary(),
        "within": within(entry, limits),
    }
    if entry.trial is None:
        return {**document, "error": entry.error}
    found = {key: value for key, value in asdict(entry.trial).items() if value is not None}
    return {**document, "loss": entry.loss, **found}


def time_front(pool: Pool, found: Result) -> Result:
    """Times the Pareto front, one after another on an otherwise idle pool."""
    times = {e.number: pool.time(e.plan) for e in found.entries if e.number in found.pareto}
    entries = tuple(
        replace(e, trial=replace(e.trial, latency_ms=times[e.number]))
        if e.trial is not None and e.number in times
        else e
        for e in found.entries
    )
    by_number = {entry.number: entry for entry in entries}
    return replace(
        found,
        entries=entries,
        best=by_number[found.best.number] if found.best else None,
        nearest=by_number[found.nearest.number] if found.nearest else None,
    )


def write(document: Json, path: Path) -> None:
    """Writes the result in one step."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
