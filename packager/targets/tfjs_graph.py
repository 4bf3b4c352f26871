"""The TF.js graph artifact: from the model's operators to `tfjs/graph/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle import Artifact, Runtime
from packager.console import human_size
from packager.targets import TARGETS, tfjs_weights
from packager.targets.tfjs_files import RUNTIME

if TYPE_CHECKING:
    from packager.children import Pending
    from packager.job import Job
    from packager.targets import Target

ID = "tfjs/graph"


def ask(job: Job) -> Pending:
    """Asks for the graph model's files in the bundle's folder."""
    return job.source.submit(
        "write_tfjs_graph",
        f"writing {ID}",
        reads=(),
        writes=[job.folder / "tfjs" / "graph"],
        folder=job.folder / "tfjs" / "graph",
        card=job.manifest.card(),
        weights=job.config.tfjs_weights,
    )


def files(job: Job, target: Target) -> list[Path]:
    """What belongs to the artifact."""
    return [job.folder / "tfjs" / "graph"]


def make(job: Job, pending: Pending) -> None:
    """Adds the graph model."""
    target = TARGETS[ID]
    with job.making([target], ID, *files(job, target)) as detail:
        written = pending.result()
        detail.append(human_size(written["size_bytes"]))
        fused = ", ".join(f"{count} {op}" for op, count in written["fused"].items())
        detail += [fused] if fused else []
        job.artifacts.append(
            Artifact(
                id=ID,
                path="tfjs/graph/model.json",
                runtime=Runtime("tfjs-graph", RUNTIME),
                quantization=tfjs_weights.quantization(tfjs_weights.parse(job.config.tfjs_weights)),
                size_bytes=written["size_bytes"],
            )
        )


def make_instead(job: Job, layers: Target) -> None:
    """Makes the graph model in place of the layers model, whose refusal is then no failure."""
    make(job, ask(job))
    if not job.lost(TARGETS[ID]):
        job.failures = [failure for failure in job.failures if failure.id != layers.id]
