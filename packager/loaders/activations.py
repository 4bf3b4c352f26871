"""Tells from a TensorFlow graph whether an output is a softmax or a sigmoid."""

from __future__ import annotations

from typing import Any

from packager.loaders import graph

_KINDS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
# Operators that pass a value on unchanged.
_TRANSPARENT = ("Identity", "Reshape", "Squeeze", "StopGradient", "Cast")


def of_graph(function: Any) -> dict[str, str]:
    """Returns `softmax`, `sigmoid` or `none` by output name of a concrete function."""
    found = {}
    for name, tensor in zip(sorted(function.structured_outputs), function.outputs, strict=True):
        operation = graph.origin(tensor, function.graph, _TRANSPARENT)
        found[name] = _KINDS.get(getattr(operation, "type", ""), "none")
    return found
