"""Describes a model in a manifest: from what TensorFlow opened, or from a `.keras` file alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import packager
from packager import bundle, declare
from packager.bundle import Manifest
from packager.config import Config
from packager.errors import ModelError
from packager.labels import check_distinct, check_labels, read_labels
from packager.loaders import keras_file
from packager.loaders.layer_graph import LayerGraph
from packager.loaders.model_file import ModelFile
from packager.publish import Staging
from packager.targets import tfjs_layers
from packager.targets.tfjs_flatten import UniqueNames

_TOOLS = ("ai-edge-litert", "litert-quantizer", "pillow")


def from_file(found: ModelFile) -> tuple[LayerGraph, dict[str, Any]] | None:
    """Reads a `.keras` file of Keras 3 without Keras.

    Returns:
        Its layers, and its ends as `manifest_of` takes them; None where Keras must open it.
    """
    if found.format != "keras3":
        return None
    graph = keras_file.read(Path(found.source))
    plan = tfjs_layers.plan(graph, UniqueNames()) if graph else None
    # A refusal is worded once Keras has opened the file.
    if graph is None or plan is None or plan.reasons:
        return None
    ends = keras_file.ends(graph, plan.outputs)
    if ends is None:
        return None
    return graph, {**ends, "saved_by": found.saved_by, "tools": {}, "as_python": False}


def manifest_of(
    config: Config, found: ModelFile, stage: Staging, opened: dict[str, Any]
) -> Manifest:
    """Declares the inputs, outputs and task of a model.

    Args:
        config: The configuration.
        found: The model's file.
        stage: Where the bundle will be.
        opened: What the TensorFlow child's `open` answered, or `from_file`.

    Raises:
        ConfigError: The configuration does not fit the model.
        ModelError: An output is text.
    """
    labels = _labels(config)
    # Without a graph the activation was measured: numbers between 0 and 1 may be something else.
    unclear = opened["as_python"] and opened["outputs"][0]["activation"] == "sigmoid"
    declared = declare.declare(
        opened,
        task=config.task or ("none" if unclear and not labels else None),
        threshold=config.threshold,
        labels=labels,
        preprocess=config.preprocess,
    )
    _refuse_text(opened["outputs"])
    outputs = [bundle.to_json(output) for output in declared.outputs]
    check_labels(list(declared.labels), outputs, declared.task)
    is_path = found.format != "callable"
    file = Path(found.source).resolve().name if is_path else found.source
    return Manifest(
        name=stage.target.parent.name,
        version=stage.version,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=bundle.Source(file, found.sha256, found.format, opened["saved_by"]),
        task=declared.task,
        threshold=declared.threshold,
        inputs=declared.inputs,
        outputs=declared.outputs,
        labels=declared.labels,
        gates=config.gates,
        tools=_tools(opened["tools"]),
    )


def _refuse_text(outputs: list[dict[str, Any]]) -> None:
    for end in outputs:
        if end["dtype"] == "string":
            raise ModelError(
                f"the output {end['name']!r} is text; packager compares numbers",
                hint="end the model before the numbers become text; labels belong to --labels",
            )


def _labels(config: Config) -> tuple[str, ...]:
    if isinstance(config.labels, str):
        return tuple(read_labels(Path(config.labels)))
    labels = config.labels or ()
    if labels:
        check_distinct(labels, "labels")
    return labels


def _tools(opened: dict[str, str]) -> dict[str, str]:
    found = {"packager": packager.__version__, "python": platform.python_version(), **opened}
    for name in _TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
