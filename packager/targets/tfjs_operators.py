"""Operators on tensors, which Keras 3 turns into layers: `x - y`, `x[:, 1]`, `ops.mean(x)`.

Where a stock layer says the same, it is used; the rest goes to the operators of
web/packager-layers.js.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from packager.targets.tfjs_operands import Constants, dtype_of, own, with_keys
from packager.targets.tfjs_parts import (
    TENSOR,
    Chain,
    Part,
    Refused,
    Rule,
    Site,
    operator,
    rescaling,
    reshape,
)
from packager.targets.tfjs_rearrange import REARRANGE_RULES

# Keras' class of an operator that acts on each element, and its name in packager-layers.js.
_UNARY = {
    **{name: name.lower() for name in ("Ceil", "Cos", "Cosh", "Erf", "Exp", "Expm1", "Floor")},
    **{name: name.lower() for name in ("Log", "Log1p", "Reciprocal", "Rsqrt", "Sign", "Sin")},
    **{name: name.lower() for name in ("Sinh", "Sqrt", "Square", "Tan")},
    **{name: "abs" for name in ("Abs", "Absolute", "Fabs")},
    "Arccos": "acos",
    "Arccosh": "acosh",
    "Arcsin": "asin",
    "Arcsinh": "asinh",
    "Arctan": "atan",
    "Arctanh": "atanh",
    "Isfinite": "isFinite",
    "Isinf": "isInf",
    "Isnan": "isNaN",
    "LogicalNot": "logicalNot",
    "Negative": "neg",
    "OnesLike": "onesLike",
    "ZerosLike": "zerosLike",
}
_BINARY = {
    **{name: name.lower() for name in ("Equal", "Greater", "Less", "Maximum", "Minimum", "Mod")},
    **{name: name[0].lower() + name[1:] for name in ("GreaterEqual", "LessEqual", "NotEqual")},
    **{name: name[0].lower() + name[1:] for name in ("LogicalAnd", "LogicalOr", "LogicalXor")},
    "Add": "add",
    "Arctan2": "atan2",
    "Divide": "div",
    "DivideNoNan": "divNoNan",
    "FloorDivide": "floorDiv",
    "Fmax": "maximum",
    "Fmin": "minimum",
    "Multiply": "mul",
    "Power": "pow",
    "Subtract": "sub",
    "TrueDivide": "div",
}
_COMPARISONS = ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual")
_LOGICAL = ("LogicalAnd", "LogicalOr", "LogicalXor", "LogicalNot", "Any", "All")
# Activations without settings: the name of an Activation layer, stock or own.
_ACTIVATIONS = {
    **{name: name.lower() for name in ("Relu", "Relu6", "Selu", "Sigmoid", "Tanh")},
    **{"Softplus": "softplus", "Softsign": "softsign", "Silu": "swish", "Swish": "swish"},
    **{"HardSilu": "PackagerHardSilu", "HardSigmoid": "PackagerHardSigmoid"},
    **{"HardTanh": "PackagerHardTanh", "LogSigmoid": "PackagerLogSigmoid"},
    **{"SparsePlus": "PackagerSparsePlus", "SparseSigmoid": "PackagerSparseSigmoid"},
    **{"TanhShrink": "PackagerTanhShrink", "Mish": "mish"},
}
# With settings: the operator and the configuration keys of its arguments.
_SET_ACTIVATIONS = {
    "Celu": ("celu", ("alpha",)),
    "Elu": ("elu", ("alpha",)),
    "Glu": ("glu", ("axis",)),
    "HardShrink": ("hardShrink", ("threshold",)),
    "LeakyRelu": ("leakyRelu", ("negative_slope",)),
    "SoftShrink": ("softShrink", ("threshold",)),
    "Sparsemax": ("sparsemax", ("axis",)),
    "Squareplus": ("squareplus", ("b",)),
    "Threshold": ("threshold", ("threshold", "default_value")),
}
_REDUCTIONS = {
    **{name: name.lower() for name in ("All", "Any", "Max", "Mean", "Min", "Prod", "Std", "Sum")},
    "Amax": "max",
    "Amin": "min",
    "Argmax": "argMax",
    "Argmin": "argMin",
    "Logsumexp": "logSumExp",
    "Var": "var",
}
_IDENTITIES = ("ConvertToTensor", "StopGradient", "Copy")


def _unary(site: Site) -> Chain:
    name = site.layer.class_name
    cast = "bool" if name in _LOGICAL else None
    if cast is None and dtype_of(site.output) == "float32":
        cast = "float32"
    return own(site, _UNARY[name], TENSOR, cast=cast)


def _binary(site: Site) -> Chain:
    name = site.layer.class_name
    pair = [site.argument(0, "x1"), site.argument(1, "x2")]
    as_stock = _stock_binary(site, name, pair)
    if as_stock is not None:
        return as_stock
    constants = Constants()
    operands = [constants.say(value) for value in pair]
    if name in _LOGICAL:
        cast: str | None = "bool"
    elif name in _COMPARISONS:
        kinds = {dtype_of(spec) for spec in site.inputs}
        cast = None if kinds == {"int32"} and not _has_fraction(pair) else "float32"
    else:
        cast = dtype_of(site.output)
    if cast == "int32" and name == "TrueDivide":
        cast = "float32"
    return own(site, _BINARY[name], *operands, cast=cast, constants=constants)


def _has_fraction(pair: Sequence[Any]) -> bool:
    return any(isinstance(value, float) for value in pair)


def _stock_binary(site: Site, name: str, pair: list[Any]) -> Chain | None:
    """The same as a stock layer, where there is one."""
    if any(dtype_of(spec) != "float32" for spec in site.inputs) or len(site.shape) < 2:
        return None
    tensors = [isinstance(value, dict) and set(value) == {"tensor"} for value in pair]
    if all(tensors):
        same_rank = len({len(shape) for shape in site.shapes}) == 1
        if not same_rank or pair != [{"tensor": 0}, {"tensor": 1}]:
            return None
        if name == "Subtract":
            opposite = Part("Rescaling", {"scale": -1.0, "offset": 0.0}, sources=((-1, 1),))
            return (opposite, Part("Add", sources=((-1, 0), (0, 0))))
        return (Part(name),) if name in ("Add", "Multiply", "Maximum", "Minimum") else None
    place = tensors.index(False)
    line = _line(name, place, pair[place])
    return None if line is None else (rescaling(*line),)


def _line(name: str, place: int, value: Any) -> tuple[float, float] | None:
    """Arithmetic of a tensor and a number as scale and offset; None if it is something else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    number = float(value)
    if name == "Add":
        return 1.0, number
    if name == "Multiply":
        return number, 0.0
    if name == "Subtract":
        return (-1.0, number) if place == 0 else (1.0, -number)
    if name in ("TrueDivide", "Divide") and place == 1 and number != 0:
        return 1.0 / number, 0.0
    return None


