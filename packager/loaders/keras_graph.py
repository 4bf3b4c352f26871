"""Describes a Sequential or functional Keras 3 model as a `LayerGraph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packager.errors import UnsupportedError
from packager.loaders.keras_masks import config_with_masks, has_masked_outputs
from packager.loaders.layer_graph import Call, Layer, LayerGraph, Spec, TensorRef

Specs = dict[TensorRef, Spec]


def is_graph(model: Any) -> bool:
    """Whether a model computes what its layers say, and nothing else."""
    import keras

    functional = keras.src.models.Functional
    # A subclass may compute something else than its graph says.
    if type(model).call not in (functional.call, keras.Sequential.call):
        return False
    if isinstance(model, keras.Sequential):
        return bool(model.built and model.layers)
    return isinstance(model, functional)


def functional_of(model: Any) -> Any:
    """The functional model that a Sequential one keeps; any other model is itself."""
    return getattr(model, "_functional", None) or model


def layer_graph(model: Any) -> LayerGraph:
    """Describes a Sequential or functional model.

    Raises:
        UnsupportedError: The model is subclassed: it has no layer graph.
    """
    import keras

    # A Sequential model keeps a functional one, whose calls also show the masks.
    is_sequential = isinstance(model, keras.Sequential)
    functional = model._functional if is_sequential else model
    if not is_graph(model) or functional is None:
        raise UnsupportedError(
            f"the model {model.name!r} is subclassed ({type(model).__name__}): no layer graph",
            hint="build it with the functional API, or use the SavedModel and TFLite artifacts",
        )
    config = config_with_masks(functional)
    # Operators such as `x + y` are in the configuration, but not in `model.layers`.
    by_name = {operation.name: operation for operation in functional.operations}
    outputs = tuple(_from_zero(ref, by_name) for ref in refs_of(config["output_layers"]))
    specs = specs_of(config["layers"])
    specs |= {
        ref: Spec(tuple(tensor.shape), str(tensor.dtype))
        for ref, tensor in zip(outputs, functional.outputs, strict=True)
    }
    return LayerGraph(
        name=model.name,
        class_name="Sequential" if is_sequential else "Functional",
        layers=sort_layers(
            tuple(_layer(by_name.get(c["name"]), c, specs) for c in config["layers"])
        ),
        inputs=tuple(refs_of(config["input_layers"])),
        outputs=outputs,
    )


def _from_zero(ref: TensorRef, by_name: dict[str, Any]) -> TensorRef:
    """Counts a nested functional model's calls from 0, as everywhere else.

    In `output_layers`, and only there, Keras counts from 1: the model's own making is call 0.
    """
    import keras

    if not isinstance(by_name[ref.layer], keras.src.models.Functional):
        return ref
    return TensorRef(ref.layer, ref.node - 1, ref.tensor)


def _layer(layer: Any, described: dict[str, Any], specs: Specs) -> Layer:
    nested = hasattr(layer, "layers") and is_graph(layer)
    name = described["name"]
    if nested and has_masked_outputs(functional_of(layer)):
        described["inbound_nodes"] = [
            {**node, "kwargs": {**node["kwargs"], "mask": "of its outputs"}}
            for node in described["inbound_nodes"]
        ]
    return Layer(
        class_name=described["class_name"],
        name=name,
        module=described.get("module") or "",
        config={k: v for k, v in described["config"].items() if not (nested and k == "layers")},
        calls=tuple(
            call_of(node, name, number, specs)
            for number, node in enumerate(described.get("inbound_nodes", []))
        ),
        weights={} if nested else _weights(layer),
        graph=layer_graph(layer) if nested else None,
    )


def _weights(layer: Any) -> dict[str, Any]:
    """A layer's weights by their path below it; an operator that computes a mask has none."""
    import numpy as np

    if layer is None:
        return {}

    # The path is the one at which the layer was built; it may have been renamed since.
    prefix = f"{getattr(layer, 'path', None) or layer.name}/"
    return {
        weight.path.removeprefix(prefix)
        if weight.path.startswith(prefix)
        else weight.name: np.asarray(weight)
        for weight in getattr(layer, "weights", ())
    }


def call_of(node: dict[str, Any], layer: str, number: int, specs: Specs) -> Call:
    """Reads one serialised call.

    Args:
        node: `{"args": [...], "kwargs": {...}}`, as Keras serialises it.
        layer: The name of the layer that is called.
        number: Which of its calls this is.
        specs: Shapes and types of the graph's tensors, as far as they are known.
    """
    refs: list[TensorRef] = []
    args = [_placed(value, refs) for value in node["args"]]
    kwargs = {key: _placed(value, refs) for key, value in node["kwargs"].items()}
    outputs = {
        ref.tensor: spec for ref, spec in specs.items() if (ref.layer, ref.node) == (layer, number)
    }
    return Call(
        tuple(refs), tuple(args), {k: v for k, v in kwargs.items() if _is_given(v)}, outputs
    )


def _is_given(value: Any) -> bool:
    """Whether an argument says something; the masks of several tensors are a list of None."""
    if isinstance(value, list) and value:
        return any(map(_is_given, value))
    return value is not None


def _placed(value: Any, refs: list[TensorRef]) -> Any:
    """Replaces each tensor by `{"tensor": i}`, its place in `refs`, which grows."""
    if isinstance(value, dict):
        if value.get("class_name") == "__keras_tensor__":
            refs.append(TensorRef(*value["config"]["keras_history"]))
            return {"tensor": len(refs) - 1}
        # Keras takes the tensors of a dictionary in the order of its sorted keys.
        return {key: _placed(value[key], refs) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_placed(item, refs) for item in value]
    return value


def specs_of(layers: list[dict[str, Any]]) -> Specs:
    """Shapes and types of all tensors that some call takes."""
    nodes = [layer.get("inbound_nodes", []) for layer in layers]
    return {
        TensorRef(*config["keras_history"]): Spec(tuple(config["shape"]), config["dtype"])
        for config in _tensors(nodes)
    }


def _tensors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("class_name") == "__keras_tensor__":
            yield value["config"]
        else:
            yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def refs_of(value: Any) -> Iterator[TensorRef]:
    """References of `input_layers`: one bare `[name, node, tensor]`, or a structure of them."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if len(value) == 3 and isinstance(value[0], str):
        yield TensorRef(*value)
    else:
        for item in value:
            yield from refs_of(item)


def sort_layers(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Orders layers so that each stands after those that its first calls need."""
    by_name = {layer.name: layer for layer in layers}
    done: dict[str, Layer] = {}

    for layer in layers:
        stack = [layer]
        while stack:
            top = stack[-1]
            needed = [
                by_name[ref.layer]
                for call in top.calls[:1]
                for ref in call.inputs
                if ref.layer not in done and ref.layer != top.name
            ]
            if needed:
                stack.extend(needed)
            else:
                done[top.name] = stack.pop()
    return tuple(done.values())
