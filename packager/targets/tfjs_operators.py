"""Operators on tensors, which Keras 3 turns into layers: `x - y`, `x[:, 1]`, `ops.mean(x)`.

Where a stock layer says the same, it is used; the rest goes to the operators of
web/packager-layers.js.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Spec, Weights
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
from packager.targets.tfjs_shapes import Shape

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
_FLOATS = ("float32", "float16", "bfloat16", "float64")


def dtype_of(spec: Spec) -> str:
    """The type of a tensor in TF.js."""
    if spec.dtype in _FLOATS:
        return "float32"
    return "bool" if spec.dtype == "bool" else "int32"


class _Constants:
    """Collects the constant arrays of one call as weights."""

    def __init__(self) -> None:
        self.weights: Weights = {}

    def say(self, value: Any) -> Any:
        """An operand as a JSON value of packager-layers.js.

        Raises:
            Refused: It is none of tensor, number, or array of numbers.
        """
        if isinstance(value, dict) and set(value) == {"tensor"}:
            return value
        if isinstance(value, (bool, int)):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": _infinite(value)}
        array = np.asarray(_array(value))
        if array.dtype.kind not in "biuf":
            raise Refused("an operand is neither a tensor nor a number")
        name = f"constant{len(self.weights)}"
        kind = np.float32 if array.dtype.kind == "f" else np.int32
        self.weights[name] = array.astype(kind)
        return {"weight": name}


def _infinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _array(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("class_name") in ("__numpy__", "__tensor__"):
            config = value["config"]
            return np.asarray(config["value"], config["dtype"])
        raise Refused(f"an operand is a {value.get('class_name', 'dictionary')}")
    return value


def _own(
    site: Site,
    op: str,
    *operands: Any,
    cast: str | None = None,
    constants: _Constants | None = None,
) -> Chain:
    """One operator of packager-layers.js on this call's tensors."""
    outputs = site.call.outputs or {0: site.output}
    shapes = [outputs[i].shape for i in sorted(outputs)]
    weights = constants.weights if constants else None
    part = operator(
        op,
        *operands,
        outputs=shapes,
        dtype=dtype_of(outputs[min(outputs)]),
        operand_dtype=cast,
        weights=weights,
    )
    return (part,)


def _unary(site: Site) -> Chain:
    name = site.layer.class_name
    cast = "bool" if name in _LOGICAL else None
    if cast is None and dtype_of(site.output) == "float32":
        cast = "float32"
    return _own(site, _UNARY[name], TENSOR, cast=cast)


def _binary(site: Site) -> Chain:
    name = site.layer.class_name
    pair = [site.argument(0, "x1"), site.argument(1, "x2")]
    as_stock = _stock_binary(site, name, pair)
    if as_stock is not None:
        return as_stock
    constants = _Constants()
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
    return _own(site, _BINARY[name], *operands, cast=cast, constants=constants)


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
    return _own(site, op, TENSOR, *(site.config[key] for key in keys), cast="float32")


def _gelu(site: Site) -> Chain:
    if site.config.get("approximate", True):
        return _own(site, "geluTanh", TENSOR)
    return (Part("Activation", {"activation": "gelu"}),)


def _softmax(site: Site) -> Chain:
    axis, rank = site.config["axis"], len(site.shape)
    if not isinstance(axis, int):
        raise Refused("TF.js takes the softmax over one axis", "reshape these axes to one")
    is_log = site.layer.class_name == "LogSoftmax"
    if axis % rank == rank - 1:
        return (Part("Activation", {"activation": "log_softmax" if is_log else "softmax"}),)
    return _own(site, "logSoftmax" if is_log else "softmax", TENSOR, axis % rank)


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
    return _own(site, _REDUCTIONS[name], TENSOR, operand, kept, cast=cast)


def _tensor_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise Refused("TF.js joins tensors only, no constants", "make the constant an input")
    return value


