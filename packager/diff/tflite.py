"""Reads a `.tflite` file for comparison; without TensorFlow, with ai-edge-litert's schema."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from packager.diff.contents import Array, ModelFile, Operator, Tensor
from packager.errors import BundleError, EnvironmentLacks
from packager.tflite_names import layer_of, plain


def read(path: Path) -> ModelFile:
    """Reads tensors, operators and the card.

    Raises:
        BundleError: It is no `.tflite` file.
        EnvironmentLacks: ai-edge-litert is missing.
    """
    try:
        from packager import tflite_file
    except ImportError as error:
        raise EnvironmentLacks(
            f"{error.name} is missing, which reads .tflite files",
            hint="pip install 'packager[edge]'",
        ) from error
    content = path.read_bytes()
    # The schema's classes accept any bytes and fail in many ways.
    if content[4:8] != b"TFL3":
        raise BundleError(f"{path} is not a .tflite file: it does not begin as one")
    try:
        model = tflite_file.read(path)
        card, card_bytes = _card(model, tflite_file.CARD_NAME, tflite_file.CARD_MAGIC)
        tensors, operators = _graphs(model, tflite_file)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise BundleError(
            f"{path} is damaged: {type(error).__name__} while its FlatBuffers were read",
            hint="copy it again; `packager verify BUNDLE` names files that changed",
        ) from error
    return ModelFile(len(content) - card_bytes, tensors, operators, card)


def _graphs(model: Any, tflite_file: Any) -> tuple[dict[str, Tensor], dict[str, Operator]]:
    tensors: dict[str, Tensor] = {}
    operators: dict[str, Operator] = {}
    for number, graph in enumerate(model.subgraphs):
        prefix = "" if number == 0 else f"subgraph {number}: "
        names = [plain((t.name or b"").decode()) for t in graph.tensors]
        readers = _readers(graph, names)
        for index, tensor in enumerate(graph.tensors):
            name = prefix + (names[index] or f"tensor {index}")
            tensors[_free(name, tensors)] = _tensor(
                model, tensor, layer_of(readers.get(index, names[index])), tflite_file
            )
        for op in graph.operators:
            name = prefix + names[op.outputs[0]] if len(op.outputs) else prefix
            operators[_free(name, operators)] = _operator(model, op, tflite_file)
    return tensors, operators


def _readers(graph: Any, names: list[str]) -> dict[int, str]:
    """For constants whose own name tells no layer, the name of the operator that reads them."""
    found: dict[int, str] = {}
    for op in graph.operators:
        for index in op.inputs if op.inputs is not None else ():
            if index >= 0 and "/" not in names[index] and len(op.outputs):
                found.setdefault(int(index), names[op.outputs[0]])
    return found


def _tensor(model: Any, tensor: Any, layer: str, tflite_file: Any) -> Tensor:
    dtype = tflite_file.DTYPES[tensor.type]
    shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
    parameters = tensor.quantization
    quantization = {}
    if parameters is not None and parameters.scale is not None and len(parameters.scale):
        zeros = parameters.zeroPoint if parameters.zeroPoint is not None else [0]
        quantization = {
            "scale": [float(s) for s in parameters.scale],
            "zero_point": [int(z) for z in zeros],
            "axis": int(parameters.quantizedDimension),
        }
    data = model.buffers[tensor.buffer].data
    return Tensor(layer, dtype, shape, quantization, None if data is None else _values(data, dtype))


def _values(data: Any, dtype: str) -> Array:
    content = np.asarray(data, np.uint8).tobytes()
    known = dtype in ("float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8")
    return np.frombuffer(content, dtype if known else np.uint8)


def _operator(model: Any, op: Any, tflite_file: Any) -> Operator:
    code = model.operatorCodes[op.opcodeIndex]
    options = vars(op.builtinOptions) if op.builtinOptions is not None else {}
    attributes = {key: _plain_value(value) for key, value in options.items()}
    return Operator(tflite_file.operator_name(code), attributes)


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(vars(value))


def _free(name: str, taken: dict[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    return free


def _card(model: Any, card_name: bytes, magic: bytes) -> tuple[dict[str, Any] | None, int]:
    for entry in model.metadata or []:
        if entry.name == card_name:
            data = np.asarray(model.buffers[entry.buffer].data, np.uint8).tobytes()
            start = len(magic) + 4
            (length,) = struct.unpack("<I", data[len(magic) : start])
            return json.loads(data[start : start + length]), len(data)
    return None, 0
