"""Reads, completes and checks `.tflite` files (FlatBuffers schema of TensorFlow Lite).

Runs in the LiteRT child process. The object classes are `ai_edge_litert`'s generated ones.
"""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from packager import op_versions
from packager.bundle import ArtifactTensor
from packager.errors import BundleError, ConversionError
from packager.runtime_versions import OpUse, min_versions

CARD_NAME = b"PACKAGER_CARD"
CARD_MAGIC = CARD_NAME + b"\0"
SIGNATURE = b"serving_default"

Model = Any
Op = Any

DTYPES = {
    getattr(schema.TensorType, name): name.lower()
    for name in vars(schema.TensorType)
    if not name.startswith("_")
}
_OPS = {
    value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")
}
_FLOATS = ("float32", "float16", "float64", "bfloat16")
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")


@dataclass(frozen=True)
class Description:
    """What a `.tflite` file holds.

    Attributes:
        io: Its inputs and outputs, by signature name.
        ops: Operator names with their counts.
        integer_op_share: Share (0..1) of the operators, QUANTIZE and DEQUANTIZE aside, whose
            activations are all integers.
        float_ops: Names of the operators with float activations, each once.
        hybrid_ops: Names of the operators with float activations and int8 weights.
        float16_weights: Whether a tensor is stored in float16.
        flex_ops: Operators that need TensorFlow's own runtime, and other custom ones.
        min_version: The oldest version of each interpreter package that runs it right.
        problems: What makes the file unfit: dynamic shapes, scales that are zero or not finite.
    """

    io: tuple[ArtifactTensor, ...]
    ops: dict[str, int]
    integer_op_share: float
    float_ops: tuple[str, ...]
    hybrid_ops: tuple[str, ...]
    float16_weights: bool
    flex_ops: tuple[str, ...]
    min_version: dict[str, str]
    problems: tuple[str, ...]


def read(path: Path) -> Model:
    """Reads a file into the schema's object tree.

    The tree's arrays are views of the bytes, so the file itself may be overwritten later.

    Raises:
        BundleError: It is no TFLite file, or damaged.
    """
    try:
        return read_bytes(path.read_bytes())
    except BundleError as error:
        raise BundleError(f"{path} {error.message}", hint=error.hint) from None


def read_bytes(content: bytes) -> Model:
    """As `read`, of a file's content.

    Raises:
        BundleError: It is no TFLite file, or damaged.
    """
    try:
        model = flatbuffer_utils.read_model_from_bytearray(content)
    except Exception as error:  # whatever a wrong offset leads to
        raise BundleError(
            f"is damaged, or no TFLite file ({error})", hint="copy it again, or build it again"
        ) from None
    for buffer in model.buffers:
        # Buffers outside the tables come as bytes, which the packer would copy one by one.
        if isinstance(buffer.data, bytes):
            buffer.data = np.frombuffer(buffer.data, np.uint8)
    return model


def completed(content: bytes) -> Model:
    """Reads what litert-quantizer wrote and completes it: unused outputs, operator versions."""
    model = read_bytes(content)
    settle_unused_outputs(model)
    raise_versions(model)
    return model


def write(model: Model, path: Path) -> None:
    """Writes an object tree; the 2 GB limit of the format raises ConversionError."""
    try:
        content = to_bytes(model)
    except Exception as error:
        raise ConversionError(f"{path.name} cannot be serialised: {error}") from error
    path.write_bytes(content)


def to_bytes(model: Model) -> bytes:
    """The content of a file."""
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def name_ends(model: Model, inputs: list[str], outputs: list[str]) -> None:
    """Gives the main graph's ends their names, as tensors and as signature.

    Args:
        model: The object tree, changed in place.
        inputs: One name per input, in the graph's order.
        outputs: One name per output, in the graph's order.
    """
    graph = model.subgraphs[0]
    signature = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE
    signature.subgraphIndex = 0
    for field, names, indices in (
        ("inputs", inputs, graph.inputs),
        ("outputs", outputs, graph.outputs),
    ):
        if len(names) != len(indices):
            raise ConversionError(
                f"the converted graph has {len(indices)} {field}, the model has {len(names)}"
            )
        setattr(signature, field, [_tensor_map(n, i) for n, i in zip(names, indices, strict=True)])
    _rename_tensors(graph, inputs, outputs)
    model.signatureDefs = [signature]


