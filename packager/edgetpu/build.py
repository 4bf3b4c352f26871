"""The Edge TPU's part of a build: the prediction, and the compiled file where that is possible."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.edgetpu import checker, compiler, show
from packager.edgetpu.compiler import Compiled
from packager.errors import PackagerError

if TYPE_CHECKING:
    from packager.bundle import Artifact
    from packager.job import Job

# The file that the compiler takes, and what it makes of it.
INPUT, COMPILED = "tflite/edgetpu", "tflite/int8_edgetpu"


def finish(job: Job) -> None:
    """Predicts the mapping of the finished file, and compiles it where Coral's compiler is."""
    artifact = next(a for a in job.artifacts if a.id == INPUT)
    path = job.folder / artifact.path
    with job.reporter.stage("predict the Edge TPU's mapping") as detail:
        predicted = checker.check(path)
        detail.append(show.summary(predicted))
    job.edgetpu = show.document(path) | {"file": artifact.path}
    if compiler.find() is None:
        job.reporter.warn(
            f"{compiler.PROGRAM} is not installed: {artifact.path} is what it takes, on a machine"
            " that has it"
        )
        return
    try:
        with job.reporter.stage(f"{COMPILED}: {compiler.PROGRAM}") as detail:
            made = compiler.compile_file(path, job.work)
            detail.append(f"{made.log.on_edge_tpu} of {made.log.operations} operators")
    except PackagerError as error:
        # The file before the compiler is a whole artifact of its own.
        job.reporter.warn(f"{COMPILED} was not made: {error.message}")
        job.edgetpu["compiler"] = {"error": error.message}
        return
    differing = compiler.differences(predicted, made.log)
    for text in differing:
        job.reporter.warn(f"{COMPILED}: {text}")
    job.edgetpu["compiler"] = {**asdict(made.log), "differences": differing}
    _add(job, artifact, made)


def _add(job: Job, artifact: Artifact, made: Compiled) -> None:
    path = f"tflite/{job.manifest.name}.int8_edgetpu.tflite"
    shutil.copyfile(made.path, job.folder / path)
    size = Path(job.folder / path).stat().st_size
    compiled: Any = replace(artifact, id=COMPILED, path=path, size_bytes=size)
    job.artifacts.append(compiled)
