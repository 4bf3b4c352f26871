"""Makes one flat graph of a model and the models nested in it.

TF.js numbers the calls of a nested model differently from Keras and wants all weight names of the
whole tree to be unique. In a flat graph neither question arises: each call of a nested model
becomes one more call of each of its layers, which share their weights as before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from packager.errors import ConversionError, UnsupportedError
from packager.loaders.layer_graph import Call, Layer, LayerGraph, TensorRef

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class FlatLayer:
    """One layer that computes something, or an input.

    Attributes:
        name: Unique in the flat graph, `[A-Za-z0-9_]+`.
        path: The names of the nested models and the layer as Keras has them, with `/` between.
        layer: The layer; its own `calls` no longer count.
        calls: The inputs of each call, as references to flat layers. A reference to another than a
            layer's first output is kept; whether there is such an output is not known here.
        originals: Each call as the model describes it; its `inputs` no longer count.
    """

    name: str
    path: str
    layer: Layer
    calls: list[tuple[TensorRef, ...]] = field(default_factory=list)
    originals: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class FlatGraph:
    """A model without nested models.

    Attributes:
        layers: In the order of their first call, inputs first.
        order: All calls, in an order in which each finds its inputs made.
        inputs: In the model's order.
        outputs: In the model's order.
    """

    layers: tuple[FlatLayer, ...]
    order: tuple[TensorRef, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]


class UniqueNames:
    """Hands out names that TF.js takes, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str) -> str:
        """Returns `wanted` with other characters than letters, digits and `_` replaced."""
        name = _NOT_ALLOWED.sub("_", wanted).strip("_") or "layer"
        candidate, number = name, 1
        while candidate in self._taken:
            candidate, number = f"{name}_{number}", number + 1
        self._taken.add(candidate)
        return candidate


def flatten(graph: LayerGraph, names: UniqueNames) -> FlatGraph:
    """Flattens a model.

    Raises:
        UnsupportedError: A nested model is called with more tensors than it has inputs.
        ConversionError: A reference points at a call that does not exist, or the graph has a cycle.
    """
    flattener = _Flattener(names)
    # Inputs first, so that they keep their names whatever the layers are called.
    feeds = [flattener.add_input(graph.layer(ref.layer)) for ref in graph.inputs]
    outputs = flattener.inline(graph, "", feeds)
    needed = _needed({i.name: i for i in flattener.layers.values()}, [*feeds, *outputs])
    layers = tuple(item for item in flattener.layers.values() if item.name in needed)
    order = tuple(ref for ref in flattener.order if ref.layer in needed)
    return FlatGraph(layers, order, tuple(feeds), tuple(outputs))


def _needed(layers: Mapping[str, FlatLayer], ends: Sequence[TensorRef]) -> set[str]:
    """Names of the layers that the ends depend on; TF.js refuses weights of any other."""
    found: set[str] = set()
    waiting = [ref.layer for ref in ends]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [ref.layer for call in layers[name].calls for ref in call]
    return found


class _Known:
    """What stands in the flat graph for the tensors of one call of a model."""

    def __init__(self, graph: LayerGraph, made: dict[TensorRef, TensorRef]) -> None:
        self._made = made
        self._plain = {layer.name for layer in graph.layers if layer.graph is None}

    def add(self, layer: str, call: int, results: Sequence[TensorRef]) -> None:
        self._made |= {TensorRef(layer, call, i): ref for i, ref in enumerate(results)}

    def find(self, ref: TensorRef) -> TensorRef | None:
        """Returns the flat reference, or None while its call has not been made."""
        if ref in self._made or ref.layer not in self._plain:
            return self._made.get(ref)
        # A layer's description does not tell how many outputs it has.
        first = self._made.get(replace(ref, tensor=0))
        return None if first is None else replace(first, tensor=ref.tensor)

    def find_all(self, refs: Sequence[TensorRef]) -> list[TensorRef] | None:
        found = [flat for flat in map(self.find, refs) if flat is not None]
        return found if len(found) == len(refs) else None


class _Flattener:
    def __init__(self, names: UniqueNames) -> None:
        self.layers: dict[str, FlatLayer] = {}
        self.order: list[TensorRef] = []
        self._names = names

    def add_input(self, layer: Layer) -> TensorRef:
        flat = self._flat(layer, layer.name)
        return TensorRef(flat.name, 0, 0)

    def inline(self, graph: LayerGraph, prefix: str, feeds: Sequence[TensorRef]) -> list[TensorRef]:
        """Adds one call of a model; returns its outputs."""
        if len(feeds) != len(graph.inputs):
            raise _masked(prefix.rstrip("/"), graph)
        known = _Known(graph, dict(zip(graph.inputs, feeds, strict=True)))
        pending = [(layer, k) for layer in graph.layers for k in range(len(layer.calls))]
        while pending:
            waiting = []
            for layer, k in pending:
                call = layer.calls[k]
                # The calls of one layer keep their order, because TF.js counts them.
                earlier = k == 0 or known.find(TensorRef(layer.name, k - 1, 0)) is not None
                inputs = known.find_all(call.inputs)
                if not earlier or inputs is None:
                    waiting.append((layer, k))
                    continue
                known.add(layer.name, k, self._call(layer, k, prefix, inputs))
            if len(waiting) == len(pending):
                raise _disconnected(graph, prefix, waiting[0][0])
            pending = waiting
        missing = [ref for ref in graph.outputs if known.find(ref) is None]
        if missing:
            raise _disconnected(graph, prefix, graph.layer(missing[0].layer))
        return known.find_all(graph.outputs) or []

    def _call(
        self, layer: Layer, k: int, prefix: str, inputs: list[TensorRef]
    ) -> Sequence[TensorRef]:
        path = prefix + layer.name
        if layer.graph is not None:
            if layer.calls[k].kwargs.get("mask") is not None:
                raise _masked(path, layer.graph)
            return self.inline(layer.graph, f"{path}/", inputs)
        flat = self._flat(layer, path)
        flat.calls.append(tuple(inputs))
        flat.originals.append(layer.calls[k])
        made = TensorRef(flat.name, len(flat.calls) - 1, 0)
        self.order.append(made)
        return [made]

    def _flat(self, layer: Layer, path: str) -> FlatLayer:
        if path not in self.layers:
            self.layers[path] = FlatLayer(self._names.take(path), path, layer)
        return self.layers[path]


def _masked(path: str, graph: LayerGraph) -> UnsupportedError:
    return UnsupportedError(
        f"layer {path!r} ({graph.class_name}): masks pass into or out of the nested model beside "
        "its tensors, which a flat graph cannot show",
        hint="build the model without nesting, or give the mask as an input",
    )


def _disconnected(graph: LayerGraph, prefix: str, layer: Layer) -> ConversionError:
    return ConversionError(
        f"layer {prefix + layer.name!r} ({layer.class_name}) of the model {graph.name!r} takes a "
        "tensor that no call of a layer gives",
        hint="the description of the model's layers is wrong; please report it with the model",
    )
