"""Operator versions that TensorFlow Lite requires for quantized tensor types.

An interpreter refuses an operator version that it does not know. A quantizer that leaves every
operator at version 1 defeats that check: an older interpreter then accepts a kernel form that it
does not have and computes wrong numbers without an error. The numbers here are those that
TensorFlow's own converter assigns (`GetBuiltinOperatorVersion` in
`tensorflow/lite/tools/versioning/op_version.cc`), for the types that quantization introduces;
what depends on other things (dilation, rank) is already right in the float file.
"""

from __future__ import annotations

from typing import Any

from ai_edge_litert import schema_py_generated as schema

_FLOAT32 = schema.TensorType.FLOAT32
_FLOAT16 = schema.TensorType.FLOAT16
_INT16 = schema.TensorType.INT16
_INT8 = schema.TensorType.INT8

# Version by the type of the tensor that decides: (int8, int16). 1 where the type needs nothing.
_BY_TYPE: dict[str, tuple[int, int]] = {
    "ABS": (2, 3),
    "ADD": (2, 3),
    "ARG_MAX": (2, 1),
    "ARG_MIN": (2, 1),
    "AVERAGE_POOL_2D": (2, 3),
    "BATCH_MATMUL": (2, 3),
    "BATCH_TO_SPACE_ND": (2, 4),
    "CONCATENATION": (2, 3),
    "DEPTH_TO_SPACE": (2, 1),
    "EQUAL": (2, 4),
    "FLOOR_DIV": (3, 3),
    "FLOOR_MOD": (2, 2),
    "GATHER": (2, 4),
    "GATHER_ND": (1, 3),
    "GREATER": (2, 1),
    "GREATER_EQUAL": (2, 3),
    "L2_NORMALIZATION": (2, 1),
    "LEAKY_RELU": (1, 2),
    "LESS": (2, 3),
    "LESS_EQUAL": (2, 1),
    "LOGISTIC": (2, 3),
    "LOG_SOFTMAX": (2, 1),
    "MAXIMUM": (2, 4),
    "MAX_POOL_2D": (2, 3),
    "MEAN": (2, 3),
    "MINIMUM": (2, 4),
    "MIRROR_PAD": (2, 3),
    "MUL": (2, 4),
    "NOT_EQUAL": (2, 1),
    "PACK": (2, 3),
    "PAD": (2, 3),
    "PADV2": (2, 3),
    "REDUCE_MAX": (2, 3),
    "REDUCE_MIN": (2, 3),
    "RELU": (2, 3),
    "RELU6": (2, 3),
    "RESIZE_BILINEAR": (2, 4),
    "RESIZE_NEAREST_NEIGHBOR": (2, 4),
    "REVERSE_V2": (3, 1),
    "RSQRT": (2, 3),
    "SELECT": (2, 1),
    "SLICE": (2, 4),
    "SOFTMAX": (2, 3),
    "SPACE_TO_BATCH_ND": (2, 4),
    "SPACE_TO_DEPTH": (2, 1),
    "SPLIT": (2, 4),
    "STRIDED_SLICE": (2, 1),
    "SUB": (2, 5),
    "SUM": (2, 1),
    "TANH": (2, 3),
    "TILE": (3, 1),
    "TRANSPOSE": (2, 5),
    "UNPACK": (2, 4),
}
# SPLIT's first input is the axis.
_DECIDING_INPUT = {"SPLIT": 1}


# The version that each operator needs for int8, at most; those that depend on attributes included.
INT8_VERSIONS = {
    **{name: versions[0] for name, versions in _BY_TYPE.items()},
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "TRANSPOSE_CONV": 3,
    "QUANTIZE": 1,
    "MUL": 3,
}


def required(name: str, op: Any, tensors: tuple[list[Any], list[Any]]) -> int:
    """Returns the version that an operator needs at least.

    Args:
        name: The operator's name in the schema, such as `CONV_2D`.
        op: The operator (`OperatorT`).
        tensors: Its input and output tensors (`TensorT`), None where one is absent.
    """
    inputs, outputs = tensors
    special = _SPECIAL.get(name)
    if special is not None:
        return special(op, inputs, outputs)
    if name not in _BY_TYPE or not inputs:
        return 1
    tensor = inputs[_DECIDING_INPUT.get(name, 0)]
    int8, int16 = _BY_TYPE[name]
    return {_INT8: int8, _INT16: int16}.get(tensor.type if tensor is not None else -1, 1)


def _is_hybrid(inputs: list[Any]) -> bool:
    return bool(inputs[0].type == _FLOAT32 and inputs[1].type == _INT8)


def _is_int8(inputs: list[Any]) -> bool:
    return bool(inputs[0].type == _INT8 and inputs[1].type == _INT8)


def _is_per_channel(tensor: Any) -> bool:
    parameters = tensor.quantization
    scale = parameters.scale if parameters is not None else None
    return scale is not None and len(scale) > 1


def _is_int16x8_with_bias_type(op: Any, inputs: list[Any]) -> bool:
    bias_type = getattr(op.builtinOptions, "quantizedBiasType", 0)
    return bool(inputs[0].type == _INT16 and inputs[1].type == _INT8 and bias_type)


def _conv_2d(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    if _is_int16x8_with_bias_type(op, inputs):
        return 8
    if _is_int8(inputs):
        return 3
    if _is_hybrid(inputs):
        return 5 if _is_per_channel(inputs[1]) else 2
    return 1


def _depthwise(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    if _is_int8(inputs):
        return 3
    if _is_hybrid(inputs):
        return 6 if _is_per_channel(inputs[1]) else 4
    return 1


def _fully_connected(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    if _is_hybrid(inputs):
        if _is_per_channel(inputs[1]):
            return 12
        return 9 if op.builtinOptions.asymmetricQuantizeInputs else 3
    if _is_int16x8_with_bias_type(op, inputs):
        return 11
    if len(inputs) == 2 or inputs[2] is None:
        return 6
    if op.builtinOptions.keepNumDims:
        return 5
    return 4 if _is_int8(inputs) else 1


def _transpose_conv(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    # Its second input is the filter, its third the image.
    if op.builtinOptions.fusedActivationFunction:
        return 4
    if len(inputs) == 4 and inputs[3] is not None:
        return 3
    return 2 if inputs[1].type == _INT8 else 1


def _quantize(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    if _is_per_channel(outputs[0]):
        return 3
    return 2 if outputs[0].type == _INT16 else 1


def _dequantize(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    if inputs[0].type in (_INT16, _FLOAT16):
        return 3
    if inputs[0].type == _INT8:
        return 5 if _is_per_channel(inputs[0]) else 2
    return 1


def _mul(op: Any, inputs: list[Any], outputs: list[Any]) -> int:
    version = {_INT8: 2, _INT16: 4}.get(inputs[0].type, 1)
    if version == 2 and all(_scale(t) for t in (*inputs, *outputs)):
        rescale = _scale(inputs[0]) * _scale(inputs[1]) / _scale(outputs[0])
        return 3 if rescale >= 1.0 else 2
    return version


def _scale(tensor: Any) -> float:
    parameters = tensor.quantization
    scale = parameters.scale if parameters is not None else None
    return float(scale[0]) if scale is not None and len(scale) else 0.0


_SPECIAL = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
    "TRANSPOSE_CONV": _transpose_conv,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "MUL": _mul,
}
