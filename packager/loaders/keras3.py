"""Opens Keras 3 models. Runs in the TensorFlow child."""

from __future__ import annotations

import functools
import itertools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from packager.errors import ModelError, brief
from packager.loaders import as_python, keras2, keras_graph, names, recurrent
from packager.loaders.model_file import FUNCTION, weights_link
from packager.loaders.opened import End, OpenedModel, Tensors, check_weights
from packager.user_code import load_function, load_objects

_UNKNOWN = re.compile(r"(?:Could not locate (?:class|function)|Unknown \w+:?) ['\"]?([\w>.]+)")
_OTHER_ARGUMENTS = re.compile(r"(\w+)\.__init__\(\) [^\n]*")
_NOT_IN_SCOPE = re.compile(r"[^A-Za-z0-9_./:>-]+")
_SUFFIX = {"keras3": ".keras", "keras_h5": ".h5"}


def open_file(
    source: str, file_format: str, saved_by: str, custom_objects: list[str], unsafe: bool
) -> OpenedModel:
    """Opens a `.keras` archive of Keras 3, or an `.h5` file of Keras 2 or 3.

    Raises:
        ModelError: Keras cannot open it; says which class is unknown where that is the reason.
    """
    import keras

    objects = load_objects(custom_objects, ModelError)
    with tempfile.TemporaryDirectory() as folder:
        # Keras goes by the extension; the content has been recognised already.
        link = Path(folder) / f"model{_SUFFIX[file_format]}"
        link.symlink_to(Path(source).resolve())
        try:
            if saved_by.startswith("keras 2"):
                model = keras2.open_h5(link, source, objects, safe=not unsafe)
            else:
                model = keras.saving.load_model(
                    link, custom_objects=objects, compile=False, safe_mode=not unsafe
                )
        except ModelError:
            raise
        except Exception as error:
            raise _explain(source, error) from error
    return open_model(model, source, file_format, saved_by)


def open_callable(source: str, custom_objects: list[str]) -> OpenedModel:
    """Calls `package.module:function` and takes the Keras model that it returns."""
    import keras

    load_objects(custom_objects, ModelError)
    return open_model(_called(source), source, "callable", f"keras {keras.__version__}")


def open_weights(
    source: str, architecture: str, saved_by: str, custom_objects: list[str], unsafe: bool
) -> OpenedModel:
    """Builds the model that a JSON file describes or a function returns, and reads its weights.

    Raises:
        ModelError: It cannot be built, or the weights are those of another model.
    """
    import keras

    objects = load_objects(custom_objects, ModelError)
    if FUNCTION.fullmatch(architecture):
        model = _called(architecture)
    else:
        described = json.loads(Path(architecture).read_text(encoding="utf-8"))
        try:
            model = keras.saving.deserialize_keras_object(
                described, custom_objects=objects, safe_mode=not unsafe
            )
        except Exception as error:
            raise _explain(architecture, error) from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.load_weights(weights_link(Path(source), Path(folder)))
        except Exception as error:
            raise ModelError(
                f"{source}: its weights do not fit the model of {architecture}: {brief(error)}",
                hint="give the architecture that these weights were saved from",
            ) from error
    return open_model(model, source, "keras_weights", saved_by)


def _called(source: str) -> Any:
    import keras

    function = load_function(source, ModelError)
    try:
        model = function()
    # The function is the user's code: it may raise anything.
    except Exception as error:
        raise ModelError(
            f"{source} cannot be called without arguments: {brief(error)}",
            hint="the function must return a Keras 3 model",
        ) from error
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"{source} returned {type(model).__name__}, expected a keras.Model",
            hint="return the model from the function",
        )
    return model


def open_model(model: Any, source: str, file_format: str, saved_by: str) -> OpenedModel:
    """Wraps a Keras model.

    Raises:
        ModelError: It was never called, has no inputs, or its weights are not finite.
    """
    import keras

    _compute_in_float32(model)
    if not keras_graph.is_graph(model):
        return _open_subclassed(model, source, file_format, saved_by)
    if not model.inputs or not model.outputs:
        raise ModelError(f"{source}: the model is empty: it has no layers")
    check_weights(model.variables, source)
    _refuse_channels_first(model, source)
    recurrent.refuse_stateful(model, source)
    inputs = _ends(model.inputs, "input")
    outputs = _ends(model.outputs, "output")
    _make_scopes(model)

    def call(tensors: Tensors) -> Tensors:
        ordered = [tensors[end.name] for end in inputs]
        packed = keras.tree.pack_sequence_as(_input_structure(model), ordered)
        result = keras.tree.flatten(model(packed, training=False))
        return {end.name: value for end, value in zip(outputs, result, strict=True)}

    variables = [v.value for v in model.variables]
    return OpenedModel(file_format, saved_by, inputs, outputs, call, variables, keras_model=model)


def _compute_in_float32(model: Any) -> None:
    """Undoes mixed precision: its weights are float32, and no target computes in float16."""
    for layer in model._flatten_layers():
        if layer.dtype_policy.compute_dtype in ("float16", "bfloat16"):
            layer.dtype_policy = "float32"


def _refuse_channels_first(model: Any, source: str) -> None:
    """TensorFlow convolves and pools NCHW only on GPUs; TFLite and TF.js do not do it at all."""
    for layer in model._flatten_layers(include_self=False):
        kind = type(layer).__name__
        first = getattr(layer, "data_format", "") == "channels_first"
        if first and ("Conv" in kind or kind.startswith(("MaxPool", "AveragePool"))):
            raise ModelError(
                f"{source}: the layer {layer.name!r} ({kind}) has data_format='channels_first',"
                " which runs on GPUs only",
                hint="build the model with channels_last and copy the weights: their shapes are"
                " the same",
            )


