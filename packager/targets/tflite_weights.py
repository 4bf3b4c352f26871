"""Keeps large weights away from TensorFlow's TFLite converter, which takes 25 times their size.

Each is replaced by a constant of one number that no other weight has. What the converter would do
to the weights, it does to that constant, and writes it as FILL(shape, number). Where it did nothing
but change the layout, as `quantize/filled.py` checks, the weights themselves take the place of the
FILL; the others go through the converter after all. A dense network of 500 MB: 5 s and no memory
worth mentioning, instead of 76 s and 12 GB.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.loaders.opened import OpenedModel

# Below this, all weights together, the converter is fast and small enough.
LEAST_BYTES = 16 * 2**20
# The converter writes constants of at least some thousand numbers as FILL.
_LEAST_WEIGHT_BYTES = 2**20
# By the operator that reads a weight: the number of that input, and how TFLite stores it.
_LAYOUTS = {
    "MatMul": (1, "transposed"),
    "Conv2D": (1, "conv"),
    "DepthwiseConv2dNative": (1, "depthwise"),
    "GatherV2": (0, "same"),
}
# What the converter multiplies into the weights before it.
_FOLDED = ("FusedBatchNormV3", "FusedBatchNorm", "Mul", "RealDiv", "Rsqrt")
_THROUGH = ("BiasAdd", "Identity")


@dataclass(frozen=True)
class Weight:
    """A weight that stays outside: the number in its place, and how TFLite stores it."""

    variable: Any
    number: float
    layout: str


def outside(
    function: Any, opened: OpenedModel, keep: Collection[int] = ()
) -> tuple[Any, list[Weight]] | None:
    """Rebuilds a concrete function with numbers in the place of large weights.

    Args:
        function: The function, with the model's variables.
        opened: The model.
        keep: Which of the weights, by their place in the list, are constants nevertheless.

    Returns:
        The function without variables, and the weights that are not in it; None where that is not
        worth it, or the graph does more with its variables than to read them.
    """
    graph = function.graph.as_graph_def()
    known = {id(v.handle): v for v in opened.variables if hasattr(v, "handle")}
    captured = {inner.op.name: known.get(id(outer)) for outer, inner in function.graph.captures}
    readers = _readers(graph)
    only_read = all(r.op == "ReadVariableOp" for name in captured for r, _ in readers[name])
    foreign = any(variable is None for variable in captured.values())
    if graph.library.function or foreign or not only_read:
        return None
    layouts = {
        name: layout
        for name, variable in captured.items()
        if (layout := _layout(variable, name, readers)) is not None
    }
    if sum(_size(captured[name]) for name in layouts) < LEAST_BYTES:
        return None
    weights = {
        name: Weight(captured[name], number, layout)
        for (name, layout), number in zip(layouts.items(), _numbers(), strict=False)
    }
    chosen = {n: w for place, (n, w) in enumerate(weights.items()) if place not in keep}
    frozen = _frozen(graph, captured, chosen)
    return _function(frozen, function, opened), list(chosen.values())


def save(weights: list[Weight], folder: Path) -> list[dict[str, Any]]:
    """Writes the weights as `0.npy`, …; returns what `filled.fill` must know of them."""
    folder.mkdir()
    for place, weight in enumerate(weights):
        np.save(folder / f"{place}.npy", weight.variable.numpy())
    return [{"number": weight.number, "layout": weight.layout} for weight in weights]


def _readers(graph: Any) -> dict[str, list[tuple[Any, int]]]:
    """By name of a node: the nodes that read it, with the number of that input."""
    found: dict[str, list[tuple[Any, int]]] = defaultdict(list)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if not name.startswith("^"):  # an order, no value
                found[name.partition(":")[0]].append((node, place))
    return found


def _size(variable: Any) -> int:
    return 4 * int(math.prod(variable.shape))


def _layout(variable: Any, name: str, readers: dict[str, list[tuple[Any, int]]]) -> str | None:
    """How TFLite stores a large weight; None for one that the converter must see."""
    if variable.dtype != np.float32 or _size(variable) < _LEAST_WEIGHT_BYTES:
        return None
    uses = [use for reader, _ in readers[name] for use in readers[reader.name]]
    found = {_layout_at(node, place) for node, place in uses}
    if len(found) != 1 or any(_is_folded(node.name, readers) for node, _ in uses):
        return None
    return found.pop()


def _layout_at(node: Any, place: int) -> str | None:
    wanted, layout = _LAYOUTS.get(node.op, (None, ""))
    turned = node.attr["transpose_a"].b or node.attr["transpose_b"].b
    channels_first = node.attr["data_format"].s == b"NCHW"
    return None if place != wanted or turned or channels_first else layout


def _is_folded(name: str, readers: dict[str, list[tuple[Any, int]]]) -> bool:
    return any(
        node.op in _FOLDED or (node.op in _THROUGH and _is_folded(node.name, readers))
        for node, _ in readers[name]
    )


def _numbers() -> Iterator[float]:
    """Numbers between 1 and 2, none of them 1."""
    number = np.float32(1)
    while True:
        number = np.nextafter(number, np.float32(2))
        yield float(number)


def _frozen(graph: Any, captured: dict[str, Any], weights: dict[str, Weight]) -> Any:
    """The graph with constants in the place of its variables."""
    import tensorflow as tf

    frozen = tf.compat.v1.GraphDef()
    frozen.versions.CopyFrom(graph.versions)
    for node in graph.node:
        if node.name in captured:
            continue
        if node.op != "ReadVariableOp":
            frozen.node.add().CopyFrom(node)
            continue
        name = node.input[0]
        variable = captured[name]
        constant = frozen.node.add(name=node.name, op="Const")
        constant.attr["dtype"].CopyFrom(node.attr["dtype"])
        content = tf.make_tensor_proto(variable.numpy()) if name not in weights else None
        if content is None:
            # One number stands for all of the shape.
            content = tf.make_tensor_proto(np.float32(weights[name].number))
            content.tensor_shape.CopyFrom(variable.shape.as_proto())
        constant.attr["value"].tensor.CopyFrom(content)
    return frozen


def _function(frozen: Any, function: Any, opened: OpenedModel) -> Any:
    import tensorflow as tf

    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(frozen, name=""), [])
    inputs = [wrapped.graph.get_tensor_by_name(f"{end.name}:0") for end in opened.inputs]
    outputs = {
        name: wrapped.graph.get_tensor_by_name(tensor.name)
        for name, tensor in function.structured_outputs.items()
    }
    return wrapped.prune(inputs, outputs)
