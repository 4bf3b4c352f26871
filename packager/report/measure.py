"""What a build measured beyond the manifest's metrics, for the report: small JSON values.

Everything comes from arrays that the verification left in the scratch folder.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import ImageSpec, InputSpec, Manifest
from packager.samples import Samples
from packager.verify import metrics
from packager.verify.check import SourceOutputs, outputs_folder
from packager.verify.metrics import Task

Array = np.ndarray[Any, Any]
Json = dict[str, Any]

# More classes are not drawn as a matrix; their most frequent confusions are listed.
LARGEST_MATRIX = 30
_CONFUSIONS = 12
_WORST = 6
_BINS_PER_DECADE = 4
# Smaller differences count as this one.
_SMALLEST = 1e-9
_LARGEST_PICTURE = 96
_VALUES = 4
# Values of an output that are looked at together.
_PIECE = 1 << 22


@dataclass(frozen=True)
class Measured:
    """Where the outputs of the source and of the artifacts are, and what they mean."""

    manifest: Manifest
    source: SourceOutputs
    work: Path
    data: Samples

    @property
    def task(self) -> Task:
        """The task, as the gates see it."""
        threshold = 0.5 if self.manifest.threshold is None else self.manifest.threshold
        return Task(self.manifest.task, self.manifest.outputs, threshold)

    @property
    def evaluated(self) -> bool:
        """Whether there is an evaluation set; else the golden samples are all there is."""
        return self.source.evaluation is not None

    def theirs(self) -> Array:
        """The source's main output, `[N, ...]`."""
        return metrics.load(self.source.evaluation or self.source.golden, self.task.main)

    def ours(self) -> dict[str, Array]:
        """The main output of each artifact that gave finite numbers, by id."""
        return {
            a.id: metrics.load(outputs_folder(self.work, a.id, self.evaluated), self.task.main)
            for a in self.manifest.artifacts
            if "max_abs_diff" in a.metrics
        }


def collect(found: Measured) -> Json:
    """Returns the part `measured` of `report.json` (docs/report.md)."""
    theirs, ours, data = found.theirs(), found.ours(), found.data
    targets = data.targets if found.evaluated else None
    document: Json = {
        "samples": {"count": len(theirs), "synthetic": data.synthetic},
        "differences": differences(theirs, ours),
    }
    if targets is not None and found.task.kind in ("classification", "binary", "multilabel"):
        document["source_accuracy"] = metrics.accuracy(found.task, theirs, targets)
    if targets is not None and found.task.kind == "classification":
        document["confusion"] = {
            name: confusion(found.task, outputs, targets)
            for name, outputs in {"source": theirs, **ours}.items()
        }
    if found.evaluated:
        document |= _worst(found, theirs, ours, targets)
    return document


def differences(theirs: Array, ours: dict[str, Array]) -> Json:
    """Histograms of the absolute differences of an output, on one logarithmic scale.

    Returns:
        `edges`, in the output's units, and for each artifact as many `shares` (0..1) less one;
        differences below the first edge count into the first bin.
    """
    bins = round(-math.log10(_SMALLEST)) * _BINS_PER_DECADE
    largest = max((metrics.largest_difference(theirs, array) for array in ours.values()), default=0)
    bins += max(0, math.ceil(math.log10(largest) * _BINS_PER_DECADE)) if largest > 0 else 0
    edges = _SMALLEST * 10 ** (np.arange(bins + 1) / _BINS_PER_DECADE)
    shares = {}
    for name, array in ours.items():
        counts = np.zeros(bins, np.int64)
        for block, rows in _pieces(theirs):
            gap = np.abs(np.asarray(array[rows], np.float64).reshape(block.shape) - block)
            counts += np.histogram(gap.clip(edges[0], edges[-1]), edges)[0]
        shares[name] = [float(n) for n in counts / max(1, counts.sum())]
    return {"edges": [float(e) for e in edges], "shares": shares}