def _activation(site: Site) -> Chain:
    return (Part("Activation", {"activation": _ACTIVATIONS[site.layer.class_name]}),)


def _set_activation(site: Site) -> Chain:
    op, keys = _SET_ACTIVATIONS[site.layer.class_name]
    return own(site, op, TENSOR, *(site.config[key] for key in keys), cast="float32")


def _gelu(site: Site) -> Chain:
    if site.config.get("approximate", True):
        return own(site, "geluTanh", TENSOR)
    return (Part("Activation", {"activation": "gelu"}),)


def _softmax(site: Site) -> Chain:
    axis, rank = site.config["axis"], len(site.shape)
    if not isinstance(axis, int):
        raise Refused("TF.js takes the softmax over one axis", "reshape these axes to one")
    is_log = site.layer.class_name == "LogSoftmax"
    if axis % rank == rank - 1:
        return (Part("Activation", {"activation": "log_softmax" if is_log else "softmax"}),)
    return own(site, "logSoftmax" if is_log else "softmax", TENSOR, axis % rank)


def _reduction(site: Site) -> Chain:
    name, config, rank = site.layer.class_name, site.config, len(site.shape)
    axis, kept = config.get("axis"), bool(config.get("keepdims"))
    if config.get("initial") is not None:
        raise Refused("TF.js has no initial value here", "leave initial out")
    axes = None if axis is None else sorted(a % rank for a in np.atleast_1d(axis).tolist())
    if name == "Mean" and rank == 4 and axes == [1, 2] and dtype_of(site.inputs[0]) == "float32":
        pooled = Part("GlobalAveragePooling2D")
        return (pooled, reshape([1, 1, site.shape[3]])) if kept else (pooled,)
    operand: Any = axes
    if name.startswith("Arg"):
        operand = None if axes is None else axes[0]
    cast = "bool" if name in _LOGICAL else None
    if cast is None and dtype_of(site.output) == "float32":
        cast = "float32"
    return own(site, _REDUCTIONS[name], TENSOR, operand, kept, cast=cast)


