"""Writes a Keras model as a TF.js layers model, exactly or not at all. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import packager
from packager.errors import ConversionError, UnsupportedError
from packager.loaders.layer_graph import Layer, LayerGraph, TensorRef
from packager.targets.tfjs_activations import Chain, Refused, Stock
from packager.targets.tfjs_files import SHARD_BYTES, WrittenTfjs, write_model
from packager.targets.tfjs_flatten import FlatGraph, FlatLayer, UniqueNames, flatten
from packager.targets.tfjs_judge import chain_of
from packager.targets.tfjs_shapes import Shape, output_shape
from packager.targets.tfjs_weights import Rule

_HINT = (
    "change the layer, make a graph with --only tfjs/graph,"
    " or leave TF.js out: --only saved_model --only tflite"
)
_SEVERAL_OUTPUTS = (
    "the model uses more than the first of its outputs, which no TF.js layer has here",
    "use only the first",
)

Node = list[list[Any]]


@dataclass(frozen=True)
class _Plan:
    """The flat graph with each layer's chain in TF.js, or the reasons why there is none."""

    flat: FlatGraph
    chains: dict[str, Chain]
    reasons: list[str]


def check(graph: LayerGraph) -> list[str]:
    """Tells why a model cannot become a TF.js layers model, without writing anything.

    Returns:
        One sentence per layer with its name, class, reason and way out; empty when it can.
    """
    try:
        return _plan(graph, UniqueNames()).reasons
    except UnsupportedError as error:
        return [f"{error.message}; {error.hint}"]


def write(
    graph: LayerGraph,
    folder: Path,
    *,
    card: Mapping[str, Any],
    rules: Sequence[Rule] = (),
    shard_bytes: int = SHARD_BYTES,
) -> WrittenTfjs:
    """Writes a model as `model.json` and shards.

    Inputs and outputs keep the model's order, which is how runtimes bind them.

    Args:
        graph: The model. Weights are stored as float32 (int32 for integers).
        folder: Where the files go; made when it is missing.
        card: Embedded as `userDefinedMetadata.packager`.
        rules: Which weights to store in fewer bits.
        shard_bytes: Largest size of a shard.

    Raises:
        UnsupportedError: A layer has no exact form in TF.js; names all of them.
        ConversionError: The graph is inconsistent.
    """
    names = UniqueNames()
    plan = _plan(graph, names)
    if plan.reasons:
        raise UnsupportedError(
            "the model has no exact TF.js layers form:\n  " + "\n  ".join(plan.reasons), hint=_HINT
        )
    assembly = _Assembly(plan, names)
    config = {
        "name": UniqueNames().take(graph.name),
        "layers": assembly.layers,
        "input_layers": assembly.inputs,
        "output_layers": assembly.outputs,
    }
    check_nodes(config)
    return write_model(
        folder,
        topology={"model_config": {"class_name": "Functional", "config": config}},
        weights=assembly.weights,
        model_format="layers-model",
        converted_by=f"packager {packager.__version__}",
        metadata={"packager": dict(card)},
        rules=rules,
        shard_bytes=shard_bytes,
    )


def check_nodes(config: Mapping[str, Any]) -> None:
    """Follows the calls of a layers model as TF.js does when it loads one.

    TF.js waits for ever when a call takes a tensor that never appears, and counts the calls of a
    layer in the order in which it can make them.

    Args:
        config: `modelTopology.model_config.config`.

    Raises:
        ConversionError: Loading would not end, or would connect another tensor.
    """
    pending = {layer["name"]: list(enumerate(layer["inbound_nodes"])) for layer in config["layers"]}
    # An input has one node without inbound tensors.
    made = {name: 0 if nodes else 1 for name, nodes in pending.items()}
    while any(pending.values()):
        before = sum(made.values())
        for name, nodes in pending.items():
            pending[name] = _make_calls(name, nodes, made)
        if sum(made.values()) == before:
            stuck = [name for name, nodes in pending.items() if nodes]
            raise ConversionError(f"model.json: TF.js would wait for ever at layer {stuck[0]}")
    for name, node, tensor in [*config["input_layers"], *config["output_layers"]]:
        if node >= made.get(name, 0) or tensor != 0:
            raise ConversionError(f"model.json: the end {name}, {node}, {tensor} does not exist")


def _make_calls(
    name: str, nodes: list[tuple[int, Node]], made: dict[str, int]
) -> list[tuple[int, Node]]:
    waiting = []
    for index, node in nodes:
        if any(made.get(source, 0) <= k for source, k, *_ in node):
            waiting.append((index, node))
            continue
        if index != made[name]:
            raise ConversionError(f"model.json: TF.js would make call {index} of {name} too early")
        made[name] += 1
    return waiting


