"""Puts weights into a file that was converted without them; see `targets/tflite_weights.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from packager.tflite_file import Model, Op, operator_name

Array = np.ndarray[Any, Any]
# TFLite's layouts (tensorflow/lite/c/builtin_op_data.h): rows are outputs; OHWI; 1HW(IM).
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "transposed": np.transpose,
    "conv": lambda w: np.transpose(w, (3, 0, 1, 2)),
    "depthwise": lambda w: w.reshape(1, w.shape[0], w.shape[1], -1),
    "same": lambda w: w,
}
# Which operators take a weight of each layout, and at which input.
_READERS = {
    "transposed": ("FULLY_CONNECTED", 1),
    "conv": ("CONV_2D", 1),
    "depthwise": ("DEPTHWISE_CONV_2D", 1),
    "same": ("GATHER", 0),
}


def fill(model: Model, weights: Sequence[dict[str, Any]], folder: Path) -> list[int]:
    """Replaces every FILL of constants by a constant tensor.

    Args:
        model: The object tree, changed in place.
        weights: `number` and `layout` of each weight.
        folder: Their values, `0.npy`, ….

    Returns:
        The weights, by their place, that are not in the file as they should be; the file is of no
        use then.
    """
    places = {weight["number"]: place for place, weight in enumerate(weights)}
    found = set()
    graph = model.subgraphs[0]
    for op, shape, number in list(_fills(model)):
        target = int(op.outputs[0])
        place = places.get(float(number[0])) if number.dtype == np.float32 else None
        if place is None:
            values = np.full(shape, number[0])
        else:
            layout = weights[place]["layout"]
            values = LAYOUTS[layout](np.load(folder / f"{place}.npy", mmap_mode="r"))
            if values.shape != tuple(shape) or not _is_read_as(model, target, layout):
                continue
            found.add(place)
        _set(model, target, values)
        graph.operators.remove(op)
    _drop_unused(graph)
    return [place for place in range(len(weights)) if place not in found]


def _name(model: Model, op: Op) -> str:
    return operator_name(model.operatorCodes[op.opcodeIndex])


def _fills(model: Model) -> Iterator[tuple[Op, Array, Array]]:
    """Yields each FILL of constants, with its shape and its number."""
    for op in model.subgraphs[0].operators:
        if _name(model, op) == "FILL":
            shape, number = (_constant(model, int(index)) for index in op.inputs)
            if shape is not None and number is not None:
                yield op, shape, number


def _constant(model: Model, index: int) -> Array | None:
    """A tensor's value; None where it is computed, or of a type that FILL does not have here."""
    types = {schema.TensorType.INT32: np.int32, schema.TensorType.INT64: np.int64}
    types |= {schema.TensorType.FLOAT32: np.float32}
    tensor = model.subgraphs[0].tensors[index]
    data = model.buffers[tensor.buffer].data
    if data is None or not len(data) or tensor.type not in types:
        return None
    return np.asarray(data, np.uint8).view(types[tensor.type])


def _is_read_as(model: Model, tensor: int, layout: str) -> bool:
    """Whether all operators that read a tensor do so as this layout wants it."""
    wanted, place = _READERS[layout]
    uses = [
        (_name(model, op), i)
        for op in model.subgraphs[0].operators
        for i, index in enumerate(op.inputs)
        if int(index) == tensor
    ]
    return bool(uses) and all(use == (wanted, place) for use in uses)


def _set(model: Model, index: int, values: Array) -> None:
    buffer = schema.BufferT()
    buffer.data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    model.buffers.append(buffer)
    model.subgraphs[0].tensors[index].buffer = len(model.buffers) - 1


def _drop_unused(graph: Any) -> None:
    """Removes tensors that nothing refers to."""
    used = {int(i) for op in graph.operators for i in (*op.inputs, *op.outputs)}
    used |= {int(i) for i in (*graph.inputs, *graph.outputs)}
    kept = sorted(used - {-1})
    number = {old: new for new, old in enumerate(kept)} | {-1: -1}
    graph.tensors = [graph.tensors[i] for i in kept]
    for holder in (graph, *graph.operators):
        holder.inputs = [number[int(i)] for i in holder.inputs]
        holder.outputs = [number[int(i)] for i in holder.outputs]