def _cast(site: Site) -> Chain:
    kinds = dtype_of(site.inputs[0]), dtype_of(site.output)
    if kinds[0] == kinds[1]:
        return ()
    return own(site, "cast", TENSOR, kinds[1])


def _round(site: Site) -> Chain:
    if site.config.get("decimals"):
        raise Refused("TF.js rounds to whole numbers", "use decimals=0")
    return own(site, "round", TENSOR)


def _matmul(site: Site) -> Chain:
    constants = Constants()
    pair = [constants.say(site.argument(0, "x1")), constants.say(site.argument(1, "x2"))]
    ranks = [len(s) for s in site.shapes] + [w.ndim for w in constants.weights.values()]
    if min(ranks) < 2:
        raise Refused("TF.js multiplies matrices of two axes or more", "use ops.expand_dims")
    return own(site, "matmul", *pair, cast="float32", constants=constants)


def _einsum(site: Site) -> Chain:
    equation = site.config["subscripts"].replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    plain = "->" in equation and "..." not in equation and len(terms) == 2
    if not plain or any(len(set(term)) != len(term) for term in terms):
        raise Refused(
            f"TF.js has no einsum {equation!r} here", "use two operands without an ellipsis"
        )
    constants = Constants()
    operands = [constants.say(value) for value in site.call.args]
    return own(site, "einsum", equation, *operands, cast="float32", constants=constants)


def _where(site: Site) -> Chain:
    constants = Constants()
    names = ("condition", "x1", "x2")
    values = [site.argument(place, name) for place, name in enumerate(names)]
    if any(value is None for value in values):
        raise Refused("TF.js has no where with one argument here", "name both values")
    operands = [constants.say(value) for value in values]
    return own(site, "where", *operands, constants=constants)


def _clip(site: Site) -> Chain:
    constants = Constants()
    bounds = [constants.say(site.config[key]) for key in ("x_min", "x_max")]
    return own(site, "clip", TENSOR, *bounds, cast=dtype_of(site.output), constants=constants)


def _norm(site: Site) -> Chain:
    order, axis = site.config.get("ord"), site.config.get("axis")
    if order not in (None, 1, 2) or (isinstance(axis, (list, tuple)) and len(axis) > 1):
        raise Refused("TF.js has the norms of order 1 and 2 along one axis", "use these")
    if axis is None:
        raise Refused("TF.js takes a norm along an axis", "name the axis")
    kept = bool(site.config.get("keepdims"))
    return own(site, "powerSum", TENSOR, order or 2, axis, kept, cast="float32")


def _normalize(site: Site) -> Chain:
    order, axis = site.config.get("order", 2), site.config.get("axis", -1)
    epsilon = site.config.get("epsilon") or 1e-12
    return own(site, "normalize", TENSOR, axis, order or 2, epsilon, cast="float32")


def _one_hot(site: Site) -> Chain:
    if site.config.get("axis", -1) not in (-1, len(site.shape)) or site.config.get("sparse"):
        raise Refused("TF.js puts the classes on the last axis, dense", "use axis=-1")
    return own(site, "oneHot", TENSOR, site.config["num_classes"])


def _moments(site: Site) -> Chain:
    rank = len(site.shape)
    axes = [a % rank for a in np.atleast_1d(site.config["axes"]).tolist()]
    kept = bool(site.config.get("keepdims"))
    shape = tuple(
        1 if i in axes else size for i, size in enumerate(site.shape) if kept or i not in axes
    )
    part = operator("moments", TENSOR, axes, kept, outputs=[shape, shape], operand_dtype="float32")
    return (part,)


def _identity(_site: Site) -> Chain:
    return ()


OPERATOR_RULES: dict[str, Rule] = {
    **REARRANGE_RULES,
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_SET_ACTIVATIONS, _set_activation),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_IDENTITIES, _identity),
    "Cast": _cast,
    "Clip": _clip,
    "Cumprod": with_keys("cumprod", "axis"),
    "Cumsum": with_keys("cumsum", "axis"),
    "Einsum": _einsum,
    "Gelu": _gelu,
    "LogSoftmax": _softmax,
    "Matmul": _matmul,
    "Moments": _moments,
    "Norm": _norm,
    "Normalize": _normalize,
    "OneHot": _one_hot,
    "Round": _round,
    "Softmax": _softmax,
    "Where": _where,
}
