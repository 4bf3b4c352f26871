"""What the rules look at: the operators of a `.tflite` file with their tensors and attributes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager import tflite_file

Array = np.ndarray[Any, Any]
_DTYPES = {
    "float32": np.float32, "int8": np.int8, "uint8": np.uint8, "int16": np.int16,
    "int32": np.int32, "int64": np.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor.

    Attributes:
        index: Its number in the graph.
        dtype: Such as `int8`.
        shape: Its sizes.
        scales: Number of its scales: more than one is per channel, none is not quantized.
        zero_point: The integer that stands for 0.
        values: A constant's values; None for what is computed.
        is_state: It keeps its value between calls.
        is_free: An axis has no fixed size.
    """

    index: int
    dtype: str
    shape: tuple[int, ...]
    scales: int
    zero_point: int
    values: Array | None
    is_state: bool
    is_free: bool


@dataclass(frozen=True)
class Operator:
    """One operator; absent optional inputs are left out, `options` are its attributes."""

    index: int
    name: str
    version: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: dict[str, Any]
    output_name: str

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """What is read and written at run time, the layer's own state aside."""
        read = [t for t in self.inputs if t.values is None and not t.is_state]
        return (*read, *self.outputs)

    def constant(self, place: int) -> list[int] | None:
        """The integers of a constant input, or None where it is computed or absent."""
        if place >= len(self.inputs):
            return None
        values = self.inputs[place].values
        return None if values is None else [int(v) for v in values.reshape(-1)]


def read(model: Any) -> list[Operator]:
    """Lists the operators of the main graph."""
    graph = model.subgraphs[0]
    found = []
    for index, op in enumerate(graph.operators):
        code = model.operatorCodes[op.opcodeIndex]
        name = tflite_file.operator_name(code)
        if name == "CUSTOM":
            name = (code.customCode or b"?").decode()
        places = [int(i) for i in (op.inputs if op.inputs is not None else [])]
        outputs = [int(i) for i in (op.outputs if op.outputs is not None else [])]
        found.append(
            Operator(
                index=index,
                name=name,
                version=int(code.version),
                inputs=tuple(_tensor(model, graph, i) for i in places if i >= 0),
                outputs=tuple(_tensor(model, graph, i) for i in outputs),
                options=dict(vars(op.builtinOptions)) if op.builtinOptions is not None else {},
                output_name=(graph.tensors[outputs[0]].name or b"").decode() if outputs else "",
            )
        )
    return found


def _tensor(model: Any, graph: Any, index: int) -> Tensor:
    tensor = graph.tensors[index]
    dtype = tflite_file.DTYPES[tensor.type]
    shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
    signature = tensor.shapeSignature
    quantization = tensor.quantization
    scales = quantization.scale if quantization is not None else None
    zero_points = quantization.zeroPoint if quantization is not None else None
    return Tensor(
        index=index,
        dtype=dtype,
        shape=shape,
        scales=0 if scales is None else len(scales),
        zero_point=0 if zero_points is None or len(zero_points) == 0 else int(zero_points[0]),
        values=_values(model.buffers[tensor.buffer].data, dtype),
        is_state=bool(tensor.isVariable),
        is_free=signature is not None and any(int(n) < 0 for n in signature),
    )


def _values(data: Any, dtype: str) -> Array | None:
    if data is None or len(data) == 0:
        return None
    raw = np.asarray(data, np.uint8).tobytes()
    return np.frombuffer(raw, _DTYPES.get(dtype, np.uint8))


class Verdict(enum.StrEnum):
    """Whether an operator by itself can run on the Edge TPU."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Judgement:
    """What the rules say of one operator.

    Attributes:
        verdict: Whether it can be mapped.
        reason: Why not, or what is not known; empty for `yes`.
        source: Where that is documented or was seen.
        advice: What to change in the model.
    """

    verdict: Verdict
    reason: str
    source: str
    advice: str = ""