def make_ends_uint8(model: Model) -> None:
    """Gives int8 ends the type uint8: one QUANTIZE at each, which adds 128 and loses nothing."""
    graph = model.subgraphs[0]
    model.operatorCodes.append(_operator_code(schema.BuiltinOperator.QUANTIZE, None, 1))
    code = len(model.operatorCodes) - 1
    for ends, maps, is_input in (
        (graph.inputs, model.signatureDefs[0].inputs, True),
        (graph.outputs, model.signatureDefs[0].outputs, False),
    ):
        for place, inner in enumerate(map(int, ends)):
            if graph.tensors[inner].type != schema.TensorType.INT8:
                continue
            outer = _as_uint8(graph, inner)
            op = schema.OperatorT()
            op.opcodeIndex = code
            op.inputs, op.outputs = ([outer], [inner]) if is_input else ([inner], [outer])
            graph.operators.insert(0 if is_input else len(graph.operators), op)
            ends[place] = outer
            for entry in maps:
                entry.tensorIndex = outer if entry.tensorIndex == inner else entry.tensorIndex


def _as_uint8(graph: Any, inner: int) -> int:
    """Adds the uint8 twin of an int8 tensor, which takes its name; returns its number."""
    tensor = copy.deepcopy(graph.tensors[inner])
    tensor.type, tensor.buffer = schema.TensorType.UINT8, 0
    tensor.quantization.zeroPoint = [int(z) + 128 for z in tensor.quantization.zeroPoint]
    graph.tensors[inner].name += b"/int8"
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def embed_card(model: Model, card: dict[str, Any]) -> None:
    """Stores the card as a metadata buffer (docs/bundle.md, The card), replacing an older one."""
    text = json.dumps(card, ensure_ascii=False, separators=(",", ":")).encode()
    content = CARD_MAGIC + struct.pack("<I", len(text)) + text
    for entry in model.metadata or []:
        if entry.name == CARD_NAME:
            model.buffers[entry.buffer].data = list(content)
            return
    buffer = schema.BufferT()
    buffer.data = list(content)
    model.buffers.append(buffer)
    entry = schema.MetadataT()
    entry.name = CARD_NAME
    entry.buffer = len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]


def raise_versions(model: Model) -> None:
    """Raises operator versions to what their tensor types require (see `op_versions`)."""
    codes: dict[tuple[int, bytes | None, int], int] = {}
    new_codes: list[Any] = []
    for graph in model.subgraphs:
        for op in graph.operators:
            code = model.operatorCodes[op.opcodeIndex]
            required = op_versions.required(operator_name(code), op, _tensors(graph, op))
            key = (_builtin(code), code.customCode, max(code.version, required))
            if key not in codes:
                codes[key] = len(new_codes)
                new_codes.append(_operator_code(*key))
            op.opcodeIndex = codes[key]
    model.operatorCodes = new_codes


def settle_unused_outputs(model: Model) -> None:
    """Gives outputs that nobody reads the type of the others of the same operator.

    litert-quantizer 0.11 leaves them float, as the forget gate of an unrolled LSTM's first step;
    XNNPACK refuses a SPLIT with outputs of two types.
    """
    for graph in model.subgraphs:
        read = {int(i) for op in graph.operators for i in op.inputs} | {*map(int, graph.outputs)}
        for op in graph.operators:
            used = [graph.tensors[i] for i in op.outputs if int(i) in read]
            for tensor in (graph.tensors[i] for i in op.outputs if int(i) not in read):
                if used and _quantization(used[0])[0] and DTYPES[tensor.type] in _FLOATS:
                    tensor.type, tensor.quantization = used[0].type, used[0].quantization


def describe(model: Model) -> Description:
    """Describes and checks a file; see `Description`."""
    ops: dict[str, int] = {}
    kinds: dict[str, list[str]] = {"integer": [], "float": [], "hybrid": []}
    flex = []
    for graph, op, name in _operators(model):
        ops[name] = ops.get(name, 0) + 1
        if name == "CUSTOM":
            flex.append((model.operatorCodes[op.opcodeIndex].customCode or b"?").decode())
        if name not in _CONVERSIONS:
            kinds[_kind(model, graph, op)].append(name)
    total = sum(len(names) for names in kinds.values())
    return Description(
        io=tuple(_ends(model)),
        ops=dict(sorted(ops.items())),
        integer_op_share=len(kinds["integer"]) / total if total else 0.0,
        float_ops=tuple(sorted(set(kinds["float"] + kinds["hybrid"]))),
        hybrid_ops=tuple(sorted(set(kinds["hybrid"]))),
        float16_weights=any(
            DTYPES[tensor.type] == "float16"
            for graph in model.subgraphs
            for tensor in graph.tensors
        ),
        flex_ops=tuple(sorted(set(flex))),
        min_version=min_versions(_uses(model)),
        problems=tuple(_problems(model)),
    )


