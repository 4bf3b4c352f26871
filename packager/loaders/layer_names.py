"""Finds the Keras layers that an exported graph's outputs come from, by their name scopes."""

from __future__ import annotations

from typing import Any

from packager.loaders import graph


def of_outputs(function: Any) -> dict[str, str]:
    """Returns layers' names by output name of a signature, from `model/LAYER/operation`.

    Keras 3 calls its outputs `output_0`, `output_1`; the layers' names are left in the graph.

    Args:
        function: The concrete function of a signature.
    """
    known = {part for v in function.variables for part in v.name.partition(":")[0].split("/")}
    found = {}
    for name, tensor in zip(sorted(function.structured_outputs), function.outputs, strict=True):
        operation = graph.origin(tensor, function.graph, ("Identity", "StopGradient"))
        scopes = getattr(operation, "name", "").split("/")[:-1]
        if scopes:
            found[name] = _layer(scopes[1] if len(scopes) > 1 else scopes[0], known)
    return found


def _layer(scope: str, known: set[str]) -> str:
    """Keras 3 opens `zeta_1` for the layer `zeta` when it traces a model again."""
    plain, _, number = scope.rpartition("_")
    return plain if scope not in known and number.isdecimal() and plain else scope
