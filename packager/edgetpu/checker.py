"""Predicts which operators of a `.tflite` file the Edge TPU compiler maps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager import tflite_file
from packager.edgetpu import rules
from packager.edgetpu.operators import Judgement, Operator, Verdict, read
from packager.tflite_names import layer_of, plain

# Where an operator runs.
TPU, CPU, UNKNOWN = "edge tpu", "cpu", "unknown"
# Left for parameters beside a tiny model; the compiler reports 7.67 to 7.88 MiB.
ON_CHIP_BYTES = int(7.67 * 2**20)
_ONE_REGION = (
    "Coral: TensorFlow models on the Edge TPU, compiling: the model is partitioned once, at the"
    " first unsupported operation"
)


@dataclass(frozen=True)
class Placement:
    """Where one operator will run, and why.

    Attributes:
        index: Its place in the file.
        op: Its kind.
        version: Its version.
        layer: The layer in its output's name.
        where: `edge tpu`, `cpu` or `unknown`.
        reason: Why it is not on the Edge TPU.
        source: Where that is documented.
        advice: What to change in the model.
    """

    index: int
    op: str
    version: int
    layer: str
    where: str
    reason: str = ""
    source: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Prediction:
    """What the compiler is expected to do with a file.

    Attributes:
        compiles: `yes`, `no` or `unknown`: whether anything is mapped at all.
        operators: Each operator, in the order of the file.
        parameter_bytes: Bytes of the constants of what is mapped.
        cached: Whether they fit beside a tiny program into the chip's memory; else the rest is
            sent at each inference.
        reason: Why it does not compile.
    """

    compiles: str
    operators: tuple[Placement, ...]
    parameter_bytes: int
    cached: bool
    reason: str = ""

    def count(self, where: str) -> int:
        """Number of operators at one place."""
        return sum(op.where == where for op in self.operators)


def check(path: Path, without: Collection[str] = ()) -> Prediction:
    """Predicts the mapping of a file.

    Args:
        path: The file, before the compiler.
        without: As in `rules.judge`.
    """
    return predict(tflite_file.read(path), without)


def predict(model: Any, without: Collection[str] = ()) -> Prediction:
    """As `check`, for an object tree."""
    operators = read(model)
    judged = [rules.judge(op, without) for op in operators]
    placements = _place(operators, judged)
    mapped = [op for op, p in zip(operators, placements, strict=True) if p.where == TPU]
    size = _parameters(mapped)
    compiles, reason = _compiles(operators, placements)
    return Prediction(compiles, tuple(placements), size, size <= ON_CHIP_BYTES, reason)


def _place(operators: Sequence[Operator], judged: Sequence[Judgement]) -> list[Placement]:
    """Applies the rule of one region: what depends on a break behind the region stays outside.

    Of each tensor it is known whether something mapped, perhaps mapped, or nothing of that kind
    lies before it, and whether there is a break between. Operators in front of the region may
    stay on the CPU, and break nothing.
    """
    after: dict[int, _Before] = {}
    placements = []
    for op, found in zip(operators, judged, strict=True):
        before = _joined([after[t.index] for t in op.inputs if t.index in after])
        where, reason, source = _where(op, found, before)
        placements.append(
            Placement(
                index=op.index,
                op=op.name,
                version=op.version,
                layer=layer_of(plain(op.output_name)),
                where=where,
                reason=reason,
                source=source,
                advice=found.advice if where != TPU and found.reason else "",
            )
        )
        behind = _behind(op, where, before)
        after |= {t.index: behind for t in op.outputs}
    return placements


@dataclass(frozen=True)
class _Before:
    """What lies before a tensor.

    Attributes:
        mapped: Something mapped (`yes`), perhaps (`unknown`), or nothing (`no`).
        broken: Something behind that runs on the CPU, likewise.
        first: The operator that breaks it.
    """

    mapped: Verdict = Verdict.NO
    broken: Verdict = Verdict.NO
    first: str = ""


_ORDER = (Verdict.NO, Verdict.UNKNOWN, Verdict.YES)


def _joined(found: Sequence[_Before]) -> _Before:
    if not found:
        return _Before()
    worst = max(found, key=lambda b: _ORDER.index(b.broken))
    return _Before(
        max((b.mapped for b in found), key=_ORDER.index),
        worst.broken,
        worst.first,
    )


def _where(op: Operator, found: Judgement, before: _Before) -> tuple[str, str, str]:
    if found.verdict is Verdict.NO:
        return CPU, found.reason, found.source
    if before.broken is Verdict.YES:
        text = f"it depends on {before.first}, which runs on the CPU behind the mapped region"
        return CPU, text, _ONE_REGION
    if found.verdict is Verdict.UNKNOWN:
        return UNKNOWN, found.reason, found.source
    if before.broken is Verdict.UNKNOWN:
        return UNKNOWN, f"it depends on {before.first}, of which nothing is known", _ONE_REGION
    return TPU, "", found.source


def _behind(op: Operator, where: str, before: _Before) -> _Before:
    """What lies before an operator's outputs."""
    name = f"{op.name} ({op.index})"
    if where == TPU:
        return _Before(Verdict.YES)
    if where == UNKNOWN:
        return _Before(max(before.mapped, Verdict.UNKNOWN, key=_ORDER.index), Verdict.UNKNOWN, name)
    # In front of the region nothing breaks.
    broken = max(before.broken, before.mapped, key=_ORDER.index)
    return _Before(before.mapped, broken, before.first or name)


def _parameters(mapped: Sequence[Operator]) -> int:
    constants = {t.index: t for op in mapped for t in op.inputs if t.values is not None}
    return sum(t.values.nbytes for t in constants.values() if t.values is not None)


def _compiles(operators: Sequence[Operator], placements: Sequence[Placement]) -> tuple[str, str]:
    if all(not t.scales for op in operators for t in op.outputs):
        return "no", "the model is not quantized: the compiler says 'Model not quantized'"
    if any(t.is_free for op in operators for t in op.activations):
        return "no", "a dimension is not fixed: the compiler says 'Model not quantized'"
    if any(p.where == TPU for p in placements):
        return "yes", ""
    if any(p.where == UNKNOWN for p in placements):
        return "unknown", placements[0].reason
    return "no", placements[0].reason if placements else "the file has no operators"