def has_infinite_weights(model: Model) -> bool:
    """Whether a stored float16 tensor holds a value that is not finite."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            data = model.buffers[tensor.buffer].data
            if DTYPES[tensor.type] == "float16" and data is not None:
                values = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float16)
                if not np.isfinite(values).all():
                    return True
    return False


def _operators(model: Model) -> Iterator[tuple[Any, Op, str]]:
    for graph in model.subgraphs:
        for op in graph.operators:
            yield graph, op, operator_name(model.operatorCodes[op.opcodeIndex])


def _uses(model: Model) -> Iterator[OpUse]:
    for graph, op, name in _operators(model):
        inputs, outputs = ([t for t in side if t is not None] for side in _tensors(graph, op))
        dtype = DTYPES[outputs[0].type] if outputs else ""
        if name == "QUANTIZE" and DTYPES[inputs[0].type] not in _FLOATS:
            dtype = f"{DTYPES[inputs[0].type]} to {dtype}"
        yield name, model.operatorCodes[op.opcodeIndex].version, dtype


def _kind(model: Model, graph: Any, op: Op) -> str:
    """Tells whether an operator computes on integers, floats, or floats with int8 weights."""
    activations: list[str] = []
    constants: list[str] = []
    for tensor in _tensors(graph, op)[0]:
        if tensor is not None:
            is_constant = model.buffers[tensor.buffer].data is not None
            (constants if is_constant else activations).append(DTYPES[tensor.type])
    activations += [DTYPES[t.type] for t in _tensors(graph, op)[1] if t is not None]
    if not any(dtype in _FLOATS for dtype in activations):
        return "integer"
    return "hybrid" if "int8" in constants else "float"


def _tensors(graph: Any, op: Op) -> tuple[list[Any], list[Any]]:
    """An operator's input and output tensors; None where an optional one is absent (-1)."""

    def look_up(indices: Any) -> list[Any]:
        found = [] if indices is None else list(indices)
        return [graph.tensors[i] if i >= 0 else None for i in found]

    return look_up(op.inputs), look_up(op.outputs)


def _ends(model: Model) -> Iterator[ArtifactTensor]:
    graph = model.subgraphs[0]
    signature = model.signatureDefs[0] if model.signatureDefs else None
    for role, indices in (("input", graph.inputs), ("output", graph.outputs)):
        names = {}
        if signature is not None:
            maps = signature.inputs if role == "input" else signature.outputs
            names = {m.tensorIndex: m.name.decode() for m in maps}
        for index in indices:
            tensor = graph.tensors[index]
            scale, zero_point = _quantization(tensor)
            yield ArtifactTensor(
                role=role,
                name=names.get(index, tensor.name.decode()),
                dtype=DTYPES[tensor.type],
                shape=tuple(int(n) for n in tensor.shape if n is not None),
                scale=tuple(scale),
                zero_point=tuple(zero_point),
            )


def _quantization(tensor: Any) -> tuple[list[float], list[int]]:
    parameters = tensor.quantization
    if parameters is None or parameters.scale is None or len(parameters.scale) == 0:
        return [], []
    zero_point = parameters.zeroPoint if parameters.zeroPoint is not None else [0]
    return [float(s) for s in parameters.scale], [int(z) for z in zero_point]


def _problems(model: Model) -> Iterator[str]:
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            name = (tensor.name or b"?").decode()
            signature = tensor.shapeSignature
            # Only the main graph: the bodies of loops hold lists that grow.
            is_main = graph is model.subgraphs[0]
            if is_main and signature is not None and any(n < 0 for n in signature):
                yield f"tensor {name} has a shape that is not fixed: {list(signature)}"
            bad = [s for s in _quantization(tensor)[0] if not math.isfinite(s) or s <= 0]
            if bad:
                yield f"tensor {name} has the quantization scale {bad[0]}"


def _tensor_map(name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name = name.encode()
    entry.tensorIndex = int(index)
    return entry


def _rename_tensors(graph: Any, inputs: list[str], outputs: list[str]) -> None:
    """Names the end tensors; another tensor of that name, as quantizers match by name, moves."""
    ends = dict(zip([*graph.inputs, *graph.outputs], [*inputs, *outputs], strict=True))
    wanted = {name.encode() for name in ends.values()}
    for index, tensor in enumerate(graph.tensors):
        if index not in ends and tensor.name in wanted:
            tensor.name += b"/inner"
    for index, name in ends.items():
        graph.tensors[index].name = name.encode()


def _builtin(code: Any) -> int:
    # Codes below 127 were once a byte of their own (`deprecatedBuiltinCode`); the larger counts.
    return int(max(code.builtinCode, code.deprecatedBuiltinCode))


def operator_name(code: Any) -> str:
    """The name of an entry of `operatorCodes`, such as `CONV_2D`."""
    name: str = _OPS[_builtin(code)]
    return name


def _operator_code(builtin: int, custom: bytes | None, version: int) -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode = builtin
    code.deprecatedBuiltinCode = min(builtin, 127)
    code.customCode = custom
    code.version = version
    return code
