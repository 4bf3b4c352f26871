"""Walks through TensorFlow graphs and the functions that they call."""

from __future__ import annotations

from typing import Any

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MAX_STEPS = 64


def origin(tensor: Any, graph: Any, passed_on: tuple[str, ...]) -> Any:
    """Returns the operation that computes a tensor, also inside functions that are called.

    Args:
        tensor: A symbolic tensor.
        graph: The graph that it belongs to.
        passed_on: Types of operations to look behind, by their first input.

    Returns:
        The operation, or None when it is too far away or in a function without a graph.
    """
    for _ in range(_MAX_STEPS):
        operation = tensor.op
        if operation.type in passed_on:
            tensor = operation.inputs[0]
        elif operation.type in _CALLS:
            inner = _called(operation, graph)
            if inner is None:
                return None
            tensor, graph = inner.outputs[tensor.value_index], inner
        else:
            return operation
    return None


def readers(tensor: Any, graph: Any, passed_on: tuple[str, ...]) -> set[str]:
    """Returns the types of the operations that read a tensor, also inside functions.

    Args:
        tensor: A symbolic tensor.
        graph: The graph that it belongs to.
        passed_on: Types of operations to look behind, by their outputs.
    """
    found: set[str] = set()
    waiting = [(tensor, graph)]
    while waiting:
        tensor, graph = waiting.pop()
        for operation in tensor.consumers():
            inner = _called(operation, graph) if operation.type in _CALLS else None
            if inner is not None:
                places = [i for i, given in enumerate(operation.inputs) if given is tensor]
                waiting += [(inner.inputs[i], inner) for i in places]
            elif operation.type in passed_on:
                waiting += [(output, graph) for output in operation.outputs]
            else:
                found.add(operation.type)
    return found


def _called(operation: Any, graph: Any) -> Any:
    """The graph of the function that an operation calls, or None."""
    return getattr(graph._get_function(operation.get_attr("f").name), "graph", None)
