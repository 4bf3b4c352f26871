"""Runs every artifact with the shipped runners, measures, gates and stores golden values."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packager import bundle
from packager.bundle import Artifact, Gate, Manifest
from packager.console import Reporter
from packager.errors import EnvironmentLacks, PackagerError
from packager.samples import Samples
from packager.verify import gates, golden, metrics, runners
from packager.verify.metrics import Task

Array = np.ndarray[Any, Any]
# Each runner computes on one thread; the machine's cores are shared by this many.
PARALLEL = 2


@dataclass(frozen=True)
class SourceOutputs:
    """Folders of the source model's outputs, `<output name>.npy`, `[N, ...]`."""

    golden: Path
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
    """
    outputs = {s.name: np.load(source.golden / f"{s.name}.npy") for s in manifest.outputs}
    # Without `files` the runners know that this bundle is not finished and has no hashes yet.
    unfinished = {k: v for k, v in bundle.to_json(manifest).items() if k != "files"}
    bundle.write_json(unfinished, folder / bundle.MANIFEST)
    write_golden(manifest, folder, data, outputs, {})
    job = _Verification(manifest, folder, work, source, data)
    recorded, skipped, failures = job.run_all(reporter)
    write_golden(manifest, folder, data, outputs, recorded)
    with reporter.stage("compare and gate"):
        artifacts = tuple(job.judge(a, recorded, skipped, failures) for a in manifest.artifacts)
    return Verified(replace(manifest, artifacts=artifacts), failures)


def write_golden(
    manifest: Manifest,
    folder: Path,
    data: Samples,
    outputs: dict[str, Array],
    recorded: golden.Values,
) -> None:
    """Writes `golden/samples.json` with the values recorded so far."""
    spread = {name: float(np.ptp(a)) or 1.0 for name, a in outputs.items()}
    tolerance = {
        a.id: golden.tolerances(a, manifest.outputs, spread)
        for a in manifest.artifacts
        if a.id in recorded
    }
    golden.write(folder, data.golden, outputs, recorded, tolerance, is_synthetic=data.synthetic)


@dataclass
class _Verification:
    manifest: Manifest
    folder: Path
    work: Path
    source: SourceOutputs
    data: Samples

    def run_all(
        self, reporter: Reporter
    ) -> tuple[golden.Values, dict[str, str], dict[str, PackagerError]]:
        """Runs the runners; returns recorded values, skips and failures by artifact id."""
        recorded: golden.Values = {}
        skipped: dict[str, str] = {}
        failures: dict[str, PackagerError] = {}
        groups: dict[str, list[Artifact]] = {}
        for artifact in self.manifest.artifacts:
            groups.setdefault(artifact.runtime.kind, []).append(artifact)
        with reporter.stage("verify with the shipped runners") as detail:
            with ThreadPoolExecutor(PARALLEL) as pool:
                tasks = {
                    a.id: pool.submit(self._run_one, a) for group in groups.values() for a in group
                }
            for name, task in tasks.items():
                try:
                    recorded.update(task.result())
                except EnvironmentLacks as error:
                    skipped[name] = f"{error.message}: {error.hint}"
                    reporter.warn(f"{name} was not verified: {error.message} ({error.hint})")
                except PackagerError as error:
                    failures[name] = error
                    reporter.warn(f"{name}: {error.message}")
            detail.append(f"{len(recorded)} artifacts")
        return recorded, skipped, failures

    def _run_one(self, artifact: Artifact) -> golden.Values:
        stem = artifact.id.replace("/", "_")
        record = self.work / f"{stem}.golden.json"
        evaluation = None
        if self.data.evaluation_inputs is not None:
            outputs = self.work / f"{stem}.evaluation"
            outputs.mkdir()
            evaluation = (self.data.evaluation_inputs, outputs)
        runner = runners.for_kind(artifact.runtime.kind)
        state = runner.record(self.folder, artifact, record, evaluation)
        if state["status"] not in ("recorded", "passed"):
            raise PackagerError(f"{artifact.id} cannot be run: {state['reason']}")
        values: golden.Values = json.loads(record.read_text(encoding="utf-8"))
        return values

    def judge(
        self,
        artifact: Artifact,
        recorded: golden.Values,
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
        )
        return replace(artifact, metrics=found, gate=gate)

    def _measure(self, artifact: Artifact, values: dict[str, Any]) -> dict[str, float]:
        task = Task(self.manifest.task, self.manifest.outputs, self.manifest.threshold or 0.5)
        stem = artifact.id.replace("/", "_")
        folder = self.work / f"{stem}.golden"
        folder.mkdir()
        for spec in self.manifest.outputs:
            rows = [values[sample.id][spec.name] for sample in self.data.golden]
            shape = np.load(self.source.golden / f"{spec.name}.npy", mmap_mode="r").shape
            np.save(folder / f"{spec.name}.npy", np.asarray(rows, np.float32).reshape(shape))
        labels = _golden_labels(self.data)
        on_golden = metrics.measure(task, self.source.golden, folder, labels)
        if self.source.evaluation is None:
            return {k: v for k, v in on_golden.items() if k not in ("accuracy", "drop")}
        evaluation = self.work / f"{stem}.evaluation"
        found = metrics.measure(task, self.source.evaluation, evaluation, self.data.targets)
        if "non_finite" in on_golden:
            return on_golden
        # Golden samples took the whole way through the runner's own preprocessing.
        for name in ("max_abs_diff", "range_diff"):
            if name in found:
                found[name] = max(found[name], on_golden[name])
        return found


def _golden_labels(data: Samples) -> Array | None:
    labels = [sample.label for sample in data.golden]
    return None if None in labels else np.array(labels)
