"""Compares two sides: what was declared first, then what was learned, computed and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.diff.contents import ModelFile, Side, Tensor
from packager.errors import UsageError

SCHEMA = {"name": "packager-diff", "version": 1}
# In the order in which they are said: what a user declares explains what follows from it.
SECTIONS = (
    "preprocessing", "inputs", "outputs", "labels", "artifacts", "weights", "operators", "dtypes",
    "quantization", "sizes", "metrics", "gates",
)  # fmt: skip
_LEARNED = ("saved_model", "tfjs/layers", "tfjs", "tfjs/graph", "tflite/float32", "tflite")
# Metrics that tell kernels' rounding: two processors give two values for one file.
_ROUNDED = ("max_abs_diff", "mean_abs_diff", "range_diff", "logits_range_diff")
# A section with more entries is shown in part.
_MOST_SHOWN = 40
_SHOWN = 10


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        section: One of `SECTIONS`.
        where: An input, a tensor, an operator.
        what: The property.
        artifact: The artifact's id; empty for what holds for all.
        layer: The layer, where there is one.
        a: The first side's value; None where it has none.
        b: The second side's.
        changed: For weights, the number of values that differ.
        largest: For weights, the largest absolute change.
    """

    section: str
    where: str
    what: str
    artifact: str = ""
    layer: str = ""
    a: Any = None
    b: Any = None
    changed: int | None = None
    largest: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Both sides and what differs, in the order of `SECTIONS`."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether both are the same model: nothing differs but how kernels rounded."""
        return all(d.what in _ROUNDED for d in self.differences)

    @property
    def changed_layers(self) -> list[str]:
        """Layers whose weights differ, each once.

        The first artifact that has such differences names them, in the order of `_LEARNED`: a
        SavedModel has the weights as they were learned, other artifacts fold layers together.
        """
        weights = [d for d in self.differences if d.section == "weights" and d.layer]
        found = {d.artifact for d in weights}
        first = next((name for name in _LEARNED if name in found), None)
        return list(dict.fromkeys(d.layer for d in weights if first in (None, d.artifact)))


def compare(a: Side, b: Side) -> Comparison:
    """Compares two sides of the same kind.

    Raises:
        UsageError: One is a bundle and the other a file, or both are files of different formats.
    """
    if a.is_bundle != b.is_bundle or not (a.is_bundle or set(a.files) == set(b.files)):
        raise UsageError(
            f"{a.path} and {b.path} are of different kinds",
            hint="compare two bundles, two .tflite files or two model.json files",
        )
    found = [*_declared(a.described, b.described)]
    if a.is_bundle:
        found += _artifacts(a.described, b.described)
    for name in a.files:
        if name in b.files:
            found += _files(name, a.files[name], b.files[name])
    return Comparison(a, b, tuple(sorted(found, key=lambda d: SECTIONS.index(d.section))))


