"""Rewrites a model into its fake-quantized twin, and keeps what belongs to both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from packager.errors import UnsupportedError
from packager.quantize.qat import rules as table
from packager.quantize.qat.flat import Call, flatten
from packager.quantize.qat.layers import Range, Weighted
from packager.quantize.qat.rules import OWN, ROUNDED, SAME, Rule, Step

_ATTRIBUTE = "_packager_twin"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]+")


@dataclass(frozen=True)
class Twin:
    """What a twin model knows of its origin.

    Attributes:
        source: The float model.
        variables: The twin's variable for each of the source's, by the source's path and place.
        float_layers: Names and classes of the layers that stay float: no rule has them.
    """

    source: Any
    variables: dict[int, Any]
    float_layers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Node:
    """One step of one call."""

    key: tuple[int, int]
    name: str
    step: Step
    call: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    norm: Any = None
    activation: str = ""


def quantize_model(
    model: Any, rules: Mapping[str, Rule] | None = None, *, require_integer: bool = False
) -> Any:
    """Returns the fake-quantized copy of a Keras 3 model, to be calibrated and trained.

    Its weights are copies. It computes float32, and what the int8 file will compute on the same
    input, to within a step. Shared layers stay shared; nested models are opened up.

    Args:
        model: A built Sequential or functional model.
        rules: Rules by class name, beside and before the table's.
        require_integer: Refuse a model with a layer that stays float.

    Raises:
        UnsupportedError: The model is subclassed, or a layer stays float although that is
            refused; names the layers.
    """
    flat = flatten(model)
    nodes = _fused(
        _expanded(flat.calls, {**table.RULES, **(rules or {})}, max((*flat.inputs, -1)) + 1),
        flat.outputs,
    )
    floats = tuple(
        dict.fromkeys(
            (node.call.layer.name, type(node.call.layer).__name__)
            for node in nodes
            if not node.step.integer
        )
    )
    if floats and require_integer:
        raise UnsupportedError(
            "these layers have no int8 form: "
            + ", ".join(f"{name!r} ({kind})" for name, kind in floats),
            hint="replace them, add a rule (docs/qat.md), or leave out --require-integer to keep"
            " them float",
        )
    emitted = _Emitted(flat.outputs, _merged(nodes, flat.outputs))
    inputs = emitted.inputs(model)
    for node in nodes:
        emitted.add(node)
    outputs = [emitted.at_end(number) for number in flat.outputs]
    made = keras.Model(_structured(model, inputs), outputs, name=f"{model.name}_int8")
    setattr(made, _ATTRIBUTE, Twin(model, emitted.variables(), floats))
    return made


def twin_of(model: Any) -> Twin:
    """Returns what a twin knows of its origin.

    Raises:
        UnsupportedError: The model is no twin.
    """
    found = getattr(model, _ATTRIBUTE, None)
    if not isinstance(found, Twin):
        raise UnsupportedError(
            f"the model {model.name!r} is no fake-quantized twin",
            hint="make one with packager.quantize.qat.quantize_model(model)",
        )
    return found


def ranges_of(model: Any) -> list[Range]:
    """The ranges of a twin, each once, in the order of their making."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, Range)]


