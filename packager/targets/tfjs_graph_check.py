"""Tells what of a graph TF.js cannot run, or would compute differently.

`tfjs_ops.json` says which operators TF.js implements and which of their attributes it reads;
`tfjs_ops.mjs` makes it from the vendored TF.js. An attribute that TF.js does not read must have the
value that TF.js assumes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packager.errors import UnsupportedError
from packager.targets.graph_ir import Graph, Node

# Written by fusing, whose attributes TF.js reads as they are written.
_OURS = ("FusedDepthwiseConv2dNative", "_FusedConv2D", "_FusedMatMul", "Const", "Placeholder")
# Attributes that do not change numbers, and one whose neutral value is not TensorFlow's default.
_HARMLESS = {
    "T", "container", "exponential_avg_factor", "grad_a", "grad_b", "grad_x", "grad_y",
    "incompatible_shape_error", "output_shapes", "parallel_iterations", "seed2",
    "use_cudnn_on_gpu", "validate_indices",
}  # fmt: skip
_NEUTRAL = {"is_training": False}
# TF.js implements them, but not as TensorFlow does.
_DIFFERENT = {
    "BitwiseAnd": "TF.js does not find its inputs",
    "FakeQuantWithMinMaxVars": "TF.js skips it, so that a model trained for quantization changes",
    "Mod": "TF.js rounds the quotient down, TensorFlow towards zero",
    "Multinomial": "it draws other random numbers in each run",
    "RandomStandardNormal": "it draws other random numbers in each run",
    "RandomUniform": "it draws other random numbers in each run",
    "RandomUniformInt": "it draws other random numbers in each run",
    "ShapeN": "TF.js gives floats where TensorFlow gives integers",
    "TruncatedNormal": "it draws other random numbers in each run",
}
_INTEGER_DIFFERENT = {
    "BatchMatMulV2": "TF.js' wasm back end multiplies float32 only",
    "DepthToSpace": "TF.js has it for float32 only",
    "Div": "TF.js rounds quotients of integers down, TensorFlow towards zero",
    "EuclideanNorm": "TF.js has it for float32 only",
    "MatMul": "TF.js' wasm back end multiplies float32 only",
    "Mean": "TF.js gives floats for the mean of integers",
}
_SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
_INTEGERS = (*_SMALL_INTEGERS, "int32", "int64")
# Where integers of few bits keep their values, so that TF.js may hold them as int32.
_MOVES = (
    "Cast", "ConcatV2", "Const", "ExpandDims", "GatherV2", "Identity", "Pack", "Pad", "Placeholder",
    "Reshape", "ReverseV2", "Shape", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice", "Tile",
    "Transpose", "Unpack",
)  # fmt: skip
# What writes into a list of tensors, maybe, and what only reads it.
_WRITES = (
    "StatelessIf", "StatelessWhile", "TensorListPopBack", "TensorListPushBack", "TensorListSetItem",
)  # fmt: skip
_READS = (
    "TensorListConcat", "TensorListConcatV2", "TensorListGather", "TensorListGetItem",
    "TensorListLength", "TensorListStack",
)  # fmt: skip
_VARIANT = 21  # DT_VARIANT
_HINT = "replace the layer that uses it; the SavedModel keeps it: --only saved_model --only tflite"
_MOST_REASONS = 5


@functools.cache
def implemented() -> dict[str, Any]:
    """Returns `tfjs_ops.json`: the version of TF.js, and attributes by operator."""
    path = Path(__file__).with_name("tfjs_ops.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def check(graph: Graph) -> None:
    """Refuses what TF.js cannot run exactly.

    Raises:
        UnsupportedError: Names the operators, where they are, and why.
    """
    reasons = list(dict.fromkeys(reasons_against(graph)))
    if reasons:
        more = len(reasons) - _MOST_REASONS
        shown = reasons[:_MOST_REASONS] + ([f"and {more} more"] if more > 0 else [])
        raise UnsupportedError(
            "the model has no exact TF.js graph form:\n  " + "\n  ".join(shown), hint=_HINT
        )


def reasons_against(graph: Graph) -> Iterator[str]:
    """Yields one sentence per operator that TF.js lacks or computes differently."""
    for body in graph.bodies():
        for node in body.nodes.values():
            reason = _reason(body, node) or _shared_list(body, node)
            if reason:
                yield f"operator {node.op} ({node.name}): {reason}"


def _shared_list(body: Graph, node: Node) -> str:
    """A list of tensors that one user changes while another still needs it as it was."""
    for ref in node.inputs if node.op in _WRITES else ():
        if body.uses()[ref] > 1 and _is_list(body.nodes[ref[0]], ref[1]):
            return f"it changes the list of tensors {ref[0]!r}, which is used elsewhere, too"
    return ""


def _is_list(node: Node, output: int) -> bool:
    types = [node.attrs[key] for key in ("T", "Tout", "dtype") if key in node.attrs]
    if node.op.startswith(("TensorList", "EmptyTensorList")):
        return node.op not in _READS
    for each in types:
        listed = list(each.list.type) or [each.type]
        if listed[min(output, len(listed) - 1)] == _VARIANT:
            return True
    return False


def _reason(body: Graph, node: Node) -> str:
    known = implemented()
    if node.op not in known["operators"]:
        return f"TF.js {known['tfjs']} has no such operator"
    if node.op in _DIFFERENT:
        return _DIFFERENT[node.op]
    rule = _RULES.get(node.op)
    return _ignored_attribute(node) or _types(node) or (rule(body, node) if rule else "")


def _ignored_attribute(node: Node) -> str:
    """An attribute that TF.js does not read and that has another value than TF.js assumes."""
    from tensorflow.python.framework import op_def_registry

    definition = None if node.op in _OURS else op_def_registry.get(node.op)
    if definition is None:
        return ""
    read = implemented()["operators"][node.op]
    for attribute in definition.attr:
        name = attribute.name
        is_type = attribute.type in ("type", "list(type)")
        if name in read or name in _HARMLESS or is_type or name not in node.attrs:
            continue
        if not attribute.HasField("default_value"):
            continue  # a count of inputs or outputs
        value = _plain(node.attrs[name])
        if value != _NEUTRAL.get(name, _plain(attribute.default_value)):
            return f"TF.js does not read its attribute {name}, here {value}"
    return ""


def _plain(value: Any) -> Any:
    """An attribute's value as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return [*value.list.i, *value.list.s, *value.list.f, *value.list.b]
    found = getattr(value, kind)
    return found.decode(errors="replace") if isinstance(found, bytes) else found


