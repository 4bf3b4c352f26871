"""Which Keras layer each operator of a float `.tflite` file computes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from packager import tflite_file
from packager.tflite_names import fused_layers, layer_of, plain


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


def read_ops(model: Any, known: Collection[str] = ()) -> list[OpLayer]:
    """Lists the operators of the main graph with their layers, in the order of execution.

    Args:
        model: The object tree of a float file that was completed (`tflite_file.name_ends`).
        known: Names of the model's layers, where something tells them; they decide where the
            names in the file can be read in two ways.
    """
    graph = model.subgraphs[0]
    found = []
    for index, op in enumerate(graph.operators):
        outputs = [graph.tensors[i] for i in op.outputs]
        inputs = [graph.tensors[i] for i in op.inputs if i >= 0]
        constants = [t for t in inputs if model.buffers[t.buffer].data is not None]
        name = outputs[0].name.decode() if outputs else ""
        found.append(
            OpLayer(
                index=index,
                op=tflite_file.operator_name(model.operatorCodes[op.opcodeIndex]),
                layer=layer_of(plain(name, known), known),
                fused=fused_layers(plain(name, known), known),
                inputs=tuple(t.name.decode() for t in inputs if not any(t is c for c in constants)),
                outputs=tuple(t.name.decode() for t in outputs),
                weights=sum(_size(t) for t in constants),
            )
        )
    return found


def by_layer(ops: list[OpLayer]) -> dict[str, list[OpLayer]]:
    """The operators of each layer, layers in the order of execution."""
    found: dict[str, list[OpLayer]] = {}
    for op in ops:
        found.setdefault(op.layer, []).append(op)
    return found


def tensors_of(ops: list[OpLayer]) -> dict[str, list[str]]:
    """Names of the tensors that each layer's operators write first: what recipes match."""
    return {
        layer: [op.outputs[0] for op in members if op.outputs]
        for layer, members in by_layer(ops).items()
    }


def readers_of(ops: list[OpLayer], layer: str) -> tuple[str, ...]:
    """The other layers that read what a layer computes, each once."""
    written = {name for op in ops if op.layer == layer for name in op.outputs}
    found = [op.layer for op in ops if op.layer != layer and written & set(op.inputs)]
    return tuple(dict.fromkeys(found))


def _size(tensor: Any) -> int:
    size = 1
    for n in tensor.shape if tensor.shape is not None else ():
        size *= int(n)
    return size
