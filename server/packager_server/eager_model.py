"""Serves what no graph can hold: a Keras model whose `call` runs Python, or any callable.

A bundle declares it as an artifact of kind `keras`: its `path` is a `.keras` file of the bundle, or
its `code` is `package.module:function`, called once without arguments, which returns the model;
`custom_objects` names the modules of its classes. Inputs and outputs are those of the manifest.
Calls run one at a time: such code seldom expects threads.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packager_server.codes import Code, ServeError
from packager_server.model import (
    DEFAULT_SIGNATURE,
    Array,
    Signature,
    TensorInfo,
    Tensors,
    signature_json,
)
from packager_server.reader import EngineError, Json, inside

KIND = "keras"


class EagerModel:
    """A callable with the manifest's inputs and outputs as its only signature."""

    def __init__(self, function: Callable[..., Any], manifest: Mapping[str, Any]) -> None:
        self._function: Callable[..., Any] | None = function
        self._lock = threading.Lock()
        self._signature = Signature(
            DEFAULT_SIGNATURE, _infos(manifest["inputs"]), _infos(manifest["outputs"])
        )

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The only signature, `serving_default`."""
        return {DEFAULT_SIGNATURE: self._signature}

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...]) -> Tensors:
        """Calls the model: with the array of its only input, or with a dictionary of them."""
        feed = next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs)
        with self._lock:
            if self._function is None:
                raise ServeError("the model is closed", Code.UNAVAILABLE)
            found = self._named(self._function(feed))
        return {name: found[name] for name in outputs}

    def _named(self, value: Any) -> dict[str, Array]:
        names = list(self._signature.outputs)
        if isinstance(value, Mapping):
            found = dict(value)
        else:
            values = list(value) if isinstance(value, (list, tuple)) else [value]
            found = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
        if set(found) != set(names):
            raise ServeError(
                f"the model's answer does not fit the declared outputs {names}: received "
                f"{sorted(found) or type(value).__name__}",
                Code.INTERNAL,
            )
        return {name: np.asarray(one) for name, one in found.items()}

    def metadata(self) -> dict[str, Any]:
        """Returns the signature made from the manifest."""
        return {DEFAULT_SIGNATURE: signature_json(self._signature)}

    def close(self) -> None:
        """Drops the model."""
        with self._lock:
            self._function = None


def artifact(manifest: Mapping[str, Any]) -> Json | None:
    """Returns the manifest's artifact of this kind, if it has one."""
    for one in manifest.get("artifacts") or []:
        if one.get("runtime", {}).get("kind") == KIND:
            return dict(one)
    return None


def named_code(manifest: Mapping[str, Any]) -> str:
    """Returns the function or the modules that the artifact of this kind names; may be empty."""
    chosen = artifact(manifest) or {}
    return str(chosen.get("code") or ", ".join(chosen.get("custom_objects") or []))


def load(folder: str, manifest: Mapping[str, Any], *, allow_code: bool) -> EagerModel:
    """Loads the bundle's eager model.

    Args:
        folder: The bundle.
        manifest: Its manifest.
        allow_code: Run code that the bundle names, and code inside a `.keras` file.

    Raises:
        ServeError: Code is needed and not allowed, or the reference leads nowhere.
        Exception: Whatever Keras raises for a damaged file.
    """
    chosen = artifact(manifest) or {}
    reference = chosen.get("code")
    modules = chosen.get("custom_objects") or []
    if not allow_code and (code := named_code(manifest)):
        raise ServeError(
            f"{folder}: the model is code, {code}: start the server with --allow_model_code if "
            "you trust it",
            Code.PERMISSION_DENIED,
        )
    objects = {key: value for name in modules for key, value in vars(_module(name)).items()}
    if reference:
        model = _from_reference(reference)
    else:
        model = _from_file(folder, chosen["path"], objects, allow_code)
    return EagerModel(_called(model, [one["name"] for one in manifest["inputs"]]), manifest)


def _from_file(folder: str, name: str, objects: dict[str, Any], allow_code: bool) -> Any:
    try:
        path = inside(Path(folder), name)
    except EngineError as error:
        raise ServeError(str(error)) from error
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    classes = {key: value for key, value in objects.items() if isinstance(value, type)}
    return keras.saving.load_model(
        path, custom_objects=classes, compile=False, safe_mode=not allow_code
    )


def _called(model: Any, inputs: list[str]) -> Callable[..., Any]:
    """Returns the model as a function of its only array, or of a dictionary of them by name.

    A Keras model gets them in the structure that it was built with, and is told that it is not in
    training. Mixed precision is undone: what the bundle was verified with is float32.
    """
    if not hasattr(model, "compute_output_spec"):
        function: Callable[..., Any] = model
        return function
    import keras

    for layer in model._flatten_layers():
        if layer.dtype_policy.compute_dtype in ("float16", "bfloat16"):
            layer.dtype_policy = "float32"

    def call(feed: Any) -> list[Any]:
        arrays = [feed[name] for name in inputs] if isinstance(feed, Mapping) else [feed]
        arguments = keras.tree.pack_sequence_as(_structure(model), arrays)
        only = next(iter(arguments.values())) if len(arguments) == 1 else None
        result = model(**arguments, training=False) if only is None else model(only, training=False)
        outputs: list[Any] = keras.tree.flatten(result)
        return outputs

    return call


def _structure(model: Any) -> dict[str, Any]:
    """The arguments of a model's `call`, with something in the place of each tensor."""
    core = getattr(model, "_functional", None) or model
    if getattr(core, "_inputs_struct", None) is not None:
        return {"inputs": core._inputs_struct}
    import keras

    shapes = getattr(model, "_build_shapes_dict", None) or {"inputs": (None,)}
    return {
        key.removesuffix("_shape"): keras.tree.map_shape_structure(lambda shape: 0, value)
        for key, value in shapes.items()
    }


def _from_reference(reference: str) -> Any:
    module, _, name = reference.partition(":")
    function = getattr(_module(module), name, None)
    if not callable(function):
        raise ServeError(f"{reference}: {module} has no function {name!r}", Code.NOT_FOUND)
    return function()


def _module(name: str) -> Any:
    """Imports a module from the working folder or Python's path."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    # The module is somebody's code: it may raise anything.
    except Exception as error:
        raise ServeError(f"{name} cannot be imported: {error}", Code.NOT_FOUND) from error


def _infos(declared: list[Json]) -> dict[str, TensorInfo]:
    return {one["name"]: TensorInfo(one["dtype"], tuple(one["shape"])) for one in declared}
