"""Which Keras layer each operator of a float `.tflite` file computes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packager import tflite_file
from packager.tflite_names import WEIGHTED, layer_of, plain

_COPY = re.compile(r"_\d+$")


@dataclass(frozen=True)
class OpLayer:
    """One operator of the main graph.

    Attributes:
        index: Its place in the file.
        op: Its kind, such as `CONV_2D`.
        layer: The layer it computes; of a fused operator, the one with weights.
        fused: All layers that its name holds, `layer` among them.
        inputs: Names of the tensors that it reads, constants aside.
        outputs: Names of the tensors that it writes.
        weights: Number of elements of the constants that it reads.
    """

    index: int
    op: str
    layer: str
    fused: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: int


def read_ops(model: Any, known: Sequence[str] = ()) -> list[OpLayer]:
    """Lists the operators of the main graph with their layers, in the order of execution.

    Args:
        model: The object tree of a float file that was completed (`tflite_file.name_ends`).
        known: Names of the model's layers in topological order, where something tells them. Only
            with them are layers told apart whose names differ by a number at the end, which Keras
            and TensorFlow add as well.
    """
    graph = model.subgraphs[0]
    named = [t.name.decode() for t in graph.tensors if t.name]
    names = _Names(known, named) if known else None
    found = [_read(model, graph, i, op, names) for i, op in enumerate(graph.operators)]
    return _by_neighbours(found, known) if known else found


def by_layer(ops: Iterable[OpLayer]) -> dict[str, list[OpLayer]]:
    """The operators of each layer, layers in the order of execution."""
    found: dict[str, list[OpLayer]] = {}
    for op in ops:
        found.setdefault(op.layer, []).append(op)
    return found


def tensors_of(ops: Iterable[OpLayer]) -> dict[str, list[str]]:
    """Names of the tensors that each layer's operators write first: what recipes match."""
    return {
        layer: [op.outputs[0] for op in members if op.outputs]
        for layer, members in by_layer(ops).items()
    }


def readers_of(ops: Sequence[OpLayer], layer: str) -> tuple[str, ...]:
    """The other layers that read what a layer computes, each once."""
    written = {name for op in ops if op.layer == layer for name in op.outputs}
    found = [op.layer for op in ops if op.layer != layer and written & set(op.inputs)]
    return tuple(dict.fromkeys(found))


def _read(model: Any, graph: Any, index: int, op: Any, names: _Names | None) -> OpLayer:
    inputs = [graph.tensors[i] for i in op.inputs if i >= 0]
    outputs = tuple(graph.tensors[i].name.decode() for i in op.outputs)
    is_constant = [model.buffers[t.buffer].data is not None for t in inputs]
    weights = [t for t, constant in zip(inputs, is_constant, strict=True) if constant]
    # The converter names an end after the end alone; then the weights' names tell the layer.
    candidates = [*outputs[:1], *(t.name.decode() for t in weights)]
    fused = names.layers(outputs[0]) if names and outputs else ()
    layer = layer_of(plain(candidates[0])) if candidates else ""
    if names is not None:
        layer = next((x for x in map(names.layer, candidates) if x), plain(candidates[0]))
    elif weights and outputs and "/" not in outputs[0]:
        paths = [c for c in candidates[1:] if "/" in c]
        layer = layer_of(plain(paths[0])) if paths else layer
    return OpLayer(
        index=index,
        op=tflite_file.operator_name(model.operatorCodes[op.opcodeIndex]),
        layer=layer,
        fused=tuple(dict.fromkeys((layer, *fused))),
        inputs=tuple(
            t.name.decode() for t, constant in zip(inputs, is_constant, strict=True) if not constant
        ),
        outputs=outputs,
        weights=sum(_size(t) for t in weights),
    )


class _Names:
    """Reads layers in tensor names by the names of the model's layers."""

    def __init__(self, known: Sequence[str], names: Iterable[str]) -> None:
        self._known = set(known)
        paths = {path for name in names for path in name.split(";")}
        # Exporting traces the model a second time, and TensorFlow makes every scope's name unique
        # by a number; a model that is traced once has none. One of both explains more layers.
        reached = []
        for self._numbered in (True, False):
            reached.append(len({layer for path in paths for layer in self._scopes(path)}))
        self._numbered = reached[0] >= reached[1]

    def layer(self, name: str) -> str:
        """The layer of a tensor's name: the one with weights, else the first step."""
        paths = [path for path in name.split(";") if self._scopes(path)]
        weighted = [path for path in paths if path.rpartition("/")[2].startswith(WEIGHTED)]
        chosen = weighted[:1] or paths[-1:]
        return "/".join(self._scopes(chosen[0])) if chosen else ""

    def layers(self, name: str) -> tuple[str, ...]:
        """All layers in a tensor's name."""
        found = ("/".join(self._scopes(path)) for path in name.split(";"))
        return tuple(dict.fromkeys(layer for layer in found if layer))

    def _scopes(self, path: str) -> list[str]:
        parts = path.split("/")
        return [found for part in (parts[:-1] or parts) if (found := self._part(part))]

    def _part(self, part: str) -> str:
        readings = (_COPY.sub("", part), part)
        for reading in readings if self._numbered else reversed(readings):
            if reading in self._known:
                return reading
        return ""


def _by_neighbours(ops: list[OpLayer], known: Sequence[str]) -> list[OpLayer]:
    """Finds the layer of operators with weights whose names tell nothing, by their neighbours.

    The converter names the parts of a grouped convolution itself. Its layer is one that no other
    operator computes, before the layer that reads it.
    """
    places = {name: i for i, name in enumerate(known)}
    taken = {name for op in ops for name in op.fused}
    free = [name for name in known if name not in taken]
    found = list(ops)
    for i, op in enumerate(ops):
        if op.layer in places or not op.weights or "/" in op.layer:
            continue
        readers = [places[x] for x in _reading(ops, op) if x in places]
        before = [name for name in free if readers and places[name] < min(readers)]
        written = [places[x.layer] for x in found[:i] if x.layer in places]
        near = [name for name in before if places[name] > max(written, default=-1)]
        if near:
            found[i] = replace(op, layer=near[-1], fused=(near[-1], *op.fused[1:]))
            free.remove(near[-1])
    return found


def _reading(ops: Sequence[OpLayer], op: OpLayer) -> Iterator[str]:
    for other in ops:
        if set(op.outputs) & set(other.inputs):
            yield other.layer


def _size(tensor: Any) -> int:
    size = 1
    for n in tensor.shape if tensor.shape is not None else ():
        size *= int(n)
    return size
