"""The TF.js artifact: from the model's layers to `tfjs/layers/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle import Artifact, Runtime
from packager.console import human_size
from packager.errors import UnsupportedError
from packager.loaders import layer_graph
from packager.targets import tfjs_layers
from packager.targets.tfjs_layers import Style

if TYPE_CHECKING:
    from packager.bundle import Manifest
    from packager.children import Pending
    from packager.config import Config
    from packager.job import Job
    from packager.loaders.layer_graph import LayerGraph
    from packager.targets import Target

# The version that web/package-lock.json pins and that verification runs.
TFJS_VERSION = "4.22.0"
# TF.js' layer by the path of the Keras layer, in the scratch folder.
LAYERS = "tfjs-layers.json"


def ask(job: Job) -> Pending:
    """Asks for the model's layers and weights."""
    return job.source.submit(
        "write_layer_graph", "describing the layers", folder=job.work / "layers"
    )


def files(job: Job, target: Target) -> list[Path]:
    """What belongs to the artifact."""
    return [job.folder / "tfjs"]


def make(job: Job, pending: Pending) -> None:
    """Writes `model.json` and its shards."""
    (target,) = job.selection.of(__name__)
    with job.making([target], target.id, *files(job, target)) as detail:
        if not pending.result():
            raise UnsupportedError(
                f"{job.manifest.source.file} has no Keras layers, so the TF.js layers format cannot"
                " hold it",
                hint="give the .keras file that it was exported from",
            )
        graph = layer_graph.load(job.work / "layers")
        artifact, layers = write(graph, job.config, job.manifest, job.folder)
        detail.append(human_size(artifact.size_bytes))
        (job.work / LAYERS).write_text(json.dumps(layers), encoding="utf-8")
        job.artifacts.append(artifact)


def write(
    graph: LayerGraph, config: Config, manifest: Manifest, folder: Path
) -> tuple[Artifact, dict[str, str]]:
    """Writes `tfjs/layers/` into a bundle's folder.

    Returns:
        The artifact, and TF.js' layer by the path of the Keras layer.

    Raises:
        UnsupportedError: A layer has no exact form in TF.js.
    """
    style = Style(fold=config.fold, fused=config.fused_layers)
    written = tfjs_layers.write(graph, folder / "tfjs/layers", card=manifest.card(), style=style)
    size, script = written.files.size_bytes, None
    if written.script is not None:
        size += written.script.stat().st_size
        script = written.script.relative_to(folder).as_posix()
    artifact = Artifact(
        id="tfjs/layers",
        path=written.files.model_json.relative_to(folder).as_posix(),
        runtime=Runtime("tfjs-layers", {"@tensorflow/tfjs": TFJS_VERSION}),
        size_bytes=size,
        script=script,
    )
    return artifact, written.layers
