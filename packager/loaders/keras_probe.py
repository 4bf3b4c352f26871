"""What the inside of a Keras model answers: its layers, and its outputs before the activation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from packager.loaders.keras_graph import functional_of

Arrays = dict[str, Any]
_SCORES = ("softmax", "sigmoid")


def layer_outputs(model: Any, inputs: list[Any], names: list[str]) -> Arrays:
    """Runs a model and returns the first output of the first call of each of these layers.

    Args:
        model: A Sequential or functional model.
        inputs: Arrays, in the order of its inputs.
        names: Layers or operators of the model itself, not of models inside it.
    """
    functional = functional_of(model)
    by_name = {operation.name: operation for operation in functional.operations}
    tensors = {
        name: _node(by_name[name], functional).output_tensors[0]
        for name in names
        if name in by_name and _node(by_name[name], functional) is not None
    }
    return _run(functional, inputs, tensors)


def logits(model: Any, inputs: list[Any], outputs: list[str]) -> Arrays:
    """Runs a model and returns those outputs that end in a softmax or sigmoid without it.

    Args:
        model: A Sequential or functional model.
        inputs: Arrays, in the order of its inputs.
        outputs: The outputs' names, in the model's order.
    """
    functional = functional_of(model)
    tensors, ends = {}, []
    for name, tensor in zip(outputs, functional.outputs, strict=True):
        operation = tensor._keras_history.operation
        nodes = operation._inbound_nodes
        if type(operation).__name__ == "Softmax" and len(nodes) == 1:
            tensors[name] = nodes[0].input_tensors[0]
        elif _ends_in_scores(operation) and len(nodes) == 1:
            # A layer with several calls may stand inside the model, too.
            tensors[name] = tensor
            ends.append(operation)
    with _linear(ends):
        return _run(functional, inputs, tensors)


def _ends_in_scores(operation: Any) -> bool:
    activation = getattr(operation, "activation", None)
    return getattr(activation, "__name__", "") in _SCORES


@contextlib.contextmanager
def _linear(layers: list[Any]) -> Iterator[None]:
    import keras

    kept = [layer.activation for layer in layers]
    try:
        for layer in layers:
            layer.activation = keras.activations.linear
        yield
    finally:
        for layer, activation in zip(layers, kept, strict=True):
            layer.activation = activation


def _node(operation: Any, functional: Any) -> Any:
    from keras.src.ops.function import make_node_key

    for index, node in enumerate(operation._inbound_nodes):
        if make_node_key(operation, index) in functional._nodes:
            return node
    return None


def _run(functional: Any, inputs: list[Any], tensors: dict[str, Any]) -> Arrays:
    import keras
    import numpy as np

    if not tensors:
        return {}
    inner = keras.src.models.Functional(functional.inputs, list(tensors.values()))
    results = inner([keras.ops.convert_to_tensor(array) for array in inputs], training=False)
    flat = keras.tree.flatten(results)
    return {name: np.asarray(value) for name, value in zip(tensors, flat, strict=True)}
