"""Measures every artifact on every runtime of this machine that can run it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import packager
from packager import assets, bundle, hashes, report, sandbox, web
from packager.bundle import Artifact, Manifest, to_json
from packager.children import scratch
from packager.console import Reporter
from packager.errors import BundleError, PackagerError
from packager.report import results
from packager.samples import write_golden_inputs

Json = dict[str, Any]

SCHEMA = {"name": "packager-bench", "version": 1}
_HERE = Path(__file__).parent
_TIMEOUT_S = 600.0
_BACKENDS = ("wasm", "cpu")
_TITLES = {"tfjs": "tfjs", "litert": "LiteRT.js"}
# What a report shows of the device runner's entry.
_KEPT = (
    "runtime", "max_abs_diff", "timed", "latency_ms", "preprocess_ms", "postprocess_ms", "load_ms",
    "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        threads: Numbers of threads for the runtimes that take one.
        runs: Timed inferences for each row.
        warm_up: Inferences before them; for TFLite files one round of the golden samples.
        seconds: After so many no more are timed, once there are five; not for TFLite files.
        pythons: Other Python programs whose TFLite interpreters are measured too.
        browser: Measure in Chromium.
        only: Ids of the artifacts to measure; empty: all.
    """

    threads: tuple[int, ...] = (1,)
    runs: int = 100
    warm_up: int = 10
    seconds: float = 10.0
    pythons: tuple[str, ...] = ()
    browser: bool = True
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Work:
    """What the children are told."""

    folder: Path
    manifest: Manifest
    inputs: Path
    samples: int
    settings: Settings

    def order(self, artifact: Artifact, **more: object) -> Json:
        """The JSON argument of a child."""
        settings = self.settings
        return {
            "model": str(self.folder / artifact.path), "inputs": str(self.inputs),
            "samples": self.samples, "runs": settings.runs, "warm_up": settings.warm_up,
            "seconds": settings.seconds, "min_version": artifact.runtime.min_version, **more,
        }  # fmt: skip


def measure(folder: Path, settings: Settings, reporter: Reporter) -> Json:
    """Measures a bundle.

    Args:
        folder: The bundle's folder.
        settings: How to measure.
        reporter: Where each row is shown.

    Returns:
        The document that `packager report --merge` takes; see docs/report.md.

    Raises:
        BundleError: The bundle is damaged, or has no golden samples to run.
    """
    manifest = bundle.read_manifest(folder)
    problems = hashes.check_files(folder, manifest)
    if problems:
        raise BundleError(
            f"{folder}: {problems[0][0]} is {problems[0][1]}; it is not what was built",
            hint="packager verify names all files that changed",
        )
    with scratch("bench") as work:
        golden = _golden_files(folder, manifest)
        inputs = write_golden_inputs(golden, manifest, folder, work / "golden")
        job = _Work(folder, manifest, inputs, len(golden), settings)
        rows = [_shown(row, reporter) for row in _rows(job)]
    return {
        "schema": SCHEMA,
        "runner": "bench",
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "bundle": {
            "name": manifest.name,
            "version": manifest.version,
            "manifest_sha256": results.manifest_sha256(folder),
        },
        "machine": report.machine(),
        "runtime": {"name": "packager", "version": packager.__version__},
        "settings": to_json(settings),
        "artifacts": rows,
    }


def _golden_files(folder: Path, manifest: Manifest) -> list[dict[str, str]]:
    if manifest.golden is None:
        raise BundleError(
            f"{folder} has no golden samples to run", hint="build it without --no-verify"
        )
    return [s["inputs"] for s in bundle.read_json(folder / manifest.golden.path)["samples"]]


def _rows(job: _Work) -> Iterator[Json]:
    wanted = job.settings.only or tuple(a.id for a in job.manifest.artifacts)
    for artifact in map(job.manifest.artifact, wanted):
        kind = artifact.runtime.kind
        if kind == "tflite":
            yield from _tflite(job, artifact)
            if artifact.id in web.BROWSER_ARTIFACTS:
                yield from _chromium(job, artifact, "litert", ("wasm",))
        elif kind == "saved_model":
            for threads in job.settings.threads:
                yield _saved_model(job, artifact, threads)
        elif kind.startswith("tfjs"):
            yield from _tfjs(job, artifact)
            yield from _chromium(job, artifact, "tfjs", _BACKENDS)
        else:
            reason = f"no benchmark of {kind}"
            yield {"id": artifact.id, "status": "skipped", "reason": reason}


def _tflite(job: _Work, artifact: Artifact) -> Iterator[Json]:
    for python in (sys.executable, *job.settings.pythons):
        for threads in job.settings.threads:
            command = [
                python, str(assets.edge_runner()), "bench", str(job.folder), "--json",
                "--artifact", artifact.id, "--threads", str(threads),
                "--runs", str(job.settings.runs),
            ]  # fmt: skip
            yield _by_runner(artifact, command, threads)


