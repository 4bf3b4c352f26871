"""Operators that move elements: slices, transposition, joining, padding."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from packager.targets.tfjs_operands import Constants, dtype_of, own, with_keys
from packager.targets.tfjs_parts import TENSOR, Chain, Part, Refused, Rule, Site, operator, reshape
from packager.targets.tfjs_shapes import Shape


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
    return own(site, "concat", tensors, axis, cast=dtype_of(site.output))


def _stack(site: Site) -> Chain:
    axis = site.config["axis"] % (len(site.shape) + 1)
    tensors = _tensor_list(site.argument(0, "x"))
    return own(site, "stack", tensors, axis, cast=dtype_of(site.output))


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
    return own(site, "reshape", TENSOR, wanted)


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
    return own(site, "transpose", TENSOR, order)


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
        return own(site, "expandDims", TENSOR, axis % (rank + 1))
    if name == "Squeeze":
        axes = None if axis is None else [a % rank for a in np.atleast_1d(axis).tolist()]
        return own(site, "squeeze", TENSOR, axes)
    if name == "Ravel":
        return own(site, "reshape", TENSOR, [-1])
    raise Refused(f"TF.js has no {name} of these axes", "use ops.reshape")


def _flip(site: Site) -> Chain:
    axis, rank = site.config.get("axis"), len(site.shape)
    axes = None if axis is None else [a % rank for a in np.atleast_1d(axis).tolist()]
    return own(site, "flip", TENSOR, axes)


def _pad(site: Site) -> Chain:
    widths, mode = site.config["pad_width"], site.config.get("mode", "constant")
    value = site.argument(1, "constant_values")
    if isinstance(widths, int):
        widths = [[widths, widths]] * len(site.shape)
    if mode in ("reflect", "symmetric"):
        return own(site, "mirrorPad", TENSOR, widths, mode)
    if mode != "constant" or not isinstance(value, (int, float, type(None))):
        raise Refused(f"TF.js has no padding with mode={mode!r} here", "use mode='constant'")
    plain = len(site.shape) == 4 and not any([*widths[0], *widths[3]]) and not value
    if plain and dtype_of(site.output) == "float32":
        return (Part("ZeroPadding2D", {"padding": [list(widths[1]), list(widths[2])]}),)
    return own(site, "pad", TENSOR, widths, value or 0)


def _get_item(site: Site) -> Chain:
    key = site.argument(1, "key")
    elements = key if isinstance(key, list) else [key]
    spec = _strides(elements, len(site.shape))
    return own(site, "stridedSlice", TENSOR, *spec)


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
    constants = Constants()
    indices = constants.say(site.argument(1, "indices"))
    return own(site, "gather", TENSOR, indices, axis, constants=constants)


REARRANGE_RULES: dict[str, Rule] = {
    "BroadcastTo": with_keys("broadcastTo", "shape"),
    "Concatenate": _concatenate,
    "ExpandDims": _same_order,
    "Flip": _flip,
    "GetItem": _get_item,
    "Moveaxis": _moveaxis,
    "Pad": _pad,
    "Ravel": _same_order,
    "Repeat": with_keys("repeat", "repeats", "axis"),
    "Reshape": _reshape,
    "Split": _split,
    "Squeeze": _same_order,
    "Stack": _stack,
    "Swapaxes": _swapaxes,
    "Take": _take,
    "Tile": with_keys("tile", "repeats"),
    "Transpose": _transpose,
}
