"""Runs every artifact with the shipped runners, measures, gates and stores golden values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from packager import bundle
from packager.bundle import Artifact, Gate, Manifest
from packager.cache import Cache
from packager.console import Reporter
from packager.errors import EnvironmentLacks, PackagerError
from packager.samples import Samples
from packager.verify import gates, golden, metrics, runners
from packager.verify.metrics import Task, output_range
from packager.verify.recorded import record as record_or_reuse
from packager.verify.runners import Runner

Array = np.ndarray[Any, Any]
# By artifact id and output name, `[N, ...]`.
Recorded = dict[str, dict[str, Array]]
_LARGEST = ("max_abs_diff", "range_diff")
UNVERIFIED = Gate("skipped", "not verified: --no-verify")


@dataclass(frozen=True)
class SourceOutputs:
    """Folders of the source model's outputs, `<output name>.npy`, `[N, ...]`.

    `nudged` are those on the golden inputs with each real number moved to a neighbouring float32.
    """

    golden: Path
    nudged: Path
    evaluation: Path | None


@dataclass(frozen=True)
class Verified:
    """What the verification found.

    Attributes:
        manifest: With metrics and gates.
        failures: Errors by artifact id.
    """

    manifest: Manifest
    failures: dict[str, PackagerError]


def verify_artifacts(
    manifest: Manifest,
    folder: Path,
    work: Path,
    source: SourceOutputs,
    data: Samples,
    reporter: Reporter,
    cache: Cache,
    jobs: int,
) -> Verified:
    """Verifies all artifacts of a bundle that is being built.

    The golden samples go through each runner's own preprocessing, from the stored files. The
    evaluation samples go in as tensors.

    Args:
        manifest: Complete but for metrics, gates and hashes.
        folder: The bundle's folder.
        work: A scratch folder.
        source: What the source model answers.
        data: The samples.
        reporter: Where the stages are shown.
        cache: Answers of the runners in earlier builds.
        jobs: How many runners work side by side; each computes on one thread.
    """
    outputs = {s.name: np.load(source.golden / f"{s.name}.npy") for s in manifest.outputs}
    measured = source.evaluation or source.golden
    ranges = {s.name: output_range(metrics.load(measured, s)) for s in manifest.outputs}
    # Without `files` the runners know that this bundle is not finished and has no hashes yet.
    unfinished = {k: v for k, v in bundle.to_json(manifest).items() if k != "files"}
    bundle.write_json(unfinished, folder / bundle.MANIFEST)
    golden.write(folder, data.golden, outputs, {}, {}, is_synthetic=data.synthetic)
    rounding = {
        name: metrics.largest_difference(array, np.load(source.nudged / f"{name}.npy"))
        for name, array in outputs.items()
    }
    job = _Verification(
        manifest, folder, work, source, data, outputs, ranges, rounding, cache, jobs
    )
    recorded, skipped, failures = job.run_all(reporter)
    tolerances = {
        a.id: golden.tolerances(a, manifest.outputs, ranges, rounding, job.kernels.get(a.id, {}))
        for a in manifest.artifacts
    }
    golden.write(folder, data.golden, outputs, recorded, tolerances, is_synthetic=data.synthetic)
    with reporter.stage("compare and gate"):
        artifacts = tuple(job.judge(a, recorded, skipped, failures) for a in manifest.artifacts)
    return Verified(replace(manifest, artifacts=artifacts), failures)


def store_golden(
    manifest: Manifest, folder: Path, source: SourceOutputs, data: Samples
) -> Manifest:
    """Stores the golden samples with the source's answers, and runs no artifact."""
    outputs = {s.name: np.load(source.golden / f"{s.name}.npy") for s in manifest.outputs}
    golden.write(folder, data.golden, outputs, {}, {}, is_synthetic=data.synthetic)
    return replace(
        manifest, artifacts=tuple(replace(a, gate=UNVERIFIED) for a in manifest.artifacts)
    )


