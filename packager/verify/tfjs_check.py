"""Looks into TF.js layers models: at logits, and for the first layer whose numbers differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import Artifact, GateCheck, Manifest
from packager.cache import Cache
from packager.children import Child
from packager.errors import PackagerError
from packager.verify import recorded, runners

# Of the logits' range. Deep nets without a softmax stay below it; what computes something else
# does not.
LOGITS_LIMIT = 1e-4
# A layer differs from this share of its range on; single layers stay below 1e-5.
_LAYER_LIMIT = 1e-4
_SCORES = ("softmax", "sigmoid")
KIND = "tfjs-layers"


@dataclass(frozen=True)
class Inside:
    """What is needed to look into a model.

    Attributes:
        folder: The bundle's folder.
        work: A scratch folder.
        inputs: The golden samples' inputs, `<input>.npy`.
        layers: TF.js' layer by the path of the Keras layer, in the model's order.
        logits: Outputs that the source wrote as `logits/0.npy`, … into the scratch folder.
        opened: Opens the source model again in a child process.
        cache: Answers of the runner in earlier builds.
    """

    folder: Path
    work: Path
    inputs: Path
    layers: dict[str, str]
    logits: list[str]
    opened: Callable[[], AbstractContextManager[Child]]
    cache: Cache


def check(manifest: Manifest, inside: Inside) -> Manifest:
    """Adds the difference of the logits to TF.js layers models, and the layer that is to blame.

    After a softmax, numbers that are wrong by a little, or all by the same amount, look right.
    Weights in fewer bits change every layer, so nothing is to be found there.
    """
    artifacts = tuple(
        # What did not run has a gate without checks.
        _checked(a, manifest, inside)
        if a.runtime.kind == KIND and a.gate.checks and a.quantization is None
        else a
        for a in manifest.artifacts
    )
    return replace(manifest, artifacts=artifacts)


def _checked(artifact: Artifact, manifest: Manifest, inside: Inside) -> Artifact:
    artifact = _with_logits(artifact, manifest, inside)
    gate = artifact.gate
    differs = any(
        c.status == "failed" and c.name in ("max_abs_diff", "max_logits_diff") for c in gate.checks
    )
    if not differs:
        return artifact
    culprit = first_difference(artifact, inside)
    if culprit is None:
        return artifact
    reason = f"{gate.reason}; {culprit}" if gate.reason else culprit
    return replace(artifact, gate=replace(gate, reason=reason))


def _with_logits(artifact: Artifact, manifest: Manifest, inside: Inside) -> Artifact:
    ends = _score_layers(inside.folder / artifact.path)
    names = [spec.name for spec in manifest.outputs]
    pairs = [(i, ends[names.index(name)]) for i, name in enumerate(inside.logits)]
    pairs = [(i, layer) for i, layer in pairs if layer]
    if not pairs:
        return artifact
    try:
        ours = _run(artifact, inside, [layer for _, layer in pairs], "--logits")
    except PackagerError as error:
        unknown = GateCheck("max_logits_diff", "skipped", limit=LOGITS_LIMIT, reason=error.message)
        gate = replace(artifact.gate, checks=(*artifact.gate.checks, unknown))
        return replace(artifact, gate=gate)
    worst = max(
        share(np.load(inside.work / "logits" / f"{i}.npy"), ours[layer]) for i, layer in pairs
    )
    status = "passed" if worst <= LOGITS_LIMIT else "failed"
    checked = GateCheck("max_logits_diff", status, worst, LOGITS_LIMIT)
    gate = replace(artifact.gate, checks=(*artifact.gate.checks, checked))
    if status == "failed":
        text = f"max_logits_diff: {worst:.3g}, limit {LOGITS_LIMIT:g}"
        gate = replace(gate, status="failed", reason=text)
    metrics = artifact.metrics | {"logits_range_diff": worst}
    return replace(artifact, metrics=metrics, gate=gate)


def _score_layers(model_json: Path) -> list[str]:
    """For each output the TF.js layer that ends in a softmax or sigmoid, or nothing."""
    config = json.loads(model_json.read_text(encoding="utf-8"))["modelTopology"]["model_config"]
    by_name = {layer["name"]: layer for layer in config["config"]["layers"]}
    found = []
    for name, *_ in config["config"]["output_layers"]:
        layer = by_name[name]
        scores = layer["class_name"] == "Softmax" or layer["config"].get("activation") in _SCORES
        found.append(name if scores and len(layer["inbound_nodes"]) == 1 else "")
    return found


def first_difference(artifact: Artifact, inside: Inside) -> str | None:
    """Names the first layer whose numbers differ from the source's; None if all agree."""
    paths = [path for path in inside.layers if "/" not in path]
    folder = inside.work / "layer-outputs"
    folder.mkdir(exist_ok=True)
    with inside.opened() as child:
        names = child.call(
            "probe", "looking into the layers", inputs=inside.inputs, outputs=folder, layers=paths
        )
    try:
        ours = _run(artifact, inside, [inside.layers[name] for name in names])
    except PackagerError as error:
        return f"its layers cannot be compared: {error.message}"
    for number, name in enumerate(names):
        difference = share(np.load(folder / f"{number}.npy"), ours[inside.layers[name]])
        if not difference <= _LAYER_LIMIT:
            return (
                f"the first layer that differs is {name!r} (TF.js: {inside.layers[name]!r}), by"
                f" {difference:.2g} of its range"
            )
    return None


def _run(
    artifact: Artifact, inside: Inside, layers: list[str], *flags: str
) -> dict[str, np.ndarray[Any, Any]]:
    """What these layers of the TF.js model give on the golden samples."""
    outputs = inside.work / f"tfjs-layers{len(list(inside.work.glob('tfjs-layers*')))}"
    runner = runners.for_kind(KIND)
    model, given = inside.folder / artifact.path, ("--layers", ",".join(layers), *flags)
    key = inside.cache.key(
        {
            "runner": [runner.name, *given],
            "content": recorded.content(inside.folder, artifact, inside.cache),
            "inputs": inside.cache.digest(inside.inputs),
        }
    )
    inside.cache.remembered(
        key, [outputs], lambda: runner.run(model, inside.inputs, outputs, *given)
    )
    return {name: np.load(outputs / f"{name}.npy") for name in layers}


def share(theirs: np.ndarray[Any, Any], ours: np.ndarray[Any, Any]) -> float:
    """The largest difference as a share of the range; infinite for other shapes or NaN."""
    if theirs.shape != ours.shape:
        return float("inf")
    theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
    largest = float(np.abs(theirs - ours).max(initial=0.0))
    spread = float(np.ptp(theirs)) if theirs.size else 0.0
    found = largest / (spread or max(1.0, float(np.abs(theirs).max(initial=0.0))))
    return found if np.isfinite(found) else float("inf")
