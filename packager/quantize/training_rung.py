"""The third rung of `--auto`: quantization-aware training, where the rungs below did not hold.

The trained file is an artifact of its own. Where it keeps the gates, the int8 artifacts that do
not are taken out of the bundle, which they would reject.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packager.bundle import Manifest, Refusal
from packager.errors import PackagerError
from packager.job import remove
from packager.quantize import decide, ladder, pool
from packager.quantize.exclude import within
from packager.quantize.ladder import Ladder, Step
from packager.quantize.plan import Plan
from packager.verify import golden

if TYPE_CHECKING:
    from packager.job import Job
    from packager.targets import Target

_TRAINED = "tflite/qat_int8"
# What training takes the place of. Files for the Edge TPU have other scales, and need theirs.
_REPLACED = ("tflite/int8", "tflite/int8_float_io")


def is_needed(job: Job) -> bool:
    """Whether to train: without `--auto` always, else where no plan keeps the gates."""
    targets = _below(job)
    return not job.config.int8.auto or not targets or any(not _holds(job, t) for t in targets)


def spare(job: Job, target: Target) -> None:
    """Says why nothing is trained."""
    names = " and ".join(t.id for t in _below(job))
    reason = f"{names} keep the gates already, so nothing was trained"
    if len(_below(job)) == 1:
        reason = reason.replace(" keep ", " keeps ")
    job.refused.append(Refusal(target.id, reason, "without --auto, --train always trains"))
    job.reporter.done(target.id, 0.0, reason)
    for name in _climbed(job):
        climb = job.climbs[name]
        job.climbs[name] = replace(climb, reason=f"{climb.reason}; nothing was trained")


def add_step(job: Job, target: Target) -> None:
    """Adds the trained file, or why there is none, to the climbs that did not hold."""
    names = [name for name in _climbed(job) if not job.climbs[name].chosen.holds]
    if not names:
        return
    with job.reporter.stage("compare the trained file") as detail:
        step = _step(job, target)
        detail.append("keeps the gates" if step.holds else "does not keep the gates")
    for name in names:
        job.climbs[name] = ladder.one_more(job.climbs[name], step)


def replaced(job: Job, manifest: Manifest) -> Manifest:
    """Takes out the int8 artifacts that fail where the trained one passes.

    Args:
        job: The build; what it has made is changed, too.
        manifest: With gates.
    """
    passed = {a.id for a in manifest.artifacts if a.gate.status == "passed"}
    failures = {failure.id for failure in job.failures}
    if not job.config.int8.auto or _TRAINED not in passed:
        return manifest
    out = {
        a.id: a
        for a in manifest.artifacts
        if a.id in _REPLACED and a.gate.status == "failed" and a.id not in failures
    }
    for artifact in out.values():
        remove(job.folder / artifact.path)
        reason = f"it does not keep the gates ({artifact.gate.reason}), and {_TRAINED} does"
        hint = f"use {_TRAINED}; a gate that is less strict keeps this file, too"
        job.refused.append(Refusal(artifact.id, reason, hint))
        job.reporter.warn(f"{artifact.id} is left out: {reason}")
    golden.forget(job.folder, list(out))
    job.artifacts = [a for a in job.artifacts if a.id not in out]
    kept = tuple(a for a in manifest.artifacts if a.id not in out)
    return replace(manifest, artifacts=kept, refused=tuple(job.refused))


def _below(job: Job) -> list[Target]:
    return [target for target in job.selection.targets if target.id in _REPLACED]


def _climbed(job: Job) -> list[str]:
    return [target.id for target in _below(job) if target.id in job.climbs]


def _holds(job: Job, target: Target) -> bool:
    # One that was made as another, which held, has no climb of its own.
    climb = job.climbs.get(target.id)
    return not job.lost(target) if climb is None else climb.chosen.holds


def _step(job: Job, target: Target) -> Step:
    lost = {r.id: r.reason for r in job.refused} | {f.id: f.error.message for f in job.failures}
    if target.id in lost:
        return Step("training", None, None, False, lost[target.id])
    (path,) = (job.folder / a.path for a in job.artifacts if a.id == target.id)
    start = Plan()
    try:
        with pool.opened(
            decide.subject(job, start), job.work, processes=1, cache=job.cache
        ) as trials:
            integer = job.config.int8.require_integer
            conditions = Ladder(trials, start, within(job.config.gates), integer)
            return conditions.judged("training", None, trials.file(path))
    except PackagerError as error:
        return Step("training", None, None, False, error.message)