def _pieces(array: Array) -> Iterator[tuple[Array, slice]]:
    """Yields an array `[N, ...]`, which may be memory-mapped, in small pieces with their rows."""
    size = max(1, _PIECE // max(1, array[:1].size))
    for start in range(0, len(array), size):
        rows = slice(start, min(start + size, len(array)))
        yield np.asarray(array[rows]), rows


def confusion(task: Task, outputs: Array, targets: Array) -> Json:
    """Counts of classes and answers.

    Returns:
        `classes`; `matrix`, by target and answer, where there are few classes; and `most`, the
        most frequent wrong answers as `{"target", "answer", "count"}`.
    """
    answers = metrics.decide(task, np.asarray(outputs))
    wanted = np.asarray(targets).reshape(-1).astype(np.int64)
    classes = int(np.asarray(outputs).reshape(len(outputs), -1).shape[1])
    pairs, counts = np.unique(np.stack([wanted, answers]), axis=1, return_counts=True)
    wrong = sorted(
        ((int(n), int(t), int(a)) for (t, a), n in zip(pairs.T, counts, strict=True) if t != a),
        key=lambda entry: (-entry[0], entry[1:]),
    )
    most = [{"target": t, "answer": a, "count": n} for n, t, a in wrong[:_CONFUSIONS]]
    found: Json = {"classes": classes, "most": most}
    if classes <= LARGEST_MATRIX:
        matrix = np.zeros((classes, classes), np.int64)
        matrix[pairs[0], pairs[1]] = counts
        found["matrix"] = matrix.tolist()
    return found


def _worst(found: Measured, theirs: Array, ours: dict[str, Array], targets: Array | None) -> Json:
    """For each quantized artifact its worst samples, and their pictures by sample number."""
    modes = {a.id: a.quantization.mode for a in found.manifest.artifacts if a.quantization}
    lists: Json = {}
    for name, outputs in ours.items():
        if modes.get(name, "float32") != "float32":
            rows = _worst_rows(found.task, theirs, outputs)
            lists[name] = [_sample(found.task, i, theirs, outputs, targets) for i in rows]
    numbers = sorted({sample["index"] for samples in lists.values() for sample in samples})
    return {"worst": lists, "pictures": _pictures(found, numbers)}


def _worst_rows(task: Task, theirs: Array, ours: Array) -> list[int]:
    """Samples with another answer first, then by the largest difference."""
    ranked = []
    for block, rows in _pieces(theirs):
        other = np.asarray(ours[rows]).reshape(block.shape)
        gap = np.abs(other.astype(np.float64) - block).reshape(len(block), -1).max(axis=1)
        differs = np.zeros(len(block), bool)
        if task.kind in ("classification", "binary", "multilabel"):
            answers = metrics.decide(task, other) != metrics.decide(task, block)
            differs = answers.reshape(len(block), -1).any(axis=1)
        ranked += [
            (not differs[i], -float(gap[i]), rows.start + i) for i in range(len(block)) if gap[i]
        ]
    return [row for _, _, row in sorted(ranked)[:_WORST]]


def _sample(task: Task, row: int, theirs: Array, ours: Array, targets: Array | None) -> Json:
    pair = np.asarray(theirs[row : row + 1]), np.asarray(ours[row : row + 1])
    gap = np.abs(pair[1].astype(np.float64).reshape(-1) - pair[0].reshape(-1))
    entry: Json = {
        "index": row,
        "largest_diff": float(gap.max()),
        "source": _answer(task, pair[0]),
        "artifact": _answer(task, pair[1]),
    }
    if targets is not None and task.kind == "classification":
        entry["target"] = int(np.asarray(targets[row]).reshape(-1)[0])
    return entry


def _answer(task: Task, outputs: Array) -> Json:
    """The answer to one sample: a class with its value, or the first values."""
    flat = outputs.reshape(-1)
    if task.kind == "classification":
        chosen = int(metrics.decide(task, outputs)[0])
        return {"class": chosen, "value": float(flat[chosen])}
    return {"values": [float(v) for v in flat[:_VALUES]], "count": int(flat.size)}


def _pictures(found: Measured, rows: list[int]) -> dict[str, str]:
    spec = next((s for s in found.manifest.inputs if s.image is not None), None)
    folder = found.data.evaluation_inputs
    if spec is None or folder is None:
        return {}
    inputs = np.load(folder / f"{spec.name}.npy", mmap_mode="r")
    return {str(row): picture(np.asarray(inputs[row]), spec) for row in rows}


def picture(values: Array, spec: InputSpec) -> str:
    """What the model sees, as a small picture: a `data:` address.

    Args:
        values: The model's input for one sample, `[h, w, c]` or `[h, w]`.
        spec: The input, with an image declaration, which is inverted.
    """
    from PIL import Image

    image = spec.image or ImageSpec(1, 1, "gray")
    channels = 1 if image.channels == "gray" else 3
    pixels = (
        values.reshape(image.height, image.width, channels).astype(np.float64)
        - np.asarray(image.offset)
    ) / np.asarray(image.scale)
    pixels = np.rint(pixels).clip(0, 255).astype(np.uint8)
    pixels = pixels[..., ::-1] if image.channels == "bgr" else pixels
    shown = Image.fromarray(pixels[..., 0] if channels == 1 else np.ascontiguousarray(pixels))
    # Small inputs are kept exactly; of a photograph an impression is enough.
    is_small = max(shown.size) <= _LARGEST_PICTURE
    shown.thumbnail((_LARGEST_PICTURE, _LARGEST_PICTURE))
    stream = io.BytesIO()
    kind = "png" if is_small else "jpeg"
    shown.save(stream, kind, quality=80)
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()