def _plan(graph: LayerGraph, names: UniqueNames) -> _Plan:
    flat = flatten(graph, names)
    items = {item.name: item for item in flat.layers}
    split = _with_several_outputs(flat)
    chains: dict[str, Chain] = {}
    reasons = [] if flat.outputs else ["the model is empty: it has no outputs"]
    shapes: dict[TensorRef, Shape | None] = {}
    for ref in (*flat.inputs, *flat.order):
        item = items[ref.layer]
        inputs = [shapes.get(r) for r in item.calls[ref.node]] if item.calls else []
        known = [shape for shape in inputs if shape is not None]
        unknown = len(known) < len(inputs)
        try:
            chain = chain_of(item, None if unknown else known)
            if item.name in split:
                raise Refused(*_SEVERAL_OUTPUTS)
            if ref.node == 0:
                chains[item.name] = chain
            elif item.name in chains and not unknown and not _same(chain, chains[item.name]):
                raise Refused("it is shared, and the shapes of its calls need different forms")
        except Refused as refused:
            # A layer is refused once, whichever of its calls is the reason.
            if ref.node == 0 or item.name in chains:
                reasons.append(_sentence(item, refused))
            chains.pop(item.name, None)
        judged = item.name in chains and not unknown
        shapes[ref] = _shape(item.layer, known) if judged else None
    return _Plan(flat, chains, reasons)


def _same(one: Chain, other: Chain) -> bool:
    """Whether two chains are the same layers; they have the same weights."""
    return [(s.class_name, s.config) for s in one] == [(s.class_name, s.config) for s in other]


def _with_several_outputs(flat: FlatGraph) -> set[str]:
    """Names of the layers of which another output than the first is used."""
    used = [*flat.outputs, *(ref for item in flat.layers for call in item.calls for ref in call)]
    return {ref.layer for ref in used if ref.tensor > 0}


def _shape(layer: Layer, inputs: list[Shape]) -> Shape:
    if layer.class_name == "InputLayer":
        return tuple(layer.config["batch_shape"])
    return output_shape(layer, inputs)


def _sentence(item: FlatLayer, refused: Refused) -> str:
    way_out = f"; {refused.way_out}" if refused.way_out else ""
    return f"layer {item.path!r} ({item.layer.class_name}): {refused.reason}{way_out}"


class _Assembly:
    """Collects the layers and weights of `model.json`."""

    def __init__(self, plan: _Plan, names: UniqueNames) -> None:
        self.layers: list[dict[str, Any]] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self._names = names
        self._aliases: dict[TensorRef, TensorRef] = {}
        self._ends: dict[str, str] = {}
        for item in plan.flat.layers:
            chain = plan.chains[item.name]
            if not chain:
                self._aliases |= {
                    TensorRef(item.name, k, 0): inputs[0] for k, inputs in enumerate(item.calls)
                }
        for item in plan.flat.layers:
            if chain := plan.chains[item.name]:
                self._add_chain(item, chain)
        self.inputs = [_triple(ref) for ref in plan.flat.inputs]
        self.outputs = self._outputs(plan.flat)

    def _add_chain(self, item: FlatLayer, chain: Chain) -> None:
        # The element that has weights bears the layer's name, so that they keep theirs.
        main = next((i for i, element in enumerate(chain) if element.weights), len(chain) - 1)
        labels = [
            item.name if i == main else self._names.take(f"{item.name}_{element.class_name}")
            for i, element in enumerate(chain)
        ]
        self._ends[item.name] = labels[-1]
        for i, (label, element) in enumerate(zip(labels, chain, strict=True)):
            if i == 0:
                nodes = [[self._triple(ref) for ref in inputs] for inputs in item.calls]
            else:
                nodes = [[[labels[i - 1], k, 0]] for k in range(len(item.calls))]
            self._add(label, element, nodes)

    def _add(self, label: str, element: Stock, nodes: list[Node]) -> None:
        self.layers.append(
            {
                "class_name": element.class_name,
                "name": label,
                "config": {"dtype": "float32", **element.config, "name": label},
                "inbound_nodes": [[[*source, {}] for source in node] for node in nodes],
            }
        )
        for name, array in element.weights.items():
            self.weights[f"{label}/{name}"] = array

    def _resolve(self, ref: TensorRef) -> TensorRef:
        while ref in self._aliases:
            ref = self._aliases[ref]
        return ref

    def _triple(self, ref: TensorRef) -> list[Any]:
        source = self._resolve(ref)
        return _triple(TensorRef(self._ends.get(source.layer, source.layer), source.node, 0))

    def _outputs(self, flat: FlatGraph) -> list[list[Any]]:
        """TF.js wants each output once, and made by a layer that is no input."""
        found: list[list[Any]] = []
        inputs = [_triple(ref) for ref in flat.inputs]
        for ref in flat.outputs:
            triple = self._triple(ref)
            if triple in found or triple in inputs:
                label = self._names.take(f"{triple[0]}_output")
                self._add(label, Stock("Activation", {"activation": "linear"}), [[triple]])
                triple = [label, 0, 0]
            found.append(triple)
        return found


def _triple(ref: TensorRef) -> list[Any]:
    return [ref.layer, ref.node, ref.tensor]
