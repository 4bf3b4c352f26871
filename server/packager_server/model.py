"""What the server knows of a loaded model, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from packager_server.codes import Code, ServeError

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

DEFAULT_SIGNATURE = "serving_default"
PREDICT_METHOD = "tensorflow/serving/predict"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"

# TensorFlow's own spelling, where it differs from NumPy's.
_DTYPE_TEXT = {"float32": "float", "float64": "double", "float16": "half"}


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a signature.

    Attributes:
        dtype: NumPy's name, `string`, or `bfloat16`.
        shape: Sizes with the batch axis, None where free; None when the rank is unknown.
        tensor: The tensor's name in the graph; empty without a graph.
    """

    dtype: str
    shape: tuple[int | None, ...] | None
    tensor: str = ""

    @property
    def dtype_text(self) -> str:
        """The dtype as TensorFlow Serving's messages write it."""
        return _DTYPE_TEXT.get(self.dtype, self.dtype)

    @property
    def free_batch(self) -> bool:
        """Whether examples can be stacked along the first axis."""
        return self.shape is None or (len(self.shape) > 0 and self.shape[0] is None)


@dataclass(frozen=True)
class Signature:
    """A named way to call a model: inputs and outputs by alias."""

    name: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    method: str = PREDICT_METHOD

    def check_inputs(self, names: Iterable[str]) -> None:
        """Raises `ServeError` unless `names` are exactly this signature's inputs."""
        sent, wanted = set(names), set(self.inputs)
        if sent != wanted:
            raise ServeError(
                f"input size does not match signature: {len(sent)}!={len(wanted)} "
                f"len({_braced(sent)}) != len({_braced(wanted)}). "
                f"Sent extra: {_braced(sent - wanted)}. "
                f"Missing but required: {_braced(wanted - sent)}."
            )

    def check_outputs(self, names: Iterable[str]) -> None:
        """Raises `ServeError` if an alias is unknown or asked for twice."""
        seen: set[str] = set()
        for name in names:
            if name not in self.outputs:
                raise ServeError(
                    f"output tensor alias not found in signature: {name} Outputs expected to be "
                    f"in the set {_braced(set(self.outputs))}."
                )
            if name in seen:
                raise ServeError(f"duplicate output tensor alias: {name}")
            seen.add(name)


class Model(Protocol):
    """A loaded model; every method may be called from several threads at once."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures that can be called, by name."""

    def run(self, signature: str, inputs: Tensors, outputs: tuple[str, ...]) -> Tensors:
        """Runs `signature` and returns the arrays named in `outputs`; strings are bytes objects.

        Raises:
            ServeError: The model refuses or fails on these inputs.
        """

    def metadata(self) -> dict[str, Any]:
        """Returns the signature map as proto3 JSON of `tensorflow.SignatureDef`, by name."""

    def close(self) -> None:
        """Frees what the model holds; no call follows."""


def find_signature(model: Model, name: str, *, method: str = "predict") -> Signature:
    """Returns a signature of `model`; an empty name means `serving_default`.

    Raises:
        ServeError: There is none of that name.
    """
    name = name or DEFAULT_SIGNATURE
    found = model.signatures.get(name)
    if found is not None:
        return found
    if method == "predict":
        raise ServeError(f'Serving signature name: "{name}" not found in signature def')
    raise ServeError(f"No signature was found with the name: {name}")


def signature_json(signature: Signature) -> dict[str, Any]:
    """Returns the `SignatureDef` of a signature that no graph describes, as proto3 JSON."""
    return {
        "inputs": {alias: _info_json(info) for alias, info in signature.inputs.items()},
        "outputs": {alias: _info_json(info) for alias, info in signature.outputs.items()},
        "method_name": signature.method,
        "defaults": {},
    }


def _info_json(info: TensorInfo) -> dict[str, Any]:
    dims = [{"size": str(-1 if n is None else n), "name": ""} for n in info.shape or ()]
    return {
        "dtype": f"DT_{info.dtype_text.upper()}",
        "tensor_shape": {"dim": dims, "unknown_rank": info.shape is None},
        "name": info.tensor,
    }


def _braced(names: set[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"


def unavailable(message: str) -> ServeError:
    """Returns the error of a server that has no room or is not ready."""
    return ServeError(message, Code.UNAVAILABLE)
