"""Writes a Keras model as a TF.js layers model, exactly or not at all. Imports no TensorFlow."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import packager
from packager import assets
from packager.errors import UnsupportedError
from packager.loaders.layer_graph import LayerGraph, Spec, TensorRef
from packager.targets.tfjs_files import SHARD_BYTES, WrittenTfjs, write_model
from packager.targets.tfjs_flatten import FlatGraph, FlatLayer, UniqueNames, flatten
from packager.targets.tfjs_judge import chain_of
from packager.targets.tfjs_optimise import optimise
from packager.targets.tfjs_parts import Chain, Refused
from packager.targets.tfjs_program import Group, Program, assemble, check_nodes
from packager.targets.tfjs_shapes import output_shape
from packager.targets.tfjs_weights import Rule

_HINT = (
    "change the layer, make a graph with --only tfjs/graph,"
    " or leave TF.js out: --only saved_model --only tflite"
)
_SEVERAL_OUTPUTS = (
    "the model uses more than the first of its outputs, which no TF.js layer has here",
    "use only the first",
)
SCRIPT = "packager-layers.js"


@dataclass(frozen=True)
class WrittenLayers:
    """What was written.

    Attributes:
        files: model.json and its shards.
        script: The copy of packager-layers.js beside them, which TF.js needs before it loads the
            model; None when all of its layers are TF.js' own.
        layers: TF.js' layer that gives what a Keras layer gives, by the Keras layer's path.
    """

    files: WrittenTfjs
    script: Path | None
    layers: dict[str, str]


@dataclass(frozen=True)
class Plan:
    """What a model becomes.

    Attributes:
        flat: The model without nesting.
        groups: By layer, its calls with the chains that stand for them; none for a refused layer.
        refused: The paths of refused layers.
        reasons: Why, one sentence each.
        outputs: Shape and type of each output, as far as they are known.
    """

    flat: FlatGraph
    groups: dict[str, list[Group]]
    refused: list[str]
    reasons: list[str]
    outputs: list[Spec | None]


def check(graph: LayerGraph) -> list[str]:
    """Tells why a model cannot become a TF.js layers model, without writing anything.

    Returns:
        One sentence per layer with its name, class, reason and way out; empty when it can.
    """
    try:
        return plan(graph, UniqueNames()).reasons
    except UnsupportedError as error:
        return [f"{error.message}; {error.hint}"]


@dataclass(frozen=True)
class Style:
    """How a model is written.

    Attributes:
        fold: Merge BatchNormalization and activations into the layers before them.
        fused: Use the fused classes of packager-layers.js; only with `fold`.
    """

    fold: bool = True
    fused: bool = False


def program(graph: LayerGraph, style: Style = Style()) -> Program:
    """Says a model in layers of TF.js.

    Raises:
        UnsupportedError: A layer has no exact form in TF.js; names all of them.
        ConversionError: The graph is inconsistent.
    """
    names = UniqueNames()
    found = plan(graph, names)
    if found.reasons:
        raise UnsupportedError(
            "the model has no exact TF.js layers form:\n  " + "\n  ".join(found.reasons), hint=_HINT
        )
    assembled = assemble(found.flat, found.groups, names)
    return optimise(assembled, fused=style.fused) if style.fold else assembled


def write(
    graph: LayerGraph,
    folder: Path,
    *,
    card: Mapping[str, Any],
    style: Style = Style(),
    rules: Sequence[Rule] = (),
    shard_bytes: int = SHARD_BYTES,
) -> WrittenLayers:
    """Writes a model as `model.json` and shards.

    Inputs and outputs keep the model's order, which is how runtimes bind them.

    Args:
        graph: The model. Weights are stored as float32 (int32 for integers).
        folder: Where the files go; made when it is missing.
        card: Embedded as `userDefinedMetadata.packager`.
        style: How it is written.
        rules: Which weights to store in fewer bits.
        shard_bytes: Largest size of a shard.

    Raises:
        UnsupportedError: A layer has no exact form in TF.js; names all of them.
        ConversionError: The graph is inconsistent.
    """
    model = program(graph, style)
    config = model.config(UniqueNames().take(graph.name))
    check_nodes(config)
    files = write_model(
        folder,
        topology={"model_config": {"class_name": "Functional", "config": config}},
        weights=model.weights(),
        model_format="layers-model",
        converted_by=f"packager {packager.__version__}",
        metadata={"packager": dict(card)},
        rules=rules,
        shard_bytes=shard_bytes,
    )
    script = None
    if model.needs_script:
        script = folder / SCRIPT
        shutil.copyfile(assets.path() / "web" / SCRIPT, script)
    layers = {layer.path: layer.name for layer in model.layers if layer.is_last}
    return WrittenLayers(files, script, layers)


def plan(graph: LayerGraph, names: UniqueNames) -> Plan:
    """Judges every call of every layer of a model.

    Raises:
        UnsupportedError: It cannot be made flat.
        ConversionError: The graph is inconsistent.
    """
    flat = flatten(graph, names)
    items = {item.name: item for item in flat.layers}
    groups: dict[str, list[Group]] = {name: [] for name in items}
    reasons = [] if flat.outputs else ["the model is empty: it has no outputs"]
    refused: set[str] = set()
    specs: dict[TensorRef, Spec] = {}
    used = _used_outputs(flat)
    batch = next((items[ref.layer].layer.config["batch_shape"][0] for ref in flat.inputs), None)
    for ref in (*flat.inputs, *flat.order):
        item = items[ref.layer]
        inputs = [specs.get(r) for r in item.calls[ref.node]] if item.calls else []
        known = tuple(spec for spec in inputs if spec is not None)
        # A tensor may be unknown behind a layer that was refused.
        unknown = len(known) < len(inputs)
        if item.name in refused or (unknown and reasons):
            continue
        try:
            if unknown:
                raise Refused("the shape of what it takes is not known")
            chain = chain_of(item, ref.node, known)
            if used.get((ref.layer, ref.node), 0) >= (chain[-1].outputs if chain else 1):
                raise Refused(*_SEVERAL_OUTPUTS)
            _join(groups[item.name], chain, ref.node if item.calls else None)
        except Refused as reason:
            refused.add(item.name)
            reasons.append(_sentence(item, reason))
        specs |= _specs(item, ref, known, refused, batch)
    paths = [items[name].path for name in sorted(refused)]
    return Plan(flat, groups, paths, reasons, [specs.get(ref) for ref in flat.outputs])


def _join(groups: list[Group], chain: Chain, call: int | None) -> None:
    """Adds a call to those that the same layers stand for; shared weights stay shared."""
    group = next((g for g in groups if _same(g.chain, chain)), None)
    if group is None:
        group = Group(chain)
        groups.append(group)
    if call is not None:
        group.calls.append(call)


def _same(one: Chain, other: Chain) -> bool:
    return len(one) == len(other) and all(
        (a.class_name, a.config, a.sources) == (b.class_name, b.config, b.sources)
        and list(a.weights) == list(b.weights)
        and all(np.array_equal(a.weights[name], b.weights[name]) for name in a.weights)
        for a, b in zip(one, other, strict=True)
    )


def _used_outputs(flat: FlatGraph) -> dict[tuple[str, int], int]:
    """The last output of each call that something uses."""
    found: dict[tuple[str, int], int] = {}
    for ref in (*flat.outputs, *(r for item in flat.layers for call in item.calls for r in call)):
        found[ref.layer, ref.node] = max(ref.tensor, found.get((ref.layer, ref.node), 0))
    return found


def _specs(
    item: FlatLayer, ref: TensorRef, inputs: tuple[Spec, ...], refused: set[str], batch: int | None
) -> dict[TensorRef, Spec]:
    """What is known of the results of a call: what Keras recorded, else by formula."""
    if item.layer.class_name == "InputLayer":
        config = item.layer.config
        return {ref: Spec((None, *config["batch_shape"][1:]), str(config.get("dtype", "float32")))}
    # The batch stays free, whatever the model declares.
    found = {
        TensorRef(ref.layer, ref.node, place): Spec((None, *spec.shape[1:]), spec.dtype)
        if batch is not None and spec.shape[:1] == (batch,)
        else spec
        for place, spec in item.originals[ref.node].outputs.items()
    }
    first = found.get(TensorRef(ref.layer, ref.node, 0))
    if (first is None or None in first.shape[1:]) and item.name not in refused:
        dtype = first.dtype if first else "float32"
        shape = output_shape(item.layer, [spec.shape for spec in inputs])
        if shape is not None:
            found[TensorRef(ref.layer, ref.node, 0)] = Spec(shape, dtype)
    return found


def _sentence(item: FlatLayer, refused: Refused) -> str:
    way_out = f"; {refused.way_out}" if refused.way_out else ""
    return f"layer {item.path!r} ({item.layer.class_name}): {refused.reason}{way_out}"
