"""A TF.js layers model under construction: its layers, their calls and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.errors import ConversionError
from packager.loaders.layer_graph import TensorRef
from packager.targets.tfjs_flatten import FlatGraph, FlatLayer, UniqueNames
from packager.targets.tfjs_parts import Chain, Part, Source

# Layer, call, output.
Triple = tuple[str, int, int]
Node = tuple[Triple, ...]


@dataclass(frozen=True)
class TfjsLayer:
    """One layer of model.json.

    Attributes:
        name: Unique in the model.
        part: Its class, configuration and weights.
        nodes: What each call takes; none for an input.
        path: The Keras layer that it computes, or a part of it.
        is_last: It gives what the Keras layer gives.
    """

    name: str
    part: Part
    nodes: tuple[Node, ...]
    path: str = ""
    is_last: bool = True


@dataclass(frozen=True)
class Program:
    """The model: layers, and what it takes and gives."""

    layers: tuple[TfjsLayer, ...]
    inputs: tuple[Triple, ...]
    outputs: tuple[Triple, ...]

    @property
    def needs_script(self) -> bool:
        """Whether TF.js needs web/packager-layers.js for it."""
        return any(layer.part.needs_script for layer in self.layers)

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """All weights by their name in the file, in order."""
        return {
            f"{layer.name}/{name}": array
            for layer in self.layers
            for name, array in layer.part.weights.items()
        }

    def config(self, name: str) -> dict[str, Any]:
        """`modelTopology.model_config.config`."""
        return {
            "name": name,
            "layers": [_layer_json(layer) for layer in self.layers],
            "input_layers": [list(triple) for triple in self.inputs],
            "output_layers": [list(triple) for triple in self.outputs],
        }


def _layer_json(layer: TfjsLayer) -> dict[str, Any]:
    return {
        "class_name": layer.part.class_name,
        "name": layer.name,
        "config": {"dtype": "float32", **layer.part.config, "name": layer.name},
        "inbound_nodes": [[[*triple, {}] for triple in node] for node in layer.nodes],
    }


_IDENTITY = Part("Activation", {"activation": "linear"})


@dataclass
class Group:
    """Calls of one Keras layer that the same TF.js layers stand for."""

    chain: Chain
    calls: list[int] = field(default_factory=list)


def assemble(flat: FlatGraph, groups: Mapping[str, Sequence[Group]], names: UniqueNames) -> Program:
    """Makes the layers of a model of the chains that stand for its calls.

    Args:
        flat: The model.
        groups: By layer, its calls, each in one group.
        names: Gives further names.
    """
    return _Assembly(flat, groups, names).program


class _Assembly:
    def __init__(
        self, flat: FlatGraph, groups: Mapping[str, Sequence[Group]], names: UniqueNames
    ) -> None:
        self._names = names
        self._layers: list[TfjsLayer] = []
        # Where the first output of each call of the flat graph comes from.
        self._ends: dict[tuple[str, int], tuple[str, int]] = {}
        self._aliases: dict[tuple[str, int], TensorRef] = {}
        pending = [(item, group) for item in flat.layers for group in groups[item.name]]
        for item, group in pending:
            if not group.chain:
                self._aliases |= {(item.name, k): item.calls[k][0] for k in group.calls}
        labels = [self._labels(item, group) for item, group in pending]
        for (item, group), label in zip(pending, labels, strict=True):
            if group.chain:
                calls = group.calls or [0]
                self._ends |= {(item.name, k): (label[-1], n) for n, k in enumerate(calls)}
        for (item, group), label in zip(pending, labels, strict=True):
            self._add(item, group, label)
        inputs = tuple(self._triple(ref) for ref in flat.inputs)
        self.program = Program((), inputs, self._outputs(flat, inputs))
        self.program = Program(tuple(self._layers), inputs, self.program.outputs)

    def _labels(self, item: FlatLayer, group: Group) -> list[str]:
        # The element that has weights bears the layer's name, so that they keep theirs.
        chain = group.chain
        main = next((i for i, part in enumerate(chain) if part.weights), len(chain) - 1)
        own = item.name if min(group.calls, default=0) == 0 else self._names.take(item.name)
        return [
            own if i == main else self._names.take(f"{own}_{part.class_name}")
            for i, part in enumerate(chain)
        ]

    def _add(self, item: FlatLayer, group: Group, labels: list[str]) -> None:
        for i, (label, part) in enumerate(zip(labels, group.chain, strict=True)):
            nodes = tuple(
                self._once_each(self._node(item, k, number, labels, i, part))
                for number, k in enumerate(group.calls)
            )
            is_last = i == len(labels) - 1
            self._layers.append(TfjsLayer(label, part, nodes, item.path, is_last))

    def _node(
        self, item: FlatLayer, call: int, number: int, labels: list[str], place: int, part: Part
    ) -> Node:
        inputs = item.calls[call]
        sources: tuple[Source, ...] = part.sources or (
            ((place - 1, 0),) if place else tuple((-1, i) for i in range(len(inputs)))
        )
        return tuple(
            self._triple(inputs[tensor]) if at < 0 else (labels[at], number, tensor)
            for at, tensor in sources
        )

    def _once_each(self, node: Node) -> Node:
        """Gives a layer that takes a tensor twice a copy of it.

        TF.js counts such a tensor once and frees it twice, before others have used it.
        """
        found: list[Triple] = []
        for triple in node:
            if triple in found:
                label = self._names.take(f"{triple[0]}_copy")
                self._layers.append(TfjsLayer(label, _IDENTITY, ((triple,),), is_last=False))
                triple = (label, 0, 0)
            found.append(triple)
        return tuple(found)

    def _triple(self, ref: TensorRef) -> Triple:
        while (ref.layer, ref.node) in self._aliases:
            ref = self._aliases[ref.layer, ref.node]
        label, node = self._ends[ref.layer, ref.node]
        return (label, node, ref.tensor)

    def _outputs(self, flat: FlatGraph, inputs: tuple[Triple, ...]) -> tuple[Triple, ...]:
        """TF.js wants each output once, and made by a layer that is no input."""
        found: list[Triple] = []
        for ref in flat.outputs:
            triple = self._triple(ref)
            if triple in found or triple in inputs:
                label = self._names.take(f"{triple[0]}_output")
                self._layers.append(TfjsLayer(label, _IDENTITY, ((triple,),), is_last=False))
                triple = (label, 0, 0)
            found.append(triple)
        return tuple(found)


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
    if len(pending) != len(config["layers"]):
        raise ConversionError("model.json: two layers have one name")
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
        if node >= made.get(name, 0):
            raise ConversionError(f"model.json: the end {name}, {node}, {tensor} does not exist")


def _make_calls(
    name: str, nodes: list[tuple[int, Any]], made: dict[str, int]
) -> list[tuple[int, Any]]:
    waiting = []
    for index, node in nodes:
        if any(made.get(source, 0) <= k for source, k, *_ in node):
            waiting.append((index, node))
            continue
        if index != made[name]:
            raise ConversionError(f"model.json: TF.js would make call {index} of {name} too early")
        made[name] += 1
    return waiting
