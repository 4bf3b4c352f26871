"""Says what the outputs of one sample mean, by the task that the manifest names.

The same answer as `predict` of the device runner gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packager_server.codes import Code, ServeError
from packager_server.model import Array, Tensors

_WITH_SCORES = ("classification", "binary", "multilabel")


def explain(outputs: Tensors, manifest: Mapping[str, Any], top: int) -> dict[str, Any]:
    """Returns label and score, the labels above the threshold, or the plain outputs.

    Args:
        outputs: Arrays of one sample by output name, without the batch axis.
        manifest: Of the bundle; `labels`, `task` and `threshold` may be absent.
        top: How many classes are listed.

    Raises:
        ServeError: An output is not finite: no score means anything then.
    """
    for name, values in outputs.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ServeError(f"output {name!r} holds NaN or infinity", Code.INTERNAL)
    task = manifest.get("task", "none")
    if task not in _WITH_SCORES:
        return {"outputs": {name: values.tolist() for name, values in outputs.items()}}
    spec = manifest["outputs"][0]
    scores = _probabilities(outputs[spec["name"]], spec.get("activation", "none"), task)
    threshold = manifest.get("threshold")
    threshold = 0.5 if threshold is None else threshold
    labels = list(manifest.get("labels") or [])
    if task == "binary":
        return _binary(float(scores[0]), labels, threshold)
    order = np.argsort(-scores, kind="stable")[:top].tolist()
    ranked = [{"class": i, "label": _name(labels, i), "score": float(scores[i])} for i in order]
    if task == "classification":
        return {**ranked[0], "top": ranked}
    present = np.flatnonzero(scores >= threshold).tolist()
    return {"labels": [_name(labels, i) for i in present], "top": ranked}


def _probabilities(values: Array, activation: str, task: str) -> Array:
    scores: Array = values.ravel().astype(np.float64)
    if activation != "logits":
        return scores
    if task == "classification":
        powers: Array = np.exp(scores - scores.max())
        shares: Array = powers / powers.sum()
        return shares
    # sigmoid(x) = (1 + tanh(x / 2)) / 2, and tanh cannot overflow.
    sigmoid: Array = (1.0 + np.tanh(scores / 2)) / 2
    return sigmoid


def _binary(score: float, labels: list[str], threshold: float) -> dict[str, Any]:
    number = int(score >= threshold)
    if len(labels) == 1:
        labels = [f"not {labels[0]}", labels[0]]
    return {"class": number, "label": _name(labels, number), "score": score}


def _name(labels: list[str], number: int) -> str:
    return labels[number] if number < len(labels) else str(number)