def _declared(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    if bool(a) != bool(b):
        yield Difference("inputs", "card", "present", a=bool(a), b=bool(b))
    if not (a and b):
        return
    for section in ("inputs", "outputs"):
        ours, theirs = ({end["name"]: end for end in side.get(section, ())} for side in (a, b))
        for name in ours | theirs:
            yield from _ends(section, name, ours.get(name), theirs.get(name))
    for key in ("task", "threshold"):
        if a.get(key) != b.get(key):
            yield Difference("outputs", "model", key, a=a.get(key), b=b.get(key))
    yield from _labels(list(a.get("labels") or ()), list(b.get("labels") or ()))


def _ends(
    section: str, name: str, a: dict[str, Any] | None, b: dict[str, Any] | None
) -> Iterator[Difference]:
    if a is None or b is None:
        yield Difference(section, name, "present", a=a is not None, b=b is not None)
        return
    for key in sorted({*a, *b} - {"name", "source_name", "image"}):
        if a.get(key) != b.get(key):
            yield Difference(section, name, key, a=a.get(key), b=b.get(key))
    ours, theirs = a.get("image") or {}, b.get("image") or {}
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            yield Difference("preprocessing", name, key, a=ours.get(key), b=theirs.get(key))


def _labels(a: list[str], b: list[str]) -> Iterator[Difference]:
    if len(a) != len(b):
        yield Difference("labels", "labels", "count", a=len(a), b=len(b))
    for number, (ours, theirs) in enumerate(zip(a, b, strict=False)):
        if ours != theirs:
            yield Difference("labels", f"class {number}", "name", a=ours, b=theirs)


def _artifacts(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    ours, theirs = ({x["id"]: x for x in side["artifacts"]} for side in (a, b))
    for name in ours | theirs:
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            yield Difference("artifacts", name, "present", name, a=bool(one), b=bool(other))
            continue
        for key in sorted({*one["metrics"], *other["metrics"]}):
            left, right = one["metrics"].get(key), other["metrics"].get(key)
            if left != right:
                yield Difference("metrics", name, key, name, a=left, b=right)
        left, right = one["gate"]["status"], other["gate"]["status"]
        if left != right:
            yield Difference("gates", name, "status", name, a=left, b=right)
    for name, limit in {**a["gates"], **b["gates"]}.items():
        if a["gates"].get(name) != b["gates"].get(name):
            yield Difference("gates", name, "limit", a=a["gates"].get(name), b=limit)


def _files(artifact: str, a: ModelFile, b: ModelFile) -> Iterator[Difference]:
    if a.size_bytes != b.size_bytes:
        yield Difference("sizes", artifact, "bytes", artifact, a=a.size_bytes, b=b.size_bytes)
    for name in a.tensors | b.tensors:
        yield from _tensors(artifact, name, a.tensors.get(name), b.tensors.get(name))
    for name in a.operators | b.operators:
        one, other = a.operators.get(name), b.operators.get(name)
        if one is None or other is None:
            kinds = [operator.kind if operator else None for operator in (one, other)]
            yield Difference("operators", name, "kind", artifact, a=kinds[0], b=kinds[1])
            continue
        if one.kind != other.kind:
            yield Difference("operators", name, "kind", artifact, a=one.kind, b=other.kind)
        for key, left, right in _unequal(one.attributes, other.attributes):
            yield Difference("operators", name, key, artifact, a=left, b=right)


def _unequal(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            yield key, a.get(key), b.get(key)


def _tensors(artifact: str, name: str, a: Tensor | None, b: Tensor | None) -> Iterator[Difference]:
    if a is None or b is None:
        known = a or b
        # Activations come and go with their operators.
        if known is not None and known.values is not None:
            text = f"{known.dtype}{list(known.shape)}"
            left, right = (text if side else None for side in (a, b))
            yield Difference("weights", name, "present", artifact, known.layer, left, right)
        return
    if a.dtype != b.dtype:
        yield Difference("dtypes", name, "dtype", artifact, a.layer, a.dtype, b.dtype)
    if a.shape != b.shape:
        yield Difference(
            "weights" if a.values is not None else "dtypes",
            *(name, "shape", artifact, a.layer, list(a.shape), list(b.shape)),
        )
    if a.quantization != b.quantization:
        parameters = (a.quantization or None, b.quantization or None)
        yield Difference("quantization", name, "parameters", artifact, a.layer, *parameters)
    yield from _values(artifact, name, a, b)


def _values(artifact: str, name: str, a: Tensor, b: Tensor) -> Iterator[Difference]:
    if a.values is None or b.values is None:
        if (a.values is None) != (b.values is None):
            left, right = ("activation" if t.values is None else "weight" for t in (a, b))
            yield Difference("weights", name, "kind", artifact, a.layer, left, right)
        return
    if a.dtype != b.dtype or a.shape != b.shape or a.values.tobytes() == b.values.tobytes():
        return
    if a.values.size != b.values.size:
        yield Difference(
            "weights", name, "values", artifact, a.layer, int(a.values.size), int(b.values.size)
        )
        return
    gap = np.abs(a.values.astype(np.float64) - b.values.astype(np.float64))
    largest = float(gap.max())
    yield Difference(
        "weights", name, "values", artifact, a.layer,
        changed=int(np.count_nonzero(gap != 0)), largest=largest if np.isfinite(largest) else None,
    )  # fmt: skip


def to_json(found: Comparison) -> dict[str, Any]:
    """The comparison for machines; see docs/diff.md."""
    return {
        "schema": SCHEMA,
        "a": str(found.a.path),
        "b": str(found.b.path),
        "same": found.same,
        "exit_code": 0 if found.same else 1,
        "changed_layers": found.changed_layers,
        "differences": [
            {
                key: value
                for key, value in vars(difference).items()
                if value not in ("", None) or key in ("a", "b")
            }
            for difference in found.differences
        ],
    }


def to_text(found: Comparison) -> str:
    """The comparison for a person: a verdict, then a paragraph for each section."""
    lines = []
    for section in SECTIONS:
        entries = [d for d in found.differences if d.section == section]
        if not entries:
            continue
        lines.append(f"{section}: {len(entries)} difference{'s' if len(entries) > 1 else ''}")
        if section == "weights" and found.changed_layers:
            lines.append(f"  layers: {', '.join(found.changed_layers)}")
        shown = entries[:_SHOWN] if len(entries) > _MOST_SHOWN else entries
        lines += [f"  {_sentence(d)}" for d in shown]
        if len(shown) < len(entries):
            lines.append(f"  and {len(entries) - len(shown)} more: --json lists them all")
    return "\n".join([*lines, "same model" if found.same else "different"])


def _sentence(d: Difference) -> str:
    # A fused operator has the names of all that went into it.
    where = d.where.split(";")[0] + (" …" if ";" in d.where else "")
    place = where if d.artifact in ("", d.where) else f"{d.artifact}  {where}"
    if d.what == "present":
        return f"{place}: only in {'A' if d.a else 'B'}"
    if d.changed is not None:
        size = "" if d.largest is None else f", by up to {d.largest:.3g}"
        return f"{place}: {d.changed} values changed{size}"
    return f"{place}: {d.what} {_short(d.a)} -> {_short(d.b)}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return " ".join(f"{key} {_short(item)}" for key, item in value.items() if key != "axis")
    if isinstance(value, list) and all(isinstance(v, (int, float)) for v in value):
        text = ", ".join(f"{v:.6g}" for v in value[:4])
        return f"[{text}{', …' if len(value) > 4 else ''}]"
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