def types_of(node: Node) -> dict[str, str]:
    """The data types among a node's attributes, by attribute."""
    import tensorflow as tf

    return {
        key: tf.dtypes.as_dtype(value.type).name
        for key, value in node.attrs.items()
        if value.WhichOneof("value") == "type" and value.type
    }


def _types(node: Node) -> str:
    types = types_of(node)
    if node.op == "Cast" and types["DstT"] in _SMALL_INTEGERS:
        return f"TF.js has no {types['DstT']}, whose values wrap around"
    if node.op in _INTEGER_DIFFERENT and types.get("T") in (*_INTEGERS, "bool"):
        return _INTEGER_DIFFERENT[node.op]
    for name in types.values():
        if name in _SMALL_INTEGERS and node.op not in _MOVES:
            return f"TF.js computes in int32, where {name} would overflow differently"
        if name == "complex128" or name.startswith(("q", "float8", "int4", "uint4")):
            return f"TF.js has no {name}"
    return ""


def _not_finite(node: Node) -> str:
    values = np.asarray(node.value)
    if values.dtype.kind in "fc" and np.isnan(values).any():
        return f"the constant holds {np.count_nonzero(np.isnan(values))} values that are NaN"
    return ""


def _convolution(body: Graph, node: Node) -> str:
    shape, weights = body.shape(node.inputs[0]), body.shape(node.inputs[1])
    if node.attrs["data_format"].s not in (b"NHWC", b""):
        return "TF.js' fast back ends have channels last only"
    if shape and weights and None not in (shape[-1], weights[2]) and shape[-1] != weights[2]:
        return "it has groups, and its weights are no constant that could be split"
    return ""


def _select(body: Graph, node: Node) -> str:
    shapes = [body.shape(ref) for ref in node.inputs]
    if any(shape is None for shape in shapes) or len(shapes[0] or ()) != len(shapes[1] or ()):
        return "its condition chooses rows, which TF.js would broadcast along the last axis"
    return ""


def _band(body: Graph, node: Node) -> str:
    return "TF.js reads one number of diagonals for both sides, and the shape is not known here"


def _cumulative(body: Graph, node: Node) -> str:
    axis = body.constant(node.inputs[1])
    if axis is None or axis < 0:
        return "TF.js sums nothing along an axis that is counted from the end"
    return ""


def _one_hot(body: Graph, node: Node) -> str:
    return "TF.js' wasm back end fails for indices without a column, and the depth is not known"


def _strided(body: Graph, node: Node) -> str:
    steps = body.constant(node.inputs[3])
    if types_of(node)["T"] not in ("float32", "float16", "bfloat16", "float64") and (
        steps is None or (steps != 1).any()
    ):
        return "TF.js' wasm back end has steps other than 1 for float32 only"
    return ""


def _einsum(body: Graph, node: Node) -> str:
    equation = node.attrs["equation"].s.decode()
    terms, _, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) > 2 or "." in equation:
        return f"TF.js takes two tensors and no ellipsis: {equation}"
    if any(len(set(term)) < len(term) for term in (*operands, result)):
        return f"TF.js takes no letter twice in one term: {equation}"
    return ""


_RULES: dict[str, Callable[[Graph, Node], str]] = {
    "Const": lambda body, node: _not_finite(node),
    "Conv2D": _convolution,
    "Cumprod": _cumulative,
    "Cumsum": _cumulative,
    "Einsum": _einsum,
    "MatrixBandPart": _band,
    "OneHot": _one_hot,
    "Select": _select,
    "StridedSlice": _strided,
    "_FusedConv2D": _convolution,
}
