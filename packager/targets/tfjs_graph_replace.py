"""Writes operators that TF.js lacks, or computes wrongly, in terms of others that it has right.

Each rule was found by running the operator in TF.js 4.22 on the cpu and the wasm back end; what a
rule leaves as it is, `tfjs_graph_check` refuses or TF.js has right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packager.targets.graph_ir import Array, Graph, Node, Ref, set_attribute

# TensorFlow's numbers of data types.
FLOAT, INT32, INT64, BOOL = 1, 3, 9, 10
_INTEGERS = (INT32, INT64)


class _Builder:
    """Adds nodes in place of one node, named after it."""

    def __init__(self, body: Graph, node: Node) -> None:
        self.body = body
        self.node = node

    def add(self, op: str, *inputs: Ref, **attributes: Any) -> Ref:
        """Adds a node; attributes are numbers of data types, or texts, numbers and lists."""
        made = Node(f"{self.node.name}/{op.lower()}", op, list(inputs), shapes=self.node.shapes)
        for key, value in attributes.items():
            set_attribute(made, key, value)
        return self.body.add(made).name, 0

    def constant(self, value: Array) -> Ref:
        """Adds a constant."""
        return self.body.add_constant(f"{self.node.name}/constant", value)

    def cast(self, ref: Ref, source: int, target: int) -> Ref:
        """Converts a tensor; to bool, by comparing with zero."""
        if target == BOOL:
            return self.is_not_zero(ref, source)
        return self.add("Cast", ref, type_SrcT=source, type_DstT=target)

    def is_not_zero(self, ref: Ref, source: int) -> Ref:
        """Compares a tensor of numbers with zero."""
        zero = self.constant(np.zeros((), np.float32 if source == FLOAT else np.int32))
        return self.add("NotEqual", ref, zero, type_T=source)


Rule = Callable[[_Builder, Node], Ref | None]


def replace(graph: Graph) -> None:
    """Replaces operators in the graph and its functions, in place."""
    for body in graph.bodies():
        moved: dict[Ref, Ref] = {}
        for node in list(body.nodes.values()):
            rule = _RULES.get(node.op)
            end = rule(_Builder(body, node), node) if rule else None
            if end is not None:
                moved[(node.name, 0)] = end
        body.redirect(moved)
        body.prune()


def _type(node: Node, key: str = "T") -> int:
    return int(node.attrs[key].type)


def _reshape(build: _Builder, node: Node) -> Ref | None:
    """A shape of which one size is free at most needs no computing."""
    shape = build.body.shape((node.name, 0))
    if build.body.constant(node.inputs[1]) is not None or shape is None or 0 in shape:
        return None
    if shape.count(None) <= 1:
        sizes = [-1 if size is None else size for size in shape]
        node.inputs[1] = build.constant(np.array(sizes, np.int32))
    return None


def _erfc(build: _Builder, node: Node) -> Ref:
    one = build.constant(np.ones((), np.float32))
    return build.add("Sub", one, build.add("Erf", node.inputs[0], type_T=FLOAT), type_T=FLOAT)


def _softsign(build: _Builder, node: Node) -> Ref:
    one = build.constant(np.ones((), np.float32))
    size = build.add("Abs", node.inputs[0], type_T=FLOAT)
    below = build.add("AddV2", size, one, type_T=FLOAT)
    return build.add("RealDiv", node.inputs[0], below, type_T=FLOAT)


def _rint(build: _Builder, node: Node) -> Ref:
    return build.add("Round", node.inputs[0], type_T=_type(node))


def _cast(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end copies the bytes of a number where a bool is wanted."""
    source, target = _type(node, "SrcT"), _type(node, "DstT")
    if target != BOOL:
        return None
    return node.inputs[0] if source == BOOL else build.is_not_zero(node.inputs[0], source)


