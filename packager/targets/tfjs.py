"""The TF.js artifact: from the model's layers to `tfjs/layers/`, or else to `tfjs/graph/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from packager.bundle import Artifact, Runtime
from packager.console import human_size
from packager.errors import UnsupportedError
from packager.loaders import layer_graph
from packager.targets import tfjs_graph, tfjs_layers, tfjs_weights
from packager.targets.tfjs_files import RUNTIME
from packager.targets.tfjs_layers import Style

if TYPE_CHECKING:
    from packager.bundle import Manifest
    from packager.children import Pending
    from packager.config import Config
    from packager.job import Job
    from packager.loaders.layer_graph import LayerGraph
    from packager.targets import Target

# TF.js' layer by the path of the Keras layer, in the scratch folder.
LAYERS = "tfjs-layers.json"


def ask(job: Job) -> Pending:
    """Asks for the model's layers and weights."""
    return job.source.submit(
        "write_layer_graph",
        "describing the layers",
        reads=(),
        writes=[job.work / "layers"],
        folder=job.work / "layers",
    )


def files(job: Job, target: Target) -> list[Path]:
    """What belongs to the artifact."""
    return [job.folder / "tfjs" / "layers"]


def make(job: Job, pending: Pending) -> None:
    """Writes `model.json` and its shards; a graph where the layers have no exact form."""
    (target,) = job.selection.of(__name__)
    _make_layers(job, target, pending)
    made = any(artifact.id == target.id for artifact in job.artifacts)
    refused = any(refusal.id == target.id for refusal in job.refused)
    if job.selection.falls_back and not made and (refused or not job.lost(target)):
        tfjs_graph.make_instead(job, target)


def _make_layers(job: Job, target: Target, pending: Pending) -> None:
    with job.making([target], target.id, *files(job, target)) as detail:
        if not pending.result():
            if job.selection.falls_back:
                detail.append("the model has none")
                return
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
    rules = tfjs_weights.parse(config.tfjs_weights)
    style = Style(fold=config.fold, fused=config.fused_layers or config.web)
    written = tfjs_layers.write(
        graph, folder / "tfjs/layers", card=manifest.card(), style=style, rules=rules
    )
    size, script = written.files.size_bytes, None
    if written.script is not None:
        size += written.script.stat().st_size
        script = written.script.relative_to(folder).as_posix()
    artifact = Artifact(
        id="tfjs/layers",
        path=written.files.model_json.relative_to(folder).as_posix(),
        runtime=Runtime("tfjs-layers", RUNTIME),
        quantization=tfjs_weights.quantization(rules),
        size_bytes=size,
        script=script,
    )
    return artifact, written.layers
