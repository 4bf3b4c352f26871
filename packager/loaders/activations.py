"""Tells from a TensorFlow graph whether an output is a softmax or a sigmoid."""

from __future__ import annotations

from typing import Any

_KINDS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
# Operators that pass a value on unchanged.
_TRANSPARENT = ("Identity", "Reshape", "Squeeze", "StopGradient", "Cast")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MAX_STEPS = 64


def of_graph(function: Any) -> dict[str, str]:
    """Returns `softmax`, `sigmoid` or `none` by output name of a concrete function."""
    names = sorted(function.structured_outputs)
    return {
        name: _activation(tensor, function.graph)
        for name, tensor in zip(names, function.outputs, strict=True)
    }


def _activation(tensor: Any, graph: Any) -> str:
    for _ in range(_MAX_STEPS):
        operation = tensor.op
        if operation.type in _KINDS:
            return _KINDS[operation.type]
        if operation.type in _TRANSPARENT:
            tensor = operation.inputs[0]
        elif operation.type in _CALLS:
            called = graph._get_function(operation.get_attr("f").name)
            inner = getattr(called, "graph", None)
            if inner is None:
                return "none"
            tensor, graph = inner.outputs[tensor.value_index], inner
        else:
            return "none"
    return "none"
