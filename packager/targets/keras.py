"""The Keras model itself: a `.keras` file, or code by reference. Only the server runs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle import Artifact, Runtime
from packager.console import human_size

if TYPE_CHECKING:
    from packager.children import Pending
    from packager.job import Job
    from packager.targets import Target

_FILE = "keras/model.keras"


def ask(job: Job) -> Pending | None:
    """Asks for the file where the source is of another format; code stays where it is."""
    path = job.folder / _FILE
    if job.manifest.source.format == "callable":
        return None
    path.parent.mkdir()
    if job.manifest.source.format == "keras3":
        return None
    return job.source.submit(
        "write_keras", "writing the Keras model", reads=(), writes=[path], path=path
    )


def files(job: Job, target: Target) -> list[Path]:
    """What belongs to the Keras model."""
    return [job.folder / "keras"]


def make(job: Job, pending: Pending | None) -> None:
    """Adds the Keras model; a `.keras` file of Keras 3 is copied as it is."""
    (target,) = job.selection.of(__name__)
    with job.making([target], "Keras model", *files(job, target)) as detail:
        # An archive is read by the Keras that wrote it and by newer ones.
        runtime = Runtime("keras", {name: job.manifest.tools[name] for name in ("keras",)})
        modules = tuple(job.config.model.custom_objects)
        if job.manifest.source.format == "callable":
            detail.append(f"code, {job.manifest.source.file}")
            code = job.manifest.source.file
            job.artifacts.append(
                Artifact("keras", ".", runtime, code=code, custom_objects=modules or None)
            )
            return
        path = job.folder / _FILE
        if pending is None:
            shutil.copyfile(job.config.model.source, path)
        else:
            pending.result()
        size = path.stat().st_size
        detail.append(human_size(size))
        job.artifacts.append(
            Artifact("keras", _FILE, runtime, size_bytes=size, custom_objects=modules or None)
        )