def _concatenate(site: Site) -> Chain:
    axis, rank = site.config["axis"] % len(site.shape), len(site.shape)
    tensors = _tensor_list(site.argument(0, "xs"))
    floats = all(dtype_of(spec) == "float32" for spec in site.inputs)
    if axis > 0 and floats and len(tensors) > 1 and rank > 1:
        return (Part("Concatenate", {"axis": axis}),)
    return _own(site, "concat", tensors, axis, cast=dtype_of(site.output))


def _stack(site: Site) -> Chain:
    axis = site.config["axis"] % (len(site.shape) + 1)
    tensors = _tensor_list(site.argument(0, "x"))
    return _own(site, "stack", tensors, axis, cast=dtype_of(site.output))


def _split(site: Site) -> Chain:
    axis = site.config["axis"] % len(site.shape)
    given, size = site.config["indices_or_sections"], site.shape[axis]
    if size is None:
        raise Refused("the split axis has a free size", "give the input a fixed size")
    cuts = given if isinstance(given, (list, tuple)) else None
    edges = [0, *cuts, size] if cuts else None
    sizes = [b - a for a, b in itertools.pairwise(edges)] if edges else None
    count = len(sizes) if sizes else given
    sizes = sizes or [size // count] * count
    shapes = [(*site.shape[:axis], s, *site.shape[axis + 1 :]) for s in sizes]
    part = operator("split", TENSOR, sizes, axis, outputs=shapes, dtype=dtype_of(site.inputs[0]))
    return (part,)


def _reshape(site: Site) -> Chain:
    wanted = [-1 if size is None else size for size in site.config["newshape"]]
    shape = site.output.shape
    free = [size for size in shape[1:] if size is None]
    keeps_batch = (
        wanted[:1] == [-1]
        and not free
        and None not in site.shape[1:]
        and min(len(shape), len(site.shape)) > 1
        and _count(site.shape) == _count(shape)
    )
    if keeps_batch and dtype_of(site.output) == "float32":
        return (reshape(shape[1:]),)
    return _own(site, "reshape", TENSOR, wanted)


def _count(shape: Shape) -> int:
    """Elements of one sample; all sizes but the batch are known."""
    return math.prod(size for size in shape[1:] if size is not None)


def _transpose(site: Site) -> Chain:
    axes, rank = site.config.get("axes"), len(site.shape)
    order = list(reversed(range(rank))) if axes is None else [a % rank for a in axes]
    return _permuted(site, order)


def _permuted(site: Site, order: list[int]) -> Chain:
    if order[0] == 0 and len(order) > 1 and dtype_of(site.output) == "float32":
        return (Part("Permute", {"dims": order[1:]}),)
    return _own(site, "transpose", TENSOR, order)


def _swapaxes(site: Site) -> Chain:
    rank = len(site.shape)
    one, other = site.config["axis1"] % rank, site.config["axis2"] % rank
    order = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return _permuted(site, order)


def _moveaxis(site: Site) -> Chain:
    rank = len(site.shape)
    sources, targets = (
        [axis % rank for axis in np.atleast_1d(site.config[key]).tolist()]
        for key in ("source", "destination")
    )
    order = [axis for axis in range(rank) if axis not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return _permuted(site, order)


def _same_order(site: Site) -> Chain:
    """ExpandDims, Squeeze, Ravel: another shape of the same elements in the same order."""
    shape = site.output.shape
    fixed = None not in shape[1:] and len(shape) > 1 and len(site.shape) > 1
    if fixed and shape[0] == site.shape[0] and dtype_of(site.output) == "float32":
        return (reshape(shape[1:]),)
    rank = len(site.shape)
    name, axis = site.layer.class_name, site.config.get("axis")
    if name == "ExpandDims" and isinstance(axis, int):
        return _own(site, "expandDims", TENSOR, axis % (rank + 1))
    if name == "Squeeze":
        axes = None if axis is None else [a % rank for a in np.atleast_1d(axis).tolist()]
        return _own(site, "squeeze", TENSOR, axes)
    if name == "Ravel":
        return _own(site, "reshape", TENSOR, [-1])
    raise Refused(f"TF.js has no {name} of these axes", "use ops.reshape")


def _flip(site: Site) -> Chain:
    axis, rank = site.config.get("axis"), len(site.shape)
    axes = None if axis is None else [a % rank for a in np.atleast_1d(axis).tolist()]
    return _own(site, "flip", TENSOR, axes)


def _pad(site: Site) -> Chain:
    widths, mode = site.config["pad_width"], site.config.get("mode", "constant")
    value = site.argument(1, "constant_values")
    if isinstance(widths, int):
        widths = [[widths, widths]] * len(site.shape)
    if mode in ("reflect", "symmetric"):
        return _own(site, "mirrorPad", TENSOR, widths, mode)
    if mode != "constant" or not isinstance(value, (int, float, type(None))):
        raise Refused(f"TF.js has no padding with mode={mode!r} here", "use mode='constant'")
    plain = len(site.shape) == 4 and not any([*widths[0], *widths[3]]) and not value
    if plain and dtype_of(site.output) == "float32":
        return (Part("ZeroPadding2D", {"padding": [list(widths[1]), list(widths[2])]}),)
    return _own(site, "pad", TENSOR, widths, value or 0)


def _get_item(site: Site) -> Chain:
    key = site.argument(1, "key")
    elements = key if isinstance(key, list) else [key]
    spec = _strides(elements, len(site.shape))
    return _own(site, "stridedSlice", TENSOR, *spec)


def _strides(elements: list[Any], rank: int) -> list[Any]:
    """The arguments of tf.stridedSlice for `x[elements]`."""
    used = sum(1 for e in elements if e is not None and not _is_ellipsis(e))
    begin: list[int] = []
    end: list[int] = []
    strides: list[int] = []
    masks = {"begin": 0, "end": 0, "new": 0, "shrink": 0}
    expanded: list[Any] = []
    for element in elements:
        filler = {"class_name": "__slice__", "config": {"start": None, "stop": None, "step": None}}
        expanded += [filler] * (rank - used) if _is_ellipsis(element) else [element]
    for place, element in enumerate(expanded):
        bit = 1 << place
        start: int | None = 0
        stop: int | None = 1
        step = 1
        if element is None:
            masks["new"] |= bit
        elif isinstance(element, int) and not isinstance(element, bool):
            start, stop = element, element + 1
            masks["shrink"] |= bit
            masks["end"] |= bit if element == -1 else 0
        else:
            start, stop, step = _slice(element)
            masks["begin"] |= bit if start is None else 0
            masks["end"] |= bit if stop is None else 0
        begin.append(start or 0)
        end.append(stop or 0)
        strides.append(step)
    return [begin, end, strides, masks["begin"], masks["end"], 0, masks["new"], masks["shrink"]]


def _is_ellipsis(element: Any) -> bool:
    return isinstance(element, dict) and element.get("class_name") == "__ellipsis__"


def _slice(element: Any) -> tuple[int | None, int | None, int]:
    if not isinstance(element, dict) or element.get("class_name") != "__slice__":
        raise Refused("it is indexed with a tensor or an array", "use ops.take")
    config = element["config"]
    bounds = [config["start"], config["stop"], config["step"]]
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise Refused("the bounds of its slice are tensors", "use numbers")
    return bounds[0], bounds[1], 1 if bounds[2] is None else bounds[2]


def _take(site: Site) -> Chain:
    axis = site.config.get("axis")
    if axis is None:
        raise Refused("TF.js takes along an axis", "name the axis of ops.take")
    constants = _Constants()
    indices = constants.say(site.argument(1, "indices"))
    return _own(site, "gather", TENSOR, indices, axis, constants=constants)


def _cast(site: Site) -> Chain:
    kinds = dtype_of(site.inputs[0]), dtype_of(site.output)
    if kinds[0] == kinds[1]:
        return ()
    return _own(site, "cast", TENSOR, kinds[1])


def _with_keys(op: str, *keys: str) -> Rule:
    def rule(site: Site) -> Chain:
        return _own(site, op, TENSOR, *(site.config.get(key) for key in keys))

    return rule


def _round(site: Site) -> Chain:
    if site.config.get("decimals"):
        raise Refused("TF.js rounds to whole numbers", "use decimals=0")
    return _own(site, "round", TENSOR)


def _matmul(site: Site) -> Chain:
    constants = _Constants()
    pair = [constants.say(site.argument(0, "x1")), constants.say(site.argument(1, "x2"))]
    ranks = [len(s) for s in site.shapes] + [w.ndim for w in constants.weights.values()]
    if min(ranks) < 2:
        raise Refused("TF.js multiplies matrices of two axes or more", "use ops.expand_dims")
    return _own(site, "matmul", *pair, cast="float32", constants=constants)


def _einsum(site: Site) -> Chain:
    equation = site.config["subscripts"].replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    plain = "->" in equation and "..." not in equation and len(terms) == 2
    if not plain or any(len(set(term)) != len(term) for term in terms):
        raise Refused(
            f"TF.js has no einsum {equation!r} here", "use two operands without an ellipsis"
        )
    constants = _Constants()
    operands = [constants.say(value) for value in site.call.args]
    return _own(site, "einsum", equation, *operands, cast="float32", constants=constants)


def _where(site: Site) -> Chain:
    constants = _Constants()
    names = ("condition", "x1", "x2")
    values = [site.argument(place, name) for place, name in enumerate(names)]
    if any(value is None for value in values):
        raise Refused("TF.js has no where with one argument here", "name both values")
    operands = [constants.say(value) for value in values]
    return _own(site, "where", *operands, constants=constants)


def _clip(site: Site) -> Chain:
    constants = _Constants()
    bounds = [constants.say(site.config[key]) for key in ("x_min", "x_max")]
    return _own(site, "clip", TENSOR, *bounds, cast=dtype_of(site.output), constants=constants)


def _norm(site: Site) -> Chain:
    order, axis = site.config.get("ord"), site.config.get("axis")
    if order not in (None, 1, 2) or (isinstance(axis, (list, tuple)) and len(axis) > 1):
        raise Refused("TF.js has the norms of order 1 and 2 along one axis", "use these")
    if axis is None:
        raise Refused("TF.js takes a norm along an axis", "name the axis")
    kept = bool(site.config.get("keepdims"))
    return _own(site, "powerSum", TENSOR, order or 2, axis, kept, cast="float32")


def _normalize(site: Site) -> Chain:
    order, axis = site.config.get("order", 2), site.config.get("axis", -1)
    epsilon = site.config.get("epsilon") or 1e-12
    return _own(site, "normalize", TENSOR, axis, order or 2, epsilon, cast="float32")


def _one_hot(site: Site) -> Chain:
    if site.config.get("axis", -1) not in (-1, len(site.shape)) or site.config.get("sparse"):
        raise Refused("TF.js puts the classes on the last axis, dense", "use axis=-1")
    return _own(site, "oneHot", TENSOR, site.config["num_classes"])


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
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_SET_ACTIVATIONS, _set_activation),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_IDENTITIES, _identity),
    "BroadcastTo": _with_keys("broadcastTo", "shape"),
    "Cast": _cast,
    "Clip": _clip,
    "Concatenate": _concatenate,
    "Cumprod": _with_keys("cumprod", "axis"),
    "Cumsum": _with_keys("cumsum", "axis"),
    "Einsum": _einsum,
    "ExpandDims": _same_order,
    "Flip": _flip,
    "Gelu": _gelu,
    "GetItem": _get_item,
    "LogSoftmax": _softmax,
    "Matmul": _matmul,
    "Moments": _moments,
    "Moveaxis": _moveaxis,
    "Norm": _norm,
    "Normalize": _normalize,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Ravel": _same_order,
    "Round": _round,
    "Repeat": _with_keys("repeat", "repeats", "axis"),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _same_order,
    "Stack": _stack,
    "Swapaxes": _swapaxes,
    "Take": _take,
    "Tile": _with_keys("tile", "repeats"),
    "Transpose": _transpose,
    "Where": _where,
}
