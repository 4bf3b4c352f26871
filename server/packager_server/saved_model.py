"""Runs SavedModels of TensorFlow 1 and 2.

The first choice is a session with a prepared callable, as TensorFlow Serving itself runs models:
it costs a fifth of a signature call and, like TensorFlow Serving, checks no declared shape. It
needs a private method of `Session`; where that is missing, the public signature functions serve.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager_server.codes import Code, ServeError
from packager_server.model import (
    DEFAULT_SIGNATURE,
    Array,
    Model,
    Signature,
    TensorInfo,
    Tensors,
    signature_json,
)

INIT_OP = "__saved_model_init_op"
_PREPARE = "_make_callable_from_options"


@dataclass(frozen=True)
class LoadOptions:
    """How TensorFlow runs models.

    Attributes:
        tags: Which graph of the SavedModel.
        intra_op_threads: Threads inside one operator; 0 lets TensorFlow choose.
        inter_op_threads: Operators at the same time; 0 lets TensorFlow choose.
        gpu_memory_fraction: Share of the GPU's memory that is reserved; 0 lets TensorFlow choose.
        gpu_allow_growth: Take the GPU's memory as it is needed.
        signature_functions: Use the public signature functions, not sessions.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    gpu_memory_fraction: float = 0.0
    gpu_allow_growth: bool = False
    signature_functions: bool = False


def import_tensorflow() -> Any:
    """Returns the TensorFlow module, with its start-up messages turned off."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow


def load(folder: str | Path, options: LoadOptions | None = None) -> Model:
    """Loads the SavedModel in `folder`, a path that TensorFlow can read (`gs://` included).

    Raises:
        Exception: Whatever TensorFlow raises for a damaged or missing SavedModel; it answers
            with many unrelated types.
    """
    options = options or LoadOptions()
    tensorflow = import_tensorflow()
    session_type = tensorflow.compat.v1.Session
    if options.signature_functions or not hasattr(session_type, _PREPARE):
        return FunctionModel(tensorflow, str(folder))
    return SessionModel(tensorflow, str(folder), options)


class SessionModel:
    """A SavedModel in a session of its own, run by prepared callables."""

    def __init__(self, tensorflow: Any, folder: str, options: LoadOptions) -> None:
        v1 = tensorflow.compat.v1
        self._tf = tensorflow
        self._lock = threading.Lock()
        self._callables: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._session = v1.Session(graph=tensorflow.Graph(), config=_config(v1, options))
        try:
            with self._session.graph.as_default():
                loader = v1.saved_model.loader
                meta_graph = loader.load(self._session, list(options.tags), folder)
        except BaseException:
            self._session.close()
            raise
        self._defs = dict(meta_graph.signature_def)
        self._signatures = {
            name: _signature(tensorflow, name, definition)
            for name, definition in self._defs.items()
            if name != INIT_OP
        }

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The SavedModel's signatures by name."""
        return self._signatures

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...]) -> Tensors:
        """Runs a signature; only the operators themselves check shapes."""
        call = self._callables.get((signature, outputs)) or self._prepare(signature, outputs)
        with _model_errors(self._tf):
            values = call(*(inputs[name] for name in sorted(inputs)))
        return {name: _as_array(value) for name, value in zip(outputs, values, strict=True)}

    def _prepare(self, signature: str, outputs: tuple[str, ...]) -> Any:
        from tensorflow.core.protobuf import config_pb2

        spec = self._signatures[signature]
        wanted = config_pb2.CallableOptions()
        wanted.feed.extend(spec.inputs[name].tensor for name in sorted(spec.inputs))
        wanted.fetch.extend(spec.outputs[name].tensor for name in outputs)
        with self._lock, _model_errors(self._tf):
            return self._callables.setdefault(
                (signature, outputs), getattr(self._session, _PREPARE)(wanted)
            )

    def metadata(self) -> dict[str, Any]:
        """Returns the SavedModel's own signature definitions as proto3 JSON."""
        from google.protobuf import json_format

        return {
            name: json_format.MessageToDict(
                definition,
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=True,
            )
            for name, definition in self._defs.items()
        }

    def close(self) -> None:
        """Closes the session, which frees the model's variables."""
        self._callables.clear()
        self._session.close()


def _as_array(value: Any) -> Array:
    """Returns an output as an array: of a scalar the session gives the bare value."""
    if not isinstance(value, bytes):
        return np.asarray(value)
    # NumPy's own string type would drop zero bytes at the end.
    found: Array = np.empty((), object)
    found[()] = value
    return found


class FunctionModel:
    """A SavedModel run by the public functions of `tf.saved_model.load`."""

    def __init__(self, tensorflow: Any, folder: str) -> None:
        self._tf = tensorflow
        # A signature refers weakly to the variables; the model owns them.
        self._model = tensorflow.saved_model.load(folder)
        self._functions = dict(self._model.signatures)
        self._signatures = {
            name: _function_signature(name, function) for name, function in self._functions.items()
        }

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The SavedModel's signatures by name."""
        return self._signatures

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...]) -> Tensors:
        """Runs a signature; TensorFlow compares shapes and dtypes with the declared ones."""
        with _model_errors(self._tf):
            feed = {name: self._tf.constant(value) for name, value in inputs.items()}
            found = self._functions[signature](**feed)
            return {name: _as_array(found[name].numpy()) for name in outputs}

    def metadata(self) -> dict[str, Any]:
        """Returns signature definitions made from the functions, as proto3 JSON."""
        return {name: signature_json(one) for name, one in self._signatures.items()}

    def close(self) -> None:
        """Drops the functions and the model."""
        self._functions.clear()
        self._model = None


def _config(v1: Any, options: LoadOptions) -> Any:
    config = v1.ConfigProto(
        intra_op_parallelism_threads=options.intra_op_threads,
        inter_op_parallelism_threads=options.inter_op_threads,
        allow_soft_placement=True,
    )
    config.gpu_options.per_process_gpu_memory_fraction = options.gpu_memory_fraction
    config.gpu_options.allow_growth = options.gpu_allow_growth
    return config


def _signature(tensorflow: Any, name: str, definition: Any) -> Signature:
    return Signature(
        name=name or DEFAULT_SIGNATURE,
        inputs=_infos(tensorflow, definition.inputs),
        outputs=_infos(tensorflow, definition.outputs),
        method=definition.method_name,
    )


def _infos(tensorflow: Any, tensors: Mapping[str, Any]) -> dict[str, TensorInfo]:
    found = {}
    for alias, info in sorted(tensors.items()):
        shape = info.tensor_shape
        sizes = (
            None
            if shape.unknown_rank
            else tuple(d.size if d.size >= 0 else None for d in shape.dim)
        )
        found[alias] = TensorInfo(tensorflow.as_dtype(info.dtype).name, sizes, info.name)
    return found


def _function_signature(name: str, function: Any) -> Signature:
    def infos(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
        return {
            alias: TensorInfo(
                spec.dtype.name,
                None if spec.shape.rank is None else tuple(spec.shape.as_list()),
                getattr(spec, "name", "") or "",
            )
            for alias, spec in sorted(specs.items())
        }

    _, keywords = function.structured_input_signature
    return Signature(name, infos(keywords), infos(function.structured_outputs))


@contextlib.contextmanager
def _model_errors(tensorflow: Any) -> Iterator[None]:
    """Turns TensorFlow's errors into `ServeError` with the same code."""
    try:
        yield
    except tensorflow.errors.OpError as error:
        raise ServeError(error.message, Code(error.error_code)) from error
    except (TypeError, ValueError) as error:
        raise ServeError(str(error)) from error