def _reverse(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end takes four bytes for a bool here."""
    if _type(node) != BOOL:
        return None
    numbers = build.cast(node.inputs[0], BOOL, INT32)
    made = build.add("ReverseV2", numbers, node.inputs[1], type_T=INT32, type_Tidx=INT32)
    return build.is_not_zero(made, INT32)


def _select(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end takes four bytes for a bool here."""
    if _type(node) != BOOL:
        return None
    condition, yes, no = node.inputs
    chosen = build.add("LogicalAnd", condition, yes)
    other = build.add("LogicalAnd", build.add("LogicalNot", condition), no)
    return build.add("LogicalOr", chosen, other)


def _where(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end reads numbers as bools here."""
    if _type(node) == BOOL:
        return None
    condition = build.is_not_zero(node.inputs[0], _type(node))
    return build.add("Where", condition, type_T=BOOL)


def _one_hot(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end writes outside of its memory for an index that has no column."""
    depth = build.body.constant(node.inputs[1])
    if node.attrs["axis"].i != -1 or depth is None:
        return None
    columns = build.constant(np.arange(int(depth), dtype=np.int32))
    last = build.constant(np.array(-1, np.int32))
    rows = build.add("ExpandDims", node.inputs[0], last, type_T=INT32)
    hit = build.add("Equal", rows, columns, type_T=INT32)
    on, off = (build.body.constant(ref) for ref in node.inputs[2:])
    if on == 1 and off == 0 and _type(node) != BOOL:
        return build.cast(hit, BOOL, _type(node))
    if _type(node) == BOOL:
        return hit if on is not None and bool(on) and off is not None and not off else None
    return build.add("SelectV2", hit, *node.inputs[2:], type_T=_type(node))


def _band(build: _Builder, node: Node) -> Ref | None:
    """TF.js reads the number of lower diagonals as that of the upper ones, too."""
    lower, upper = (build.body.constant(ref) for ref in node.inputs[1:])
    shape = build.body.shape(node.inputs[0])
    if lower is None or upper is None or shape is None or None in shape[-2:]:
        return None
    rows, columns = (int(size or 0) for size in shape[-2:])
    below = np.subtract.outer(np.arange(rows), np.arange(columns))
    mask = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    if _type(node) == BOOL:
        return build.add("LogicalAnd", node.inputs[0], build.constant(mask))
    zero = build.constant(np.zeros((), np.float32 if _type(node) == FLOAT else np.int32))
    return build.add("SelectV2", build.constant(mask), node.inputs[0], zero, type_T=_type(node))


def _cumulative(build: _Builder, node: Node) -> Ref | None:
    """TF.js sums nothing along an axis that is counted from the end."""
    axis, shape = build.body.constant(node.inputs[1]), build.body.shape(node.inputs[0])
    if axis is None or axis >= 0 or shape is None:
        return None
    node.inputs[1] = build.constant(np.array(int(axis) + len(shape), np.int32))
    return None


def _strided(build: _Builder, node: Node) -> Ref | None:
    """The wasm back end computes steps other than 1 in float32 only.

    Those axes are gathered, and then taken whole.
    """
    steps = build.body.constant(node.inputs[3])
    if _type(node) == FLOAT or steps is None or (steps == 1).all():
        return None
    begin, end = (build.body.constant(ref) for ref in node.inputs[1:3])
    shape = build.body.shape(node.inputs[0])
    masks = {key: int(node.attrs[f"{key}_mask"].i) for key in ("begin", "end", "shrink_axis")}
    if begin is None or end is None or shape is None or _has_new_axes(node):
        return None
    source = node.inputs[0]
    for axis, step in enumerate(int(step) for step in steps):
        bit = 1 << axis
        if step == 1 or masks["shrink_axis"] & bit:
            continue
        size = shape[axis]
        if size is None:
            return None
        first = None if masks["begin"] & bit else int(begin[axis])
        last = None if masks["end"] & bit else int(end[axis])
        indices = np.arange(size, dtype=np.int32)[first:last:step]
        source = _gather(build, source, indices, axis, _type(node))
        masks["begin"] |= bit
        masks["end"] |= bit
    node.inputs = [source, *node.inputs[1:3], build.constant(np.ones_like(steps))]
    for key, value in masks.items():
        set_attribute(node, f"{key}_mask", value)
    return None


def _has_new_axes(node: Node) -> bool:
    return bool(node.attrs["ellipsis_mask"].i or node.attrs["new_axis_mask"].i)


def _gather(build: _Builder, source: Ref, indices: Array, axis: int, kind: int) -> Ref:
    which, along = build.constant(indices), build.constant(np.array(axis, np.int32))
    types = {"type_Tparams": kind, "type_Tindices": INT32, "type_Taxis": INT32}
    return build.add("GatherV2", source, which, along, batch_dims=0, **types)


def _roll(build: _Builder, node: Node) -> Ref | None:
    shifts, axes = (build.body.constant(ref) for ref in node.inputs[1:])
    shape = build.body.shape(node.inputs[0])
    if shifts is None or axes is None or shape is None:
        return None
    source = node.inputs[0]
    for shift, axis in zip(shifts.reshape(-1), axes.reshape(-1), strict=True):
        size = shape[int(axis)]
        if size is None:
            return None
        indices = np.roll(np.arange(size, dtype=np.int32), int(shift))
        source = _gather(build, source, indices, int(axis) % len(shape), _type(node))
    return source


def _bucketize(build: _Builder, node: Node) -> Ref:
    """An element's bucket is the number of boundaries that it has reached."""
    boundaries = build.constant(np.array(node.attrs["boundaries"].list.f, np.float32))
    last = build.constant(np.array(-1, np.int32))
    source = node.inputs[0]
    if _type(node) in _INTEGERS:
        source = build.cast(source, _type(node), FLOAT)
    column = build.add("ExpandDims", source, last, type_T=FLOAT)
    reached = build.add("GreaterEqual", column, boundaries, type_T=FLOAT)
    counts = build.cast(reached, BOOL, INT32)
    return build.add("Sum", counts, last, type_T=INT32, type_Tidx=INT32, keep_dims=False)


def _einsum(build: _Builder, node: Node) -> Ref | None:
    """A product of matrices: the fast back ends have no other."""
    equation = node.attrs["equation"].s.decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    if len(node.inputs) != 2 or "." in equation:
        return None
    left, right = terms.split(",")
    if any(len(set(term)) < len(term) for term in (left, right, result)):
        return None
    batch = [x for x in left if x in right and x in result]
    rows = [x for x in left if x not in right]
    summed = [x for x in left if x in right and x not in result]
    columns = [x for x in right if x not in left]
    if not {*rows, *columns} <= set(result):
        return None
    product = _Product(build, node, _sizes(build, node, (left, right)))
    one = product.side(node.inputs[0], left, batch, rows, summed)
    two = product.side(node.inputs[1], right, batch, summed, columns)
    if one is None or two is None:
        return None
    made = build.add("BatchMatMulV2", one, two, type_T=_type(node))
    whole = product.shaped(made, batch, rows, columns, apart=True)
    return whole and _transposed(build, whole, [*batch, *rows, *columns], list(result), _type(node))


def _sizes(build: _Builder, node: Node, terms: Sequence[str]) -> dict[str, int | None]:
    """The size of each letter's axis, as far as it is known."""
    found: dict[str, int | None] = {}
    for ref, term in zip(node.inputs, terms, strict=True):
        shape = build.body.shape(ref) or (None,) * len(term)
        for letter, size in zip(term, shape, strict=True):
            found[letter] = size if size is not None else found.get(letter)
    return found


class _Product:
    """Brings the sides of an `Einsum` into the form `[*batch, rows, columns]`, and back."""

    def __init__(self, build: _Builder, node: Node, sizes: dict[str, int | None]) -> None:
        self.build = build
        self.kind = _type(node)
        self.sizes = sizes

    def side(
        self, ref: Ref, term: str, batch: list[str], first: list[str], second: list[str]
    ) -> Ref | None:
        """One side; None when sizes are missing."""
        ordered = _transposed(self.build, ref, term, [*batch, *first, *second], self.kind)
        return self.shaped(ordered, batch, first, second, apart=False)

    def shaped(
        self, ref: Ref, batch: list[str], first: list[str], second: list[str], *, apart: bool
    ) -> Ref | None:
        """Joins the axes of each group to one, or takes them apart again."""
        if len(first) == len(second) == 1:
            return ref
        groups = [[x] for x in (*first, *second)] if apart else [first, second]
        shape = [self._size([x]) for x in batch] + [self._size(group) for group in groups]
        if shape.count(-1) > 1 or 0 in shape:
            return None
        wanted = self.build.constant(np.array(shape, np.int32))
        return self.build.add("Reshape", ref, wanted, type_T=self.kind, type_Tshape=INT32)

    def _size(self, letters: list[str]) -> int:
        sizes = [self.sizes[x] for x in letters]
        known = [size for size in sizes if size is not None]
        return int(np.prod(known)) if len(known) == len(sizes) else -1


def _transposed(
    build: _Builder, ref: Ref, now: Sequence[str], wanted: Sequence[str], kind: int
) -> Ref:
    if list(now) == list(wanted):
        return ref
    order = build.constant(np.array([now.index(x) for x in wanted], np.int32))
    return build.add("Transpose", ref, order, type_T=kind)


_RULES: dict[str, Rule] = {
    "Bucketize": _bucketize,
    "Cast": _cast,
    "Cumprod": _cumulative,
    "Cumsum": _cumulative,
    "Einsum": _einsum,
    "Erfc": _erfc,
    "MatrixBandPart": _band,
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "ReverseV2": _reverse,
    "Rint": _rint,
    "Roll": _roll,
    "Select": _select,
    "SelectV2": _select,
    "Softsign": _softsign,
    "StridedSlice": _strided,
    "Where": _where,
}
