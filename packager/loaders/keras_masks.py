"""Makes the masks of a Keras 3 model visible in its configuration.

Keras carries a mask beside its tensor, as an attribute, and gives it to each layer that takes one.
It records that in the model's graph only where a layer was called with one tensor and nothing
else; attention layers, for instance, get masks at every call that no configuration shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

# Merging layers whose values depend on masks, though their `call` takes none.
_MASKED_MERGES = ("Multiply", "Maximum", "Minimum")


def config_with_masks(functional: Any) -> dict[str, Any]:
    """Returns a functional model's configuration with all masks among the arguments of its calls.

    The operators that compute the masks are in it, too.
    """
    import keras

    found = list(_hidden_masks(functional))
    if not found:
        config: dict[str, Any] = functional.get_config()
        return config
    masks = [m for *_, given in found for m in keras.tree.flatten(given) if m is not None]
    _make_names_unique(functional, masks)
    wide = keras.src.models.Functional(
        functional._inputs_struct, [*functional.outputs, *masks], name=functional.name
    )
    config = wide.get_config()
    config["output_layers"] = functional.get_config()["output_layers"]
    nodes = {layer["name"]: layer["inbound_nodes"] for layer in config["layers"]}
    for name, call, argument, given in found:
        nodes[name][call]["kwargs"][argument] = keras.tree.map_structure(
            lambda mask: None if mask is None else _serialised(mask, wide), given
        )
    return config


def _make_names_unique(functional: Any, masks: list[Any]) -> None:
    """Renames the operators that compute masks where they bear the name of another."""
    known = {id(operation) for operation in functional.operations}
    taken = {operation.name for operation in functional.operations}
    waiting = list(masks)
    while waiting:
        operation, index, _ = waiting.pop()._keras_history
        if id(operation) in known:
            continue
        known.add(id(operation))
        numbered = (f"{operation.name}_{i}" for i in itertools.count(1))
        if operation.name in taken:
            operation.name = next(name for name in numbered if name not in taken)
        taken.add(operation.name)
        waiting += operation._inbound_nodes[index].input_tensors


def has_masked_outputs(functional: Any) -> bool:
    """Whether a tensor that leaves the model carries a mask with it."""
    return any(_mask_of(tensor) is not None for tensor in functional.outputs)


def _hidden_masks(functional: Any) -> Iterator[tuple[str, int, str, Any]]:
    """Yields layer name, call, argument and mask tensors that only the attributes show."""
    for operation in functional.operations:
        for call, node in enumerate(_nodes(operation, functional)):
            for argument, given in _given_masks(operation, node).items():
                yield operation.name, call, argument, given


def _nodes(operation: Any, functional: Any) -> list[Any]:
    """The calls of an operation that belong to the model and are in its configuration."""
    return [
        node
        for index, node in enumerate(operation._inbound_nodes)
        if _key(operation, index) in functional._nodes and node.input_tensors
    ]


def _key(operation: Any, index: int) -> str:
    from keras.src.ops.function import make_node_key

    key: str = make_node_key(operation, index)
    return key


def _mask_of(tensor: Any) -> Any:
    import keras

    mask = getattr(tensor, "_keras_mask", None)
    return mask if isinstance(mask, keras.KerasTensor) else None


def _given_masks(operation: Any, node: Any) -> dict[str, Any]:
    """The masks that Keras gives a layer besides what its call names, as `Layer.__call__` does."""
    import inspect

    import keras

    if not isinstance(operation, keras.Layer):
        return {}
    parameters = list(inspect.signature(operation.call).parameters)
    arguments = dict(zip(parameters, node.arguments.args, strict=False)) | node.arguments.kwargs
    tensors = {
        name: value
        for name, value in arguments.items()
        if value is not None
        and all(isinstance(t, keras.KerasTensor) for t in keras.tree.flatten(value))
        and keras.tree.flatten(value)
    }
    if type(operation).__name__ in _MASKED_MERGES:
        wanted = {"mask": arguments[parameters[0]]}
    elif len(tensors) == 1:
        wanted = {"mask": next(iter(tensors.values()))} if "mask" in parameters else {}
    else:
        wanted = {
            f"{name}_mask": value for name, value in tensors.items() if f"{name}_mask" in parameters
        }
    masks = {
        name: keras.tree.map_structure(_mask_of, value)
        for name, value in wanted.items()
        if arguments.get(name) is None
    }
    return {
        name: given
        for name, given in masks.items()
        if any(mask is not None for mask in keras.tree.flatten(given))
    }


def _serialised(tensor: Any, functional: Any) -> dict[str, Any]:
    operation, index, place = tensor._keras_history
    kept = sum(_key(operation, i) in functional._nodes for i in range(index))
    return {
        "class_name": "__keras_tensor__",
        "config": {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "keras_history": [operation.name, kept, place],
        },
    }
