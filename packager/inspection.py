"""`packager inspect`: what a model is and what can be made of it, before any conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager import opening
from packager.children import scratch
from packager.config import Model
from packager.console import Reporter, human_size
from packager.errors import UnsupportedError
from packager.loaders import layer_graph
from packager.loaders.layer_graph import LayerGraph
from packager.loaders.model_file import ModelFile
from packager.targets import TARGETS, tfjs_layers


@dataclass(frozen=True)
class Verdict:
    """Whether a target can be made: `yes`, `no`, or `needs` something from the user."""

    target: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Inspection:
    """What was found about a model.

    Attributes:
        file: The recognised source.
        treatment: What was done with it first; empty when it was opened as it is.
        inputs: Name, shape and dtype of each input.
        outputs: The same of the outputs, with their activation.
        parameters: Number of weights.
        layers: Path and class of each Keras layer; empty for a SavedModel.
        verdicts: One per target.
    """

    file: ModelFile
    treatment: str
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    parameters: int
    layers: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]


def inspect(model: Model, *, reporter: Reporter) -> Inspection:
    """Opens a model and judges every target.

    Raises:
        ModelError: It cannot be opened, and why.
    """
    file = opening.recognise(model)
    with (
        scratch("inspect") as work,
        opening.child("packager.loaders.worker", model, work, reporter) as child,
    ):
        opened = opening.open_source(model, file, child, work, reporter)
        if opened["no_graph"]:
            return _inspected(file, opened, None, _only_python(opened["no_graph"]))
        try:
            described = child.call("write_layer_graph", "describing the layers", folder=work)
            graph = layer_graph.load(work) if described else None
            reasons = tfjs_layers.check(graph) if graph else ["it has no Keras layers"]
        except UnsupportedError as error:
            graph, reasons = None, [error.message]
        operators = child.call("reasons_against_tfjs_graph", "judging the operators")
        against = {"tfjs/layers": reasons, "tfjs/graph": operators}
    verdicts = tuple(_judge(name, opened["inputs"], against) for name in TARGETS)
    return _inspected(file, opened, graph, verdicts)


def _inspected(
    file: ModelFile,
    opened: Mapping[str, Any],
    graph: LayerGraph | None,
    verdicts: tuple[Verdict, ...],
) -> Inspection:
    return Inspection(
        file=file,
        treatment=opened.get("treatment", file.treatment),
        inputs=tuple(opened["inputs"]),
        outputs=tuple(opened["outputs"]),
        parameters=opened["parameters"],
        layers=_layers(graph),
        verdicts=verdicts,
    )


def _only_python(reason: str) -> tuple[Verdict, ...]:
    why = f"no graph holds the model: {reason}"
    return tuple(
        Verdict(name, "yes") if name == "keras" else Verdict(name, "no", why) for name in TARGETS
    )


def to_json(found: Inspection) -> dict[str, Any]:
    """For machines."""
    return {
        "source": found.file.source,
        "format": found.file.format,
        "saved_by": found.file.saved_by,
        "treatment": found.treatment,
        "sha256": found.file.sha256,
        "size_bytes": found.file.size_bytes,
        "parameters": found.parameters,
        "inputs": list(found.inputs),
        "outputs": list(found.outputs),
        "layers": [{"name": name, "class": kind} for name, kind in found.layers],
        "targets": [vars(v) for v in found.verdicts],
    }


def show(found: Inspection, reporter: Reporter) -> None:
    """Prints it on standard output."""
    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True, markup=False)
    file = found.file
    size = human_size(file.size_bytes)
    saved = f"saved by {file.saved_by}" + (f"; {found.treatment}" if found.treatment else "")
    out.print(f"{Path(file.source).name}: {file.format}, {saved}, {size}")
    out.print(f"{found.parameters:,} parameters, {len(found.layers)} layers")
    for kind, ends in (("input", found.inputs), ("output", found.outputs)):
        for end in ends:
            activation = end.get("activation", "none").replace("none", "")
            out.print(f"  {kind:<7}{end['name']:<24}{end['dtype']:<9}{end['shape']} {activation}")
    for name, class_name in found.layers:
        out.print(f"  layer  {name:<40}{class_name}")
    for verdict in found.verdicts:
        out.print(f"  {verdict.target:<24}{verdict.verdict:<7}{verdict.reason}")


def _layers(graph: LayerGraph | None) -> tuple[tuple[str, str], ...]:
    if graph is None:
        return ()
    return tuple((path, layer.class_name) for path, layer in graph.walk())


def _judge(
    name: str, inputs: list[dict[str, Any]], against: Mapping[str, Sequence[str]]
) -> Verdict:
    target = TARGETS[name]
    if target.id in against:
        reasons = against[target.id]
        return Verdict(name, "no" if reasons else "yes", "; ".join(reasons))
    if target.id.startswith("tflite"):
        free = [end["name"] for end in inputs if None in end["shape"][1:]]
        if free:
            return Verdict(name, "needs", f"--input-shape for {', '.join(free)}: free axes")
        if target.calibrated:
            return Verdict(name, "needs", "--calibration with typical inputs")
        return Verdict(name, "yes", "if TFLite has a builtin form of every operator")
    return Verdict(name, "yes")
