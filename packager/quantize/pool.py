"""The parent's side of `trials`: LiteRT child processes that run plans side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import Manifest, to_json
from packager.cache import Cache
from packager.children import Child
from packager.errors import PackagerError
from packager.quantize.op_layers import OpLayer
from packager.quantize.plan import Plan
from packager.quantize.trial import Trial

WORKER = "packager.quantize.worker"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """What is quantized in many ways, and what it is measured with.

    Attributes:
        manifest: Says what the outputs mean.
        model: The float32 file.
        ranges: Files of calibrated ranges, by the activations' algorithm.
        inputs: Folder of the samples, `<input name>.npy`.
        targets: Their targets `[N, ...]`, or None.
        limit: How many of the samples are used; None: all.
        known: Names of the model's layers, where they are known.
    """

    manifest: Manifest
    model: Path
    ranges: Mapping[str, Path]
    inputs: Path
    targets: Array | None
    limit: int | None = None
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reference:
    """The float file: its size, operators and own metrics on the samples."""

    size_bytes: int
    samples: int
    ops: tuple[OpLayer, ...]
    accuracy: float | None = None
    mean_abs_error: float | None = None


class Pool:
    """Children with the same trials open, so that plans run on several cores."""

    def __init__(self, children: list[Child], reference: Reference) -> None:
        self.reference = reference
        self._children = children
        self._known: dict[str, Trial | PackagerError] = {}

    def run(self, plans: Iterable[Plan], *, timed: int = 0) -> list[Trial | PackagerError]:
        """Runs plans, each once; an error stands for a plan that cannot be made or run.

        Args:
            plans: The plans.
            timed: As in `Trials.run`.
        """
        wanted = list(plans)
        keys = [f"{timed} {p.to_json()}" for p in wanted]
        fresh = {k: p for k, p in zip(keys, wanted, strict=True) if k not in self._known}
        asked = [
            (
                key,
                self._children[i % len(self._children)].submit(
                    "run_trial",
                    f"trying {p.summary()}",
                    reads=(),
                    wanted=p.to_json(),
                    timed=timed,
                ),
            )
            for i, (key, p) in enumerate(fresh.items())
        ]
        for key, pending in asked:
            try:
                self._known[key] = Trial.from_json(pending.result())
            except PackagerError as error:
                self._known[key] = error
        return [self._known[key] for key in keys]

    def one(self, wanted: Plan, *, timed: int = 0) -> Trial:
        """Runs one plan.

        Raises:
            PackagerError: It cannot be made or run.
        """
        (found,) = self.run([wanted], timed=timed)
        if isinstance(found, PackagerError):
            raise found
        return found

    def file(self, path: Path, runs: int = 30) -> Trial:
        """Runs and times a finished file, as if a plan had made it."""
        stage = f"trying {path.name}"
        answer = self.ask("file_trial", stage, reads=["path"], path=path, timed=runs)
        return Trial.from_json(answer)

    def time(self, wanted: Plan, runs: int = 30) -> float:
        """Median milliseconds of one inference of what a plan makes, on one thread."""
        found: float = self.ask(
            "time_trial", "timing", reads=(), wanted=wanted.to_json(), runs=runs
        )
        return found

    def ask(self, method: str, stage: str, **arguments: Any) -> Any:
        """Asks the first child."""
        return self._children[0].call(method, stage, **arguments)


@contextlib.contextmanager
def opened(
    subject: Subject,
    work: Path,
    *,
    processes: int = 2,
    verbose: bool = False,
    cache: Cache | None = None,
) -> Iterator[Pool]:
    """Yields a pool for a subject.

    Args:
        subject: What is tried.
        work: A scratch folder.
        processes: How many children.
        verbose: Let their output through.
        cache: Trials of earlier builds.
    """
    arguments = _arguments(subject, work)
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(WORKER, verbose=verbose, temporary=work, cache=cache))
            for _ in range(processes)
        ]
        pending = [
            child.submit(
                "open_trials",
                "running the float file",
                keep=True,
                reads=["model", "ranges", "inputs", "targets"],
                **arguments,
            )
            for child in children
        ]
        answers = [p.result() for p in pending]
        yield Pool(children, _reference(answers[0]))


def _arguments(subject: Subject, work: Path) -> dict[str, Any]:
    targets = None
    if subject.targets is not None:
        targets = work / "trial-targets.npy"
        np.save(targets, subject.targets)
    threshold = subject.manifest.threshold
    return {
        "model": subject.model,
        "ranges": {name: str(path) for name, path in subject.ranges.items()},
        "inputs": subject.inputs,
        "targets": targets,
        "task": {
            "kind": subject.manifest.task,
            "outputs": to_json(subject.manifest.outputs),
            "threshold": 0.5 if threshold is None else threshold,
        },
        "limit": subject.limit,
        "known": subject.known,
    }


def _reference(answer: dict[str, Any]) -> Reference:
    names = ("fused", "inputs", "outputs")
    ops = [OpLayer(**{**op, **{k: tuple(op[k]) for k in names}}) for op in answer["ops"]]
    return Reference(**{**answer, "ops": tuple(ops)})