def _by_runner(artifact: Artifact, command: list[str], threads: int) -> Json:
    """What the device runner measured: a file is timed only while its answers are right."""
    row: Json = {"id": artifact.id, "threads": threads}
    try:
        (entry,) = _ask(command)["artifacts"]
    except PackagerError as error:
        return {**row, "status": "failed", "reason": error.message}
    if entry["status"] != "passed":
        found = {key: entry[key] for key in ("runtime", "status", "reason") if key in entry}
        return {**row, **found}
    return {**row, **{k: entry[k] for k in _KEPT if k in entry}, "status": "measured"}


def _saved_model(job: _Work, artifact: Artifact, threads: int) -> Json:
    try:
        server = assets.server_engine().parents[1]
    except PackagerError as error:
        return {"id": artifact.id, "status": "skipped", "reason": error.message}
    order = job.order(artifact, threads=threads, server=str(server), model=str(job.folder))
    return _row(
        artifact, [sys.executable, str(_HERE / "server_child.py"), json.dumps(order)], threads
    )


def _tfjs(job: _Work, artifact: Artifact) -> Iterator[Json]:
    program, vendor = assets.node(), assets.web_vendor()
    missing = "" if program else "Node.js is not installed"
    missing = missing or ("" if vendor.is_dir() else "web/vendor is missing: make vendor")
    for backend in _BACKENDS:
        runtime = {"name": f"tfjs {backend} (Node)", "version": ""}
        if missing or program is None:
            yield {"id": artifact.id, "status": "skipped", "reason": missing, "runtime": runtime}
            continue
        order = job.order(artifact, backend=backend, vendor=str(vendor))
        script = assets.path() / "web" / "node" / "bench.mjs"
        command = [program, str(script), json.dumps(order)]
        row = _row(artifact, command, 1, memory_limit=False)
        yield {**row, "runtime": _named(row.get("runtime"), f"tfjs {backend} (Node)")}


def _chromium(
    job: _Work, artifact: Artifact, library: str, backends: tuple[str, ...]
) -> Iterator[Json]:
    if not job.settings.browser:
        return
    settings = {key: getattr(job.settings, key) for key in ("warm_up", "runs", "seconds")}
    # TF.js chooses its threads itself.
    for threads in job.settings.threads if library == "litert" else (1,):
        for backend in backends:
            name = f"{_TITLES[library]} {backend} (Chromium)"
            candidate = {"library": library, "backend": backend, "artifact": artifact.id,
                         "title": name}  # fmt: skip
            order = {"candidate": candidate, "threads": threads, "settings": settings}
            program = [sys.executable, "-m", "packager.bench.browser", str(job.folder)]
            command = [*program, json.dumps(order)]
            found = _row(artifact, command, threads, memory_limit=False)
            yield {**found, "runtime": _named(found.get("runtime"), name)}


def _named(runtime: Json | None, name: str) -> Json:
    return {"name": name, "version": str((runtime or {}).get("version") or "")}


def _row(
    artifact: Artifact, command: list[str], threads: int, *, memory_limit: bool = True
) -> Json:
    """One row of the document: what a child answered, or why it did not."""
    row: Json = {"id": artifact.id, "threads": threads}
    try:
        answer = _ask(command, memory_limit=memory_limit)
    except PackagerError as error:
        return {**row, "status": "failed", "reason": error.message}
    if "skipped" in answer:
        return {**row, "runtime": answer.get("runtime"), "status": "skipped",
                "reason": answer["skipped"]}  # fmt: skip
    times = answer["times"]
    quantiles = np.percentile(times, [0, 50, 90, 99]).tolist()
    return {
        **row,
        "runtime": answer["runtime"],
        "status": "measured",
        "timed": len(times),
        "latency_ms": dict(zip(("min", "p50", "p90", "p99"), quantiles, strict=True)),
        "load_ms": answer["load_ms"],
        **{key: answer[key] for key in ("peak_memory_bytes", "memory_bytes") if answer.get(key)},
    }


def _ask(command: list[str], *, memory_limit: bool = True) -> Json:
    """The JSON that a confined child prints as its last line; none of its processes outlives it."""
    if shutil.which(command[0]) is None:
        raise PackagerError(f"{command[0]} cannot be started: there is no such program")
    environment = {**sandbox.environment(os.environ), "CUDA_VISIBLE_DEVICES": "-1"}
    with subprocess.Popen(
        # Node.js and Chromium reserve more addresses than there are.
        sandbox.command(command, memory_limit=memory_limit),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"}, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            out, err = child.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PackagerError(f"no answer in {_TIMEOUT_S:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    try:
        answer: Json = json.loads(out.strip().splitlines()[-1])
        return answer
    except (IndexError, ValueError):
        text = (err.strip().splitlines() or [f"it ended with {child.returncode}"])[-1]
        raise PackagerError(text) from None


def _shown(row: Json, reporter: Reporter) -> Json:
    runtime = row.get("runtime") or {}
    name = f"{row['id']} on {runtime.get('name', 'this machine')}"
    latency = row.get("latency_ms")
    detail = f"p50 {latency['p50']:.3f} ms" if latency else f"{row['status']}: {row['reason']}"
    if not reporter.quiet:
        reporter.rich.print(f"  {name:<46} {detail}", markup=False)
    return row
