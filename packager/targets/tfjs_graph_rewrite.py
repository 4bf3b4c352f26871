"""Rewrites a frozen graph for TF.js: drops, replaces and renames.

Each function changes the graph in place and keeps what it computes.
"""

from __future__ import annotations

import numpy as np

from packager.targets.graph_ir import Graph, Node, Ref

# Operators that hand on their first input at inference.
_PASSES_ON = (
    "CheckNumerics", "EnsureShape", "Identity", "PreventGradient", "Snapshot", "StopGradient",
)  # fmt: skip
# TF.js looks for `if`, `While` and `Stateless…` when it asks whether a model must run
# asynchronously, and misses `If`.
_STATELESS = {"If": "StatelessIf", "While": "StatelessWhile"}


def simplify(graph: Graph) -> None:
    """Drops what does nothing at inference, in the graph and in its functions."""
    for body in graph.bodies():
        moved = {(n.name, 0): n.inputs[0] for n in body.nodes.values() if n.op in _PASSES_ON}
        body.redirect(moved)
        body.prune()
        for node in body.nodes.values():
            node.op = _STATELESS.get(node.op, node.op)
    for function in graph.functions.values():
        _copy_constant_outputs(function)


def _copy_constant_outputs(function: Graph) -> None:
    """TF.js frees a loop's old values, so that a weight must not be one of them."""
    for name, ref in function.outputs.items():
        if function.constant(ref) is not None:
            copy = function.add(Node(f"{ref[0]}/copy", "Identity", [ref]))
            function.outputs[name] = (copy.name, 0)


def drop_unused_functions(graph: Graph) -> None:
    """Keeps the functions that control flow still reaches."""
    reached: set[str] = set()
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes.values():
            for name in called(node):
                if name in graph.functions and name not in reached:
                    reached.add(name)
                    waiting.append(graph.functions[name])
    graph.functions = {name: f for name, f in graph.functions.items() if name in reached}


def called(node: Node) -> list[str]:
    """Names of the functions that a node refers to."""
    return [value.func.name for value in node.attrs.values() if value.HasField("func")]


def multiply_matrices(graph: Graph) -> None:
    """Writes an `Einsum` that is a product of matrices as one: TF.js' fast back ends lack it."""
    for body in graph.bodies():
        for node in list(body.nodes.values()):
            if node.op == "Einsum" and len(node.inputs) == 2:
                _to_product(body, node)
        body.prune()


def _to_product(body: Graph, node: Node) -> None:
    equation = node.attrs["equation"].s.decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    left, right = terms.split(",")
    if "." in equation or any(len(set(t)) < len(t) for t in (left, right, result)):
        return
    batch = [x for x in left if x in right and x in result]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    summed = [x for x in left if x in right and x not in result]
    if any(len(group) != 1 for group in (rows, columns, summed)) or not set(rows) < set(result):
        return
    if not set(columns) < set(result):
        return
    orders = ([*batch, *rows, *summed], [*batch, *summed, *columns])
    sides = [
        _transposed(body, node, ref, [term.index(x) for x in order])
        for ref, term, order in zip(node.inputs, (left, right), orders, strict=True)
    ]
    name = f"{node.name}/product"
    product = body.add(Node(name, "BatchMatMulV2", sides, {"T": node.attrs["T"]}))
    made = [*batch, *rows, *columns]
    end = _transposed(body, node, (product.name, 0), [made.index(x) for x in result])
    body.redirect({(node.name, 0): end})


def _transposed(body: Graph, node: Node, ref: Ref, order: list[int]) -> Ref:
    if order == sorted(order):
        return ref
    axes = body.add_constant(f"{node.name}/order", np.array(order, np.int32))
    made = Node(f"{node.name}/transposed", "Transpose", [ref, axes], {"T": node.attrs["T"]})
    return body.add(made).name, 0


def name_ends(graph: Graph, inputs: list[str]) -> None:
    """Gives the graph's ends the model's own names.

    Each output becomes a node of its own: TF.js binds outputs by node.

    Args:
        graph: The graph.
        inputs: The names of its inputs, in order.
    """
    wanted = {*inputs, *graph.outputs}
    names: dict[str, str] = dict(zip(graph.inputs, inputs, strict=True))
    for name in graph.nodes:
        if name in wanted and name not in names:
            fresh, number = f"{name}_inner", 0
            while fresh in graph.nodes or fresh in wanted or fresh in names.values():
                number += 1
                fresh = f"{name}_inner_{number}"
            names[name] = fresh
    for node in graph.nodes.values():
        node.name = names.get(node.name, node.name)
        node.inputs = [(names.get(r[0], r[0]), r[1]) for r in node.inputs]
    graph.nodes = {node.name: node for node in graph.nodes.values()}
    graph.inputs = list(inputs)
    for output, (name, number) in graph.outputs.items():
        # An output may bear an input's name.
        own = output if output not in graph.nodes else f"{output}_output"
        end = graph.add(Node(own, "Identity", [(names.get(name, name), number)]))
        graph.outputs[output] = (end.name, 0)