@dataclass
class _Verification:
    """One bundle's verification; `outputs` are the source model's on the golden samples.

    `ranges` holds the range of each output, of the evaluation samples if there are any;
    `rounding` how much each moves when the inputs are nudged; `kernels` how much each output of
    an integer artifact differs between an interpreter's kernels.
    """

    manifest: Manifest
    folder: Path
    work: Path
    source: SourceOutputs
    data: Samples
    outputs: dict[str, Array]
    ranges: dict[str, float]
    rounding: dict[str, float]
    cache: Cache
    jobs: int
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)

    def run_all(
        self, reporter: Reporter
    ) -> tuple[Recorded, dict[str, str], dict[str, PackagerError]]:
        """Runs the runners; returns golden outputs, skips and failures by artifact id."""
        recorded: Recorded = {}
        skipped: dict[str, str] = {}
        failures: dict[str, PackagerError] = {}
        groups: dict[str, list[Artifact]] = {}
        for artifact in self.manifest.artifacts:
            groups.setdefault(artifact.runtime.kind, []).append(artifact)
        with reporter.stage("verify with the shipped runners") as detail:
            with runners.pool(self.jobs) as pool:
                tasks = {
                    a.id: pool.submit(self._run_one, a) for group in groups.values() for a in group
                }
            for name, task in tasks.items():
                try:
                    recorded[name] = task.result()
                except EnvironmentLacks as error:
                    hint = f" ({error.hint})" if error.hint else ""
                    skipped[name] = error.message + hint
                    reporter.warn(f"{name} was not verified: {error.message}{hint}")
                except PackagerError as error:
                    failures[name] = error
                    reporter.warn(f"{name}: {error.message}")
            detail.append(f"{len(recorded)} artifacts")
        return recorded, skipped, failures

    def _run_one(self, artifact: Artifact) -> dict[str, Array]:
        """Runs an artifact on all samples; returns its outputs on the golden samples."""
        record = self._path(artifact, "golden.json")
        evaluation = None
        if self.data.evaluation_inputs is not None:
            evaluation = (self.data.evaluation_inputs, self._path(artifact, "evaluation"))
            evaluation[1].mkdir()
        runner = runners.for_kind(artifact.runtime.kind)
        state = self._record(artifact, runner, record, evaluation)
        if state["status"] == "skipped":
            raise EnvironmentLacks(f"{artifact.id} cannot be run here: {state['reason']}")
        if state["status"] == "failed":
            return self._run_not_finite(artifact, runner, record, state["reason"])
        if evaluation and self.source.evaluation:
            self._check_sizes(artifact, evaluation[1], self.source.evaluation)
        outputs = self._read(artifact, record)
        mode = artifact.quantization.mode if artifact.quantization else ""
        if artifact.runtime.kind == "tflite" and mode.startswith(("int", "qat_int")):
            self.kernels[artifact.id] = self._compare_kernels(artifact, runner, outputs)
        return outputs

    def _record(
        self,
        artifact: Artifact,
        runner: Runner,
        record: Path,
        evaluation: tuple[Path, Path] | None,
        *flags: str,
    ) -> dict[str, Any]:
        parts = max(1, self.jobs // len(self.manifest.artifacts))
        return record_or_reuse(
            self.cache,
            self.folder,
            self.manifest,
            runner,
            artifact,
            record,
            evaluation,
            *flags,
            parts=parts,
        )

    def _read(self, artifact: Artifact, record: Path) -> dict[str, Array]:
        values = json.loads(record.read_text(encoding="utf-8"))[artifact.id]
        return golden.arrays(values, self.data.golden, self.outputs)

    def _compare_kernels(
        self, artifact: Artifact, runner: Runner, outputs: dict[str, Array]
    ) -> dict[str, float]:
        """Returns how far the interpreter's plain kernels are from those that were used.

        Devices without XNNPACK's integer kernels (32-bit ARM, tflite-runtime) run the plain ones,
        which round differently within the network.
        """
        record = self._path(artifact, "plain.json")
        state = self._record(artifact, runner, record, None, "--kernels", "plain")
        if state["status"] != "recorded":
            return {}
        plain = self._read(artifact, record)
        return {name: metrics.largest_difference(outputs[name], plain[name]) for name in outputs}

    def _run_not_finite(
        self, artifact: Artifact, runner: Runner, record: Path, reason: str
    ) -> dict[str, Array]:
        """Tells NaN and infinite outputs, which a record leaves out, from what does not run.

        Raises:
            PackagerError: The outputs are finite, so `reason` is another one.
        """
        folder = self._path(artifact, "golden-outputs")
        folder.mkdir()
        runner.record(self.folder, artifact, record, (self.data.golden_inputs, folder))
        if not all((folder / f"{name}.npy").is_file() for name in self.outputs):
            raise PackagerError(f"{artifact.id} cannot be run: {reason}")
        self._check_sizes(artifact, folder, self.source.golden)
        outputs = {
            spec.name: np.asarray(metrics.load(folder, spec)).reshape(self.outputs[spec.name].shape)
            for spec in self.manifest.outputs
        }
        if golden.is_finite(outputs):
            raise PackagerError(f"{artifact.id} cannot be run: {reason}")
        return outputs

    def _check_sizes(self, artifact: Artifact, folder: Path, source: Path) -> None:
        for spec in self.manifest.outputs:
            ours, theirs = metrics.load(folder, spec), metrics.load(source, spec)
            if len(ours) != len(theirs) or ours.size != theirs.size:
                raise PackagerError(
                    f"{artifact.id}: the output {spec.name!r} has the shape {list(ours.shape)},"
                    f" the source model's has {list(theirs.shape)}"
                )

    def _path(self, artifact: Artifact, ending: str) -> Path:
        return _work_path(self.work, artifact.id, ending)

    def judge(
        self,
        artifact: Artifact,
        recorded: Recorded,
        skipped: dict[str, str],
        failures: dict[str, PackagerError],
    ) -> Artifact:
        """Adds metrics and the gate to an artifact."""
        if artifact.id in skipped:
            return replace(artifact, gate=Gate("skipped", skipped[artifact.id]))
        if artifact.id in failures:
            return replace(artifact, gate=Gate("failed", failures[artifact.id].message))
        found = self._measure(artifact, recorded[artifact.id])
        mode = artifact.quantization.mode if artifact.quantization else "float32"
        gate = gates.check(
            mode,
            artifact.size_bytes,
            found,
            self.manifest.gates,
            synthetic=self.data.synthetic,
            rounding=max(self.rounding[name] / self.ranges[name] for name in self.ranges),
        )
        return replace(artifact, metrics=found, gate=gate)

    def _measure(self, artifact: Artifact, outputs: dict[str, Array]) -> dict[str, float]:
        threshold = 0.5 if self.manifest.threshold is None else self.manifest.threshold
        task = Task(self.manifest.task, self.manifest.outputs, threshold)
        folder = self._path(artifact, "golden")
        folder.mkdir()
        for name, array in outputs.items():
            np.save(folder / f"{name}.npy", array)
        on_golden = metrics.measure(task, self.source.golden, folder, None, self.ranges)
        if self.source.evaluation is None:
            return on_golden
        found = metrics.measure(
            task,
            self.source.evaluation,
            self._path(artifact, "evaluation"),
            self.data.targets,
            self.ranges,
        )
        return merge(found, on_golden)


def outputs_folder(work: Path, artifact_id: str, evaluated: bool) -> Path:
    """Where a verification left an artifact's outputs, `<output name>.npy`, `[N, ...]`.

    Args:
        work: The scratch folder.
        artifact_id: The artifact.
        evaluated: Those on the evaluation samples, else on the golden samples.
    """
    return _work_path(work, artifact_id, "evaluation" if evaluated else "golden")


def _work_path(work: Path, artifact_id: str, ending: str) -> Path:
    return work / f"{artifact_id.replace('/', '_')}.{ending}"


def merge(evaluation: dict[str, float], on_golden: dict[str, float]) -> dict[str, float]:
    """Joins what `metrics.measure` found on both sets of samples.

    The golden samples took the whole way through the runner's own preprocessing, so their largest
    differences count too.
    """
    non_finite = evaluation.get("non_finite", 0.0) + on_golden.get("non_finite", 0.0)
    if non_finite:
        return {"non_finite": non_finite}
    largest = {name: max(evaluation[name], on_golden[name]) for name in _LARGEST}
    return {**evaluation, **largest}
