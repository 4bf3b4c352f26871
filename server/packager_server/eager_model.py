"""Serves what no graph can hold: a Keras model whose `call` runs Python, or any callable.

A bundle declares it as an artifact of kind `keras`: its `path` is a `.keras` file of the bundle, or
its `code` is `package.module:function`, called once without arguments, which returns the model.
Inputs and outputs are those of the manifest. Calls run one at a time: such code seldom expects
threads.
"""

from __future__ import annotations

import importlib
import os
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
    if reference is None:
        return EagerModel(_from_file(folder, chosen["path"], allow_code), manifest)
    if not allow_code:
        raise ServeError(
            f"{folder}: the model is code, {reference}: start the server with --allow_model_code "
            "if you trust it",
            Code.PERMISSION_DENIED,
        )
    return EagerModel(_called(_from_reference(reference)), manifest)


def _from_file(folder: str, name: str, allow_code: bool) -> Callable[..., Any]:
    try:
        path = inside(Path(folder), name)
    except EngineError as error:
        raise ServeError(str(error)) from error
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    model = keras.saving.load_model(path, compile=False, safe_mode=not allow_code)
    return _called(model)


def _called(model: Any) -> Callable[..., Any]:
    """Returns the model as a function; a Keras model is told that it is not in training."""
    if not hasattr(model, "compute_output_spec"):
        function: Callable[..., Any] = model
        return function
    return lambda feed: model(feed, training=False)


def _from_reference(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ServeError(f"{reference} cannot be imported: {error}", Code.NOT_FOUND) from error


def _infos(declared: list[Json]) -> dict[str, TensorInfo]:
    return {one["name"]: TensorInfo(one["dtype"], tuple(one["shape"])) for one in declared}
