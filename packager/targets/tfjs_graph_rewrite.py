"""Rewrites a frozen graph for TF.js: drops, replaces and renames.

Each function changes the graph in place and keeps what it computes.
"""

from __future__ import annotations

from dataclasses import replace

from packager.targets.graph_ir import Graph, Node

# Operators that hand on their first input at inference.
_PASSES_ON = (
    "CheckNumerics", "EnsureShape", "Identity", "PreventGradient", "Snapshot", "StopGradient",
)  # fmt: skip
# TF.js looks for `if`, `While` and `Stateless…` when it asks whether a model must run
# asynchronously, and misses `If`.
# They make a list of tensors: a value in TensorFlow, an object that changes in TF.js.
_LISTS = (
    "EmptyTensorList", "TensorListFromTensor", "TensorListReserve", "TensorListScatter",
    "TensorListScatterV2", "TensorListSplit",
)  # fmt: skip
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


def separate_lists(graph: Graph) -> None:
    """Gives each user of a list of tensors its own.

    TF.js writes into the list itself, where TensorFlow makes another one.
    """
    for body in graph.bodies():
        for node in [node for node in body.nodes.values() if node.op in _LISTS]:
            users = body.consumers().get((node.name, 0), [])
            for user in users[1:]:
                own = body.add(replace(node, name=f"{node.name}/own", inputs=list(node.inputs)))
                place = len(user.inputs) - 1 - user.inputs[::-1].index((node.name, 0))
                user.inputs[place] = (own.name, 0)


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


def name_ends(graph: Graph, inputs: list[str]) -> None:
    """Gives the graph's ends the model's own names.

    Each output becomes a node of its own: TF.js binds outputs by node.

    Args:
        graph: The graph.
        inputs: The names of its inputs, in order.
    """
    wanted = {*inputs, *graph.outputs}
    given = dict(zip(graph.inputs, inputs, strict=True))
    inner = {name: f"{name}_inner" for name in graph.nodes if name in wanted and name not in given}
    graph.rename(inner)
    graph.rename(given)
    for output, (name, number) in graph.outputs.items():
        # An output may bear an input's name.
        own = output if output not in graph.nodes else f"{output}_output"
        end = graph.add(Node(own, "Identity", [(name, number)]))
        graph.outputs[output] = (end.name, 0)