def _make_scopes(model: Any) -> None:
    """Renames layers whose names TensorFlow refuses as name scopes: spaces, non-ASCII letters.

    Keras itself cannot trace such a model. The names of the ends are kept in `source_name`.
    """
    layers = model._flatten_layers(include_self=False)
    taken = {layer.name for layer in layers}
    for layer in layers:
        valid = re.sub(r"^[^A-Za-z0-9.]+", "", _NOT_IN_SCOPE.sub("_", layer.name)) or "layer"
        if valid != layer.name:
            name = next(n for i in itertools.count() if (n := f"{valid}_{i}") not in taken)
            taken.add(name)
            layer.name = name
    for variable in (v.value for v in model.variables):
        # Saving opens a scope by the variable's name; TensorFlow offers no way to set it.
        variable._handle_name = _NOT_IN_SCOPE.sub("_", variable._handle_name)


def _input_structure(model: Any) -> Any:
    return keras_graph.functional_of(model)._inputs_struct


def _open_subclassed(model: Any, source: str, file_format: str, saved_by: str) -> OpenedModel:
    """A model whose `call` is Python code: its ends are what it was built with and returns."""
    import keras

    structure = _built_with(model)
    if not model.built or not structure:
        raise ModelError(
            f"{source}: the {type(model).__name__} model has never been called, so its inputs are"
            " unknown",
            hint="call it once on a sample before saving: model(sample)",
        )
    check_weights(model.variables, source)
    specs = keras.tree.flatten(structure)
    labels = names.sanitise([spec.name for spec in specs], "input")
    inputs = tuple(
        End(label, spec.name, (None, *spec.shape[1:]), spec.dtype)
        for label, spec in zip(labels, specs, strict=True)
    )

    def apply(tensors: Tensors) -> list[Any]:
        arguments = keras.tree.pack_sequence_as(structure, [tensors[e.name] for e in inputs])
        only = next(iter(arguments.values())) if len(arguments) == 1 else None
        result = model(**arguments, training=False) if only is None else model(only, training=False)
        flat: list[Any] = keras.tree.flatten(result)
        return flat

    read = len(model.variables)
    found, no_graph = as_python.returned_by(apply, inputs, source)
    if len(model.variables) != read:
        raise ModelError(
            f"{source}: {len(model.variables) - read} weights were not read: Keras makes them at"
            " the first call only, when the file has been read already",
            hint=f"give {type(model).__name__} a build() that builds its layers, or package a"
            " function that returns the model: packager build module:function",
        )
    returned = ["output"] if len(found) == 1 else [f"output_{i + 1}" for i in range(len(found))]
    outputs = tuple(
        End(name, name, shape, dtype) for name, (shape, dtype) in zip(returned, found, strict=True)
    )

    def call(tensors: Tensors) -> Tensors:
        return dict(zip(returned, apply(tensors), strict=True))

    return OpenedModel(
        file_format,
        saved_by,
        inputs,
        outputs,
        call,
        [v.value for v in model.variables],
        keras_model=model,
        no_graph=no_graph,
    )


def _built_with(model: Any) -> dict[str, Any]:
    """The arguments of a model's `call`, as KerasTensors, from what Keras built it with.

    Keras records shapes only, by argument name with `_shape` behind it; the type is float32.
    """
    import keras

    if getattr(model, "inputs", None):  # a functional model with a `call` of its own
        flat = [
            keras.KerasTensor(t.shape, t.dtype, name=t._keras_history.operation.name)
            for t in model.inputs
        ]
        return {"inputs": keras.tree.pack_sequence_as(_input_structure(model), flat)}
    shapes = getattr(model, "_build_shapes_dict", None) or {}
    found = {}
    for key, value in shapes.items():
        name = key.removesuffix("_shape")
        tensor = functools.partial(keras.KerasTensor, dtype="float32", name=name)
        found[name] = keras.tree.map_shape_structure(tensor, value)
    return found


def _ends(tensors: Any, fallback: str) -> tuple[End, ...]:
    originals = [tensor._keras_history.operation.name for tensor in tensors]
    return tuple(
        End(
            name=name,
            source_name=original,
            shape=tuple(tensor.shape),
            dtype="float32" if tensor.dtype in ("float16", "bfloat16") else str(tensor.dtype),
        )
        for name, original, tensor in zip(
            names.sanitise(originals, fallback), originals, tensors, strict=True
        )
    )


def _explain(source: str, error: Exception) -> ModelError:
    unknown = _UNKNOWN.search(str(error))
    if unknown:
        return ModelError(
            f"{source}: the model uses the custom class or function {unknown[1]!r}, which is not"
            " known here",
            hint="name the module that defines it: --custom-objects package.module",
        )
    other = _OTHER_ARGUMENTS.search(str(error))
    if other:
        return ModelError(
            f"{source}: the class {other[1]!r} does not take what the file holds for it:"
            f" {other[0]}",
            hint="the class from --custom-objects takes other arguments than the file holds: give"
            " the version of it that the model was saved with, with get_config()",
        )
    return ModelError(
        f"{source}: Keras cannot open it: {brief(error)}",
        hint="open it with keras.saving.load_model in the environment that saved it and save it"
        " again",
    )
