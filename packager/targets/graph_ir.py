"""A frozen TensorFlow graph as plain Python: what the rewrites of the TF.js graph writer work on.

`Graph` is mutable, because rewriting a graph is what it is for; it lives inside one call of
`tfjs_graph_writer.write`. Edges are pairs of node name and output number everywhere, also inside
functions, where TensorFlow itself writes names of outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ref = tuple[str, int]
Shape = tuple[int | None, ...] | None


@dataclass
class Node:
    """One operation.

    Attributes:
        name: Its name, unique in its graph.
        op: TensorFlow's operator.
        inputs: What it takes, without control inputs.
        attrs: TensorFlow's `AttrValue` messages by name; a constant's value is not among them.
        value: The value of a `Const`.
        shapes: Static shape of each output; None where the rank is unknown.
    """

    name: str
    op: str
    inputs: list[Ref] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    value: Array | None = None
    shapes: tuple[Shape, ...] = ()


@dataclass
class Graph:
    """A graph, or the body of a function.

    Attributes:
        nodes: By name.
        inputs: Names of the nodes that are fed, in order.
        outputs: What is asked for, by output name, in order.
        functions: The functions that control flow calls, by name; empty inside of a function.
    """

    nodes: dict[str, Node]
    inputs: list[str]
    outputs: dict[str, Ref]
    functions: dict[str, Graph] = field(default_factory=dict)

    def bodies(self) -> Iterator[Graph]:
        """Yields the graph itself and each function."""
        yield self
        yield from self.functions.values()

    def add(self, node: Node) -> Node:
        """Adds a node, under another name when its own is taken."""
        base, number = node.name, 0
        while node.name in self.nodes:
            number += 1
            node.name = f"{base}_{number}"
        self.nodes[node.name] = node
        return node

    def add_constant(self, name: str, value: Array) -> Ref:
        """Adds a constant and returns the reference to it."""
        return self.add(Node(name, "Const", value=value, shapes=(value.shape,))).name, 0

    def rename(self, names: Mapping[str, str]) -> None:
        """Renames nodes; a name that is taken gets a number."""
        taken = {name for name in self.nodes if name not in names}
        chosen: dict[str, str] = {}
        for old, wanted in names.items():
            fresh, number = wanted, 0
            while fresh in taken:
                number += 1
                fresh = f"{wanted}_{number}"
            taken.add(fresh)
            chosen[old] = fresh
        for node in self.nodes.values():
            node.name = chosen.get(node.name, node.name)
            node.inputs = [(chosen.get(name, name), number) for name, number in node.inputs]
        self.nodes = {node.name: node for node in self.nodes.values()}
        self.inputs = [chosen.get(name, name) for name in self.inputs]
        self.outputs = {
            output: (chosen.get(name, name), number)
            for output, (name, number) in self.outputs.items()
        }

    def constant(self, ref: Ref) -> Array | None:
        """The value behind a reference, if it is a constant."""
        return self.nodes[ref[0]].value

    def shape(self, ref: Ref) -> Shape:
        """The static shape behind a reference; None when the rank is unknown."""
        shapes = self.nodes[ref[0]].shapes
        return shapes[ref[1]] if ref[1] < len(shapes) else None

    def consumers(self) -> dict[Ref, list[Node]]:
        """Which nodes take each reference, once per use."""
        found: dict[Ref, list[Node]] = {}
        for node in self.nodes.values():
            for ref in node.inputs:
                found.setdefault(ref, []).append(node)
        return found

    def uses(self) -> dict[Ref, int]:
        """How often each reference is taken, as an output of the graph too."""
        found = {ref: len(nodes) for ref, nodes in self.consumers().items()}
        for ref in self.outputs.values():
            found[ref] = found.get(ref, 0) + 1
        return found

    def redirect(self, moved: dict[Ref, Ref]) -> None:
        """Lets everything that takes a key of `moved` take its value instead."""

        def end(ref: Ref) -> Ref:
            while ref in moved:
                ref = moved[ref]
            return ref

        for node in self.nodes.values():
            node.inputs = [end(ref) for ref in node.inputs]
        self.outputs = {name: end(ref) for name, ref in self.outputs.items()}

    def prune(self) -> None:
        """Drops the nodes that no output needs; inputs stay."""
        needed: set[str] = set(self.inputs)
        waiting = [name for name, _ in self.outputs.values()]
        while waiting:
            name = waiting.pop()
            if name not in needed or name in self.inputs:
                needed.add(name)
                waiting += [ref[0] for ref in self.nodes[name].inputs if ref[0] not in needed]
        self.nodes = {name: node for name, node in self.nodes.items() if name in needed}

    def sorted_nodes(self) -> list[Node]:
        """The nodes, each after those that it takes."""
        done: dict[str, Node] = {}
        for name in self.nodes:
            stack = [name]
            while stack:
                top = stack[-1]
                missing = [r[0] for r in self.nodes[top].inputs if r[0] not in done]
                if missing:
                    stack += missing
                else:
                    done.setdefault(stack.pop(), self.nodes[top])
        return list(done.values())


def from_graph_def(graph_def: Any, inputs: Iterable[str], outputs: dict[str, Ref]) -> Graph:
    """Reads a `GraphDef` without control flow of the first kind (no loops among its edges).

    Args:
        graph_def: TensorFlow's message.
        inputs: Names of the placeholders, in order.
        outputs: What is asked for.
    """
    from tensorflow.python.framework import function_def_to_graph

    functions = {}
    for function in graph_def.library.function:
        body, flat = function_def_to_graph.function_def_to_graph_def(function)
        arguments = [argument.name for argument in function.signature.input_arg]
        results = {
            argument.name: parse(flat[function.ret[argument.name]])
            for argument in function.signature.output_arg
        }
        # Functions that a body calls in turn are the library's own.
        functions[function.signature.name] = Graph(_nodes(body), arguments, results)
    return Graph(_with_shapes(graph_def, _nodes(graph_def)), list(inputs), outputs, functions)


def parse(text: str) -> Ref:
    """Reads `name` or `name:1`."""
    name, _, number = text.partition(":")
    return name, int(number or 0)


def _nodes(graph_def: Any) -> dict[str, Node]:
    import tensorflow as tf

    found = {}
    for node in graph_def.node:
        attrs = {key: value for key, value in node.attr.items() if not key.startswith("_")}
        value = tf.make_ndarray(attrs.pop("value").tensor) if node.op == "Const" else None
        inputs = [parse(text) for text in node.input if not text.startswith("^")]
        found[node.name] = Node(node.name, node.op, inputs, attrs, value)
    return found


def _with_shapes(graph_def: Any, nodes: dict[str, Node]) -> dict[str, Node]:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    for operation in graph.get_operations():
        nodes[operation.name].shapes = tuple(
            None if t.shape.rank is None else tuple(t.shape.as_list()) for t in operation.outputs
        )
    return nodes


def set_attribute(node: Node, key: str, value: Any) -> None:
    """Sets an attribute of a node.

    Args:
        node: The node.
        key: The attribute's name; `type_NAME` for a data type, whose number is the value.
        value: Bytes, a bool, a number, or a list of bytes or numbers.
    """
    from tensorflow.core.framework import attr_value_pb2

    made = attr_value_pb2.AttrValue()
    if key.startswith("type_"):
        key, made.type = key.removeprefix("type_"), value
    elif isinstance(value, list):
        kind = made.list.s if value and isinstance(value[0], bytes) else made.list.i
        kind.extend(value)
    elif isinstance(value, bool):
        made.b = value
    elif isinstance(value, bytes):
        made.s = value
    else:
        made.i = value
    node.attrs[key] = made
