"""The smallest set of layers in higher precision that meets a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packager.bundle import GateLimits
from packager.errors import PackagerError
from packager.quantize.blame import Blame
from packager.quantize.plan import Plan
from packager.quantize.pool import Pool
from packager.quantize.trial import Trial
from packager.verify import gates

Holds = Callable[[Trial], bool]
# How many ways to go on are compared at each step, and how many steps are taken at most.
_WIDTH = 6
_STEPS = 8


@dataclass(frozen=True)
class Found:
    """A plan, what it gave, and whether it meets the condition.

    Attributes:
        plan: The plan.
        trial: What it gave.
        holds: Whether it meets the condition; else it is the best that was seen.
        tried: How many plans were run.
        path: The plans that led to it, with what they gave.
    """

    plan: Plan
    trial: Trial
    holds: bool
    tried: int
    path: tuple[tuple[Plan, Trial], ...] = ()


def smallest(
    pool: Pool, blamed: Blame, base: Plan, holds: Holds, *, precision: str = "float"
) -> Found | None:
    """Looks for few layers that must not be int8.

    A single layer (with or without its readers) is tried first, the smallest file that holds
    wins. Else layers are added one by one, each time the one that helps most, and at last those
    are taken back that are not needed.

    Args:
        pool: The trials.
        blamed: What each layer does to the loss.
        base: The plan that the layers are excluded from.
        holds: The condition.
        precision: `float` or `int16`.

    Returns:
        The plan, or None where none could be made.
    """
    search = _Search(pool, base, holds, precision)
    choices = _choices(blamed)
    best = search.best(choices)
    if best is None:
        return None
    path = [best]
    while not (search.holds(best) or _is_exact(search.known[best])) and len(path) <= _STEPS:
        remaining = [c for c in choices if not set(c) <= set(best)]
        better = search.best([(*best, *c) for c in remaining[:_WIDTH]])
        if better is None:
            break
        best = better
        path.append(best)
    if search.holds(best):
        best = search.pruned(best)
        path.append(best)
    return Found(
        search.plan(best),
        search.known[best],
        search.holds(best),
        len(search.known),
        tuple((search.plan(names), search.known[names]) for names in dict.fromkeys(path)),
    )


def _choices(blamed: Blame) -> list[tuple[str, ...]]:
    """What can be excluded at once, the most helpful first: a layer, or it with its readers."""
    ranked = sorted(
        (
            (effect.noise, (entry.layer, *readers))
            for entry in blamed.layers
            for effect, readers in ((entry.in_float, ()), (entry.with_readers, entry.readers))
        ),
        key=lambda pair: -pair[0],
    )
    return list(dict.fromkeys(names for _, names in ranked))


class _Search:
    """Sets of layers, as tuples, and what they gave."""

    def __init__(self, pool: Pool, base: Plan, holds: Holds, precision: str) -> None:
        self.pool, self.base, self.precision = pool, base, precision
        self._condition = holds
        self.known: dict[tuple[str, ...], Trial] = {}

    def plan(self, names: Iterable[str]) -> Plan:
        layers: Mapping[str, str] = {**self.base.layers, **dict.fromkeys(names, self.precision)}
        return replace(self.base, layers=layers)

    def holds(self, names: tuple[str, ...]) -> bool:
        return self._condition(self.known[names])

    def run(self, sets: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Runs them; returns those that could be made, each without repetition."""
        unique = [tuple(dict.fromkeys(names)) for names in sets]
        found = self.pool.run(self.plan(names) for names in unique)
        made = []
        for names, trial in zip(unique, found, strict=True):
            if not isinstance(trial, PackagerError):
                self.known[names] = trial
                made.append(names)
        return made

    def best(self, sets: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        """The smallest file that holds, else the one nearest to the float file."""
        made = self.run(sets)
        good = [names for names in made if self.holds(names)]
        if good:
            return min(good, key=lambda names: (self.known[names].size_bytes, len(names)))
        return max(made, key=lambda names: closeness(self.known[names]), default=None)

    def pruned(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Takes layers back, the largest gain in bytes first, as long as the rest holds."""
        while len(names) > 1:
            shorter = [tuple(n for n in names if n != left) for left in names]
            good = [s for s in self.run(shorter) if self.holds(s)]
            if not good:
                break
            names = min(good, key=lambda s: self.known[s].size_bytes)
        return names


def within(limits: GateLimits) -> Holds:
    """The condition that a trial keeps the gates of an integer artifact."""

    def holds(trial: Trial) -> bool:
        found = gates.check("int8", trial.size_bytes, trial.metrics, limits, synthetic=False)
        return found.status == "passed"

    return holds


def _is_exact(trial: Trial) -> bool:
    """Whether every answer is the float file's: then no layer in float can help any further."""
    found = trial.metrics
    worse = found.get("drop", found.get("error_growth", 0.0)) > 0
    return found.get("agreement") == 1.0 and not worse


def closeness(trial: Trial) -> tuple[float, float]:
    """Orders trials by how near they are to the float file: answers first, then noise."""
    found = trial.metrics
    if found.get("non_finite"):
        return (-1.0, 0.0)
    points = -found.get("drop", found.get("error_growth", 0.0))
    return (points + found["agreement"], -1e9 if trial.snr_db is None else trial.snr_db)