def weighted_of(model: Any) -> list[Weighted]:
    """The layers with weights of a twin."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, Weighted)]


def _structured(model: Any, inputs: list[Any]) -> Any:
    """The inputs, as the source model takes them."""
    from packager.loaders.keras_graph import functional_of

    return keras.tree.pack_sequence_as(functional_of(model)._inputs_struct, inputs)


def _expanded(calls: tuple[Call, ...], rules: Mapping[str, Rule], first: int) -> list[_Node]:
    """The steps of all calls, one after another."""
    free = iter(range(max([first, *(n + 1 for call in calls for n in call.outputs)]), 10**9))
    known: dict[int, list[Step]] = {}
    found = []
    for call in calls:
        # A shared layer has one list of steps, and so one copy in the twin.
        key = id(call.layer)
        if key not in known:
            known[key] = table.steps_of(call.layer, rules)
        found += _chained(call, known[key], free)
    return found


def _chained(call: Call, steps: list[Step], free: Iterator[int]) -> list[_Node]:
    nodes = []
    taken = call.inputs
    pairs = [
        (number, step)
        for number, step in enumerate(steps)
        for _ in range(len(taken) - 1 if step.pairwise else 1)
    ]
    rest = list(taken)
    for position, (number, step) in enumerate(pairs):
        given = call.outputs if position == len(pairs) - 1 else (next(free),)
        now = rest[:2] if step.pairwise else rest
        nodes.append(
            _Node((id(call.layer), number), call.layer.name, step, call, tuple(now), given)
        )
        rest = [*given, *(rest[2:] if step.pairwise else ())]
    return nodes


def _fused(nodes: list[_Node], outputs: tuple[int, ...]) -> list[_Node]:
    """Puts normalizations and ReLUs into the steps before them, where nothing else reads those."""
    readers: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        for number in node.inputs:
            readers.setdefault(number, []).append(place)
    uses = Counter(outputs)
    partners = {place: _partners(node, nodes, readers, uses) for place, node in enumerate(nodes)}
    by_key: dict[tuple[int, int], set[tuple[int | None, str]]] = {}
    for place, (chain, norm, activation) in partners.items():
        del chain
        by_key.setdefault(nodes[place].key, set()).add((norm and id(norm), activation))
    gone: set[int] = set()
    found = []
    for place, node in enumerate(nodes):
        if place in gone:
            continue
        chain, norm, activation = partners[place]
        # A shared layer takes in only what follows each of its calls.
        if chain and len(by_key[node.key]) == 1:
            gone |= set(chain)
            node = replace(node, outputs=nodes[chain[-1]].outputs, norm=norm, activation=activation)
        found.append(node)
    return found


def _merged(nodes: list[_Node], outputs: tuple[int, ...]) -> set[int]:
    """Values that only a concatenation reads: they are put on its grid at once, on none before."""
    readers = Counter(number for node in nodes for number in node.inputs)
    made = {number: node.step for node in nodes for number in node.outputs}
    return {
        number
        for node in nodes
        if node.step.merges
        for number in node.inputs
        if readers[number] == 1
        and number not in outputs
        and number in made
        and made[number].output == OWN
        and not made[number].merges
    }


def _partners(
    node: _Node, nodes: list[_Node], readers: dict[int, list[int]], uses: Counter[int]
) -> tuple[list[int], Any, str]:
    """What a step can take in: places of the steps, the normalization, the activation."""
    chain: list[int] = []
    norm, activation = None, ""

    def only_reader(value: int) -> int | None:
        places = readers.get(value, [])
        return places[0] if len(places) == 1 and not uses[value] else None

    following = only_reader(node.outputs[0])
    if following is not None and node.step.takes_norm and nodes[following].step.norm is not None:
        norm = nodes[following].step.norm
        chain.append(following)
        following = only_reader(nodes[following].outputs[0])
    if following is not None and node.step.takes_activation and nodes[following].step.activation:
        activation = nodes[following].step.activation
        chain.append(following)
    return chain, norm, activation


@dataclass
class _Emitted:
    """The twin while it is built: its tensors and their ranges, by value number."""

    outputs: tuple[int, ...]
    merged: set[int]
    tensors: dict[int, Any] = field(default_factory=dict)
    ranges: dict[int, Range | None] = field(default_factory=dict)
    layers: dict[tuple[tuple[int, int], int | None, str], Any] = field(default_factory=dict)
    sources: dict[int, Any] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)

    def inputs(self, model: Any) -> list[Any]:
        """Makes the model's inputs, each with its range."""
        made = []
        for number, tensor in enumerate(model.inputs):
            name = tensor._keras_history.operation.name
            self.names[name] += 1
            x = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
            made.append(x)
            self._give(number, x, OWN, name)
        return made

    def add(self, node: _Node) -> None:
        """Calls the step's layer on its tensors."""
        key = (node.key, node.norm and id(node.norm), node.activation)
        if key not in self.layers:
            # A norm that stands alone is in its own step.
            self.layers[key] = node.step.make(self._name(node.name), node.norm, node.activation)
            self.sources[id(self.layers[key])] = (node.call.layer, node.norm)
        layer = self.layers[key]
        given = [self.tensors[number] for number in node.inputs]
        before, merging = self.ranges[node.inputs[0]], None
        if node.step.merges:
            merging = Range(name=self._name(f"{layer.name}_range"))
        if node.step.as_called:
            by_id = {
                id(t): x for t, x in zip(node.call.arguments.keras_tensors, given, strict=True)
            }
            args, kwargs = node.call.arguments.fill_in(by_id)
            result = layer(*args, **kwargs)
        else:
            result = layer(*given)
        for number, tensor in zip(node.outputs, keras.tree.flatten(result), strict=True):
            if merging is not None:
                self.tensors[number], self.ranges[number] = merging(tensor), merging
                continue
            self._give(number, tensor, node.step.output, layer.name, before)

    def _give(
        self,
        number: int,
        tensor: Any,
        output: str | tuple[float, float],
        name: str,
        before: Range | None = None,
    ) -> None:
        """Records a value, on the grid of its range."""
        is_float = str(tensor.dtype).startswith(("float", "bfloat"))
        if not is_float or number in self.merged:
            self.tensors[number], self.ranges[number] = tensor, None
            return
        if output == SAME and before is not None:
            self.tensors[number], self.ranges[number] = tensor, before
            return
        if output == ROUNDED and before is not None:
            self.tensors[number], self.ranges[number] = before(tensor, observe=False), before
            return
        fixed = None if isinstance(output, str) else output
        found = Range(fixed, number in self.outputs, name=self._name(f"{name}_range"))
        self.tensors[number], self.ranges[number] = found(tensor), found

    def at_end(self, number: int) -> Any:
        """An output of the model, which must be on a grid itself."""
        tensor, found = self.tensors[number], self.ranges[number]
        if found is None or isinstance(tensor._keras_history.operation, Range):
            return tensor
        return found(tensor, observe=False)

    def _name(self, wanted: str) -> str:
        """A name that is free, and that TensorFlow takes as a scope."""
        name = _NOT_IN_NAMES.sub("_", wanted).lstrip("_.") or "layer"
        self.names[name] += 1
        count = self.names[name]
        return name if count == 1 else self._name(f"{name}_{count - 1}")

    def variables(self) -> dict[int, Any]:
        """The twin's variables by the identity of the source's variables."""
        found: dict[int, Any] = {}
        for layer in self.layers.values():
            source, norm = self.sources[id(layer)]
            if isinstance(layer, Weighted):
                found |= _pairs(layer.inner, source)
                found |= _pairs(layer.norm, norm if norm is not None else source)
            elif layer is not source and getattr(source, "weights", None):
                part = getattr(layer, "inner", layer)
                found |= _pairs(part, source) if type(part) is type(source) else {}
        return found


def _pairs(made: Any, source: Any) -> dict[int, Any]:
    """Variables of a copy by the identity of the original's; by name, for a half of a layer."""
    if made is None:
        return {}
    own = {variable.name: variable for variable in made.weights}
    if type(made) is type(source):
        return {id(a): b for a, b in zip(source.weights, made.weights, strict=True)}
    part = "depthwise_kernel" if "Depthwise" in type(made).__name__ else "pointwise_kernel"
    own[part] = made.kernel
    return {id(a): own[a.name] for a in source.weights if a.name in own}
