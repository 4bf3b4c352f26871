"""Makes one flat graph of a model and the models nested in it.

TF.js numbers the calls of a nested model differently from Keras and wants all weight names of the
whole tree to be unique. In a flat graph neither question arises: each call of a nested model
becomes one more call of each of its layers, which share their weights as before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from packager.errors import ConversionError
from packager.loaders.layer_graph import Layer, LayerGraph, TensorRef

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class FlatLayer:
    """One layer that computes something, or an input.

    Attributes:
        name: Unique in the flat graph, `[A-Za-z0-9_]+`.
        path: The names of the nested models and the layer as Keras has them, with `/` between.
        layer: The layer; its own `calls` no longer count.
        calls: The inputs of each call, as references to flat layers.
        arguments: The other arguments of each call.
    """

    name: str
    path: str
    layer: Layer
    calls: list[tuple[TensorRef, ...]] = field(default_factory=list)
    arguments: list[dict[str, object]] = field(default_factory=list)


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
        ConversionError: A reference points at a call that does not exist, or the graph has a cycle.
    """
    flattener = _Flattener(names)
    # Inputs first, so that they keep their names whatever the layers are called.
    feeds = [flattener.add_input(graph.layer(ref.layer)) for ref in graph.inputs]
    outputs = flattener.inline(graph, "", feeds)
    layers = tuple(flattener.layers.values())
    return FlatGraph(layers, tuple(flattener.order), tuple(feeds), tuple(outputs))


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
            raise ConversionError(
                f"the nested model {prefix.rstrip('/')!r} takes {len(graph.inputs)} tensors and is "
                f"called with {len(feeds)}; masks cannot be given to it",
                hint="call it on its inputs only",
            )
        known = dict(zip(graph.inputs, feeds, strict=True))
        pending = [(layer, k) for layer in graph.layers for k in range(len(layer.calls))]
        while pending:
            waiting = []
            for layer, k in pending:
                call = layer.calls[k]
                # The calls of one layer keep their order, because TF.js counts them.
                earlier = k == 0 or TensorRef(layer.name, k - 1, 0) in known
                if not earlier or any(ref not in known for ref in call.inputs):
                    waiting.append((layer, k))
                    continue
                results = self._call(layer, k, prefix, [known[ref] for ref in call.inputs])
                known |= {TensorRef(layer.name, k, i): ref for i, ref in enumerate(results)}
            if len(waiting) == len(pending):
                raise _disconnected(graph, prefix, waiting[0][0])
            pending = waiting
        missing = [ref for ref in graph.outputs if ref not in known]
        if missing:
            raise _disconnected(graph, prefix, graph.layer(missing[0].layer))
        return [known[ref] for ref in graph.outputs]

    def _call(
        self, layer: Layer, k: int, prefix: str, inputs: list[TensorRef]
    ) -> Sequence[TensorRef]:
        path = prefix + layer.name
        if layer.graph is not None:
            return self.inline(layer.graph, f"{path}/", inputs)
        flat = self._flat(layer, path)
        flat.calls.append(tuple(inputs))
        flat.arguments.append(layer.calls[k].arguments)
        made = TensorRef(flat.name, len(flat.calls) - 1, 0)
        self.order.append(made)
        return [made]

    def _flat(self, layer: Layer, path: str) -> FlatLayer:
        if path not in self.layers:
            self.layers[path] = FlatLayer(self._names.take(path), path, layer)
        return self.layers[path]


def _disconnected(graph: LayerGraph, prefix: str, layer: Layer) -> ConversionError:
    return ConversionError(
        f"layer {prefix + layer.name!r} ({layer.class_name}) of the model {graph.name!r} takes a "
        "tensor that no call of a layer gives",
        hint="the description of the model's layers is wrong; please report it with the model",
    )
