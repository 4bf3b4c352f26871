"""Folds and fuses convolutions and products of matrices for TF.js.

TensorFlow's own optimizer fuses for processors only, with operators that TF.js does not have. Each
function changes the graph in place and keeps what it computes, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.targets.graph_ir import Array, Graph, Node, Ref, set_attribute

_FUSED = {
    "Conv2D": "_FusedConv2D",
    "DepthwiseConv2dNative": "FusedDepthwiseConv2dNative",
    "MatMul": "_FusedMatMul",
}
_ACTIVATIONS = ("Relu", "Relu6", "Elu", "LeakyRelu", "Sigmoid")
# TF.js does not read the slope of this pair.
_NO_SLOPE = ("DepthwiseConv2dNative", "LeakyRelu")
# They move or drop values along other axes than the last, so that what is done per channel may as
# well be done before them.
_TRANSPARENT = ("Squeeze", "BatchToSpaceND", "Reshape")
_FLOAT = 1  # DT_FLOAT


def merge_padding(graph: Graph) -> None:
    """Gives the zeros of a `Pad` to the convolution that takes them."""
    for body in graph.bodies():
        for node in body.nodes.values():
            if node.op in ("Conv2D", "DepthwiseConv2dNative") and _is_plain(node):
                pad = body.nodes[node.inputs[0][0]]
                widths = _spatial_padding(body, pad)
                if widths is not None and node.attrs["padding"].s == b"VALID":
                    node.inputs[0] = pad.inputs[0]
                    set_attribute(node, "padding", b"EXPLICIT")
                    set_attribute(node, "explicit_paddings", [0, 0, *widths, 0, 0])
        body.prune()


def _spatial_padding(body: Graph, pad: Node) -> list[int] | None:
    """Top, bottom, left and right of a `Pad` with zeros that leaves batch and channels alone."""
    if pad.op not in ("Pad", "PadV2"):
        return None
    widths = body.constant(pad.inputs[1])
    value = body.constant(pad.inputs[2]) if pad.op == "PadV2" else np.zeros(())
    if widths is None or widths.shape != (4, 2) or value is None or value != 0:
        return None
    if (widths < 0).any() or widths[0].any() or widths[3].any():
        return None
    return [int(width) for width in widths[1:3].reshape(-1)]


@dataclass
class _Chain:
    """What follows a convolution or a product, each step the only use of the one before.

    `scale` and `offset` have one entry per output channel; `constants` are the names of what they
    were made of.
    """

    scale: Array
    offset: Array
    last: Node
    between: list[Node] = field(default_factory=list)
    activation: Node | None = None
    constants: set[str] = field(default_factory=set)


def fuse(graph: Graph) -> None:
    """Folds scales and offsets into weights and biases, and fuses these with an activation.

    That is how a BatchNormalization behind a convolution disappears.
    """
    for body in graph.bodies():
        for name in list(body.nodes):
            node = body.nodes.get(name)
            if node is not None and node.op in _FUSED and _is_plain(node):
                _fuse_node(body, node)
        body.prune()


def _is_plain(node: Node) -> bool:
    """float32, channels last."""
    layout = node.attrs.get("data_format")
    return node.attrs["T"].type == _FLOAT and (layout is None or layout.s == b"NHWC")


def _fuse_node(body: Graph, node: Node) -> None:
    weights = body.constant(node.inputs[1])
    if weights is None:
        return
    channels = _channels(node, weights)
    chain = _follow(body, node, channels)
    chain.constants.add(node.inputs[1][0])
    if chain.last is node:
        return
    # In double precision, and rounded once.
    folded = (weights * _along_weights(node, weights, chain.scale)).astype(np.float32)
    bias = chain.offset.astype(np.float32)
    if not (np.isfinite(folded).all() and np.isfinite(bias).all()):
        return
    weight = node.inputs[1][0]
    if (chain.scale != 1.0).any():
        node.inputs[1] = _replace(body, chain, weight, folded)
    has_bias = bool(bias.any())
    if has_bias:
        name = f"{weight.rpartition('/')[0] or node.name}/bias"
        node.inputs.append(_replace(body, chain, name, bias))
    if has_bias or chain.activation is not None:
        _make_fused(node, chain.activation, has_bias=has_bias)
    _reconnect(body, node, chain)


def _replace(body: Graph, chain: _Chain, name: str, value: Array) -> Ref:
    """Adds a constant, under the name of one that only the chain has used."""
    if name in chain.constants and body.uses()[(name, 0)] == 1:
        del body.nodes[name]
    return body.add_constant(name, value)


def _channels(node: Node, weights: Array) -> int:
    if node.op == "DepthwiseConv2dNative":
        return int(weights.shape[2] * weights.shape[3])
    if node.op == "MatMul" and node.attrs["transpose_b"].b:
        return int(weights.shape[0])
    return int(weights.shape[-1])


def _along_weights(node: Node, weights: Array, scale: Array) -> Array:
    """The factors of the output channels in the layout of the weights."""
    if node.op == "DepthwiseConv2dNative":
        return scale.reshape(weights.shape[2:])
    if node.op == "MatMul" and node.attrs["transpose_b"].b:
        return scale[:, None]
    return scale


def _follow(body: Graph, node: Node, channels: int) -> _Chain:
    chain = _Chain(np.ones(channels), np.zeros(channels), node)
    consumers, uses = body.consumers(), body.uses()
    while True:
        ref = (chain.last.name, 0)
        if uses.get(ref) != 1 or not consumers.get(ref):
            return chain
        (step,) = consumers[ref]
        if step.op in _TRANSPARENT and ref == step.inputs[0] and _keeps_channels(body, step):
            chain.between.append(step)
        elif step.op in _ACTIVATIONS and (node.op, step.op) != _NO_SLOPE:
            chain.activation = chain.last = step
            return chain
        elif not _apply(body, step, ref, chain):
            return chain
        else:
            chain.constants |= {r[0] for r in step.inputs if r != ref}
        chain.last = step


def _keeps_channels(body: Graph, step: Node) -> bool:
    """Whether the last axis of a transparent step's input is the last of its output."""
    if step.op == "Reshape":
        before, after = body.shape(step.inputs[0]), body.shape((step.name, 0))
        return bool(before and after and before[-1] is not None and before[-1] == after[-1])
    if step.op == "BatchToSpaceND":
        block = body.constant(step.inputs[1])
        shape = body.shape(step.inputs[0])
        return block is not None and shape is not None and len(block) < len(shape) - 1
    shape = body.shape(step.inputs[0])
    axes = list(step.attrs["squeeze_dims"].list.i)
    return shape is not None and bool(axes) and all(a % len(shape) < len(shape) - 1 for a in axes)


def _apply(body: Graph, step: Node, ref: Ref, chain: _Chain) -> bool:
    """Adds an affine step to the chain; False when it is none."""
    if step.op == "FusedBatchNormV3":
        return _apply_normalization(body, step, ref, chain)
    rule = _AFFINE.get(step.op)
    if rule is None or len(step.inputs) != 2 or step.inputs[0] == step.inputs[1]:
        return False
    is_left = step.inputs[0] == ref
    constant = _per_channel(body, step.inputs[1 if is_left else 0], step, len(chain.scale))
    factors = None if constant is None else rule(constant, is_left)
    if factors is None:
        return False
    scale, offset = factors
    chain.scale = chain.scale * scale
    chain.offset = chain.offset * scale + offset
    return True


def _apply_normalization(body: Graph, step: Node, ref: Ref, chain: _Chain) -> bool:
    arrays = [body.constant(r) for r in step.inputs[1:5]]
    if not _is_plain(step) or step.attrs["is_training"].b or step.inputs[0] != ref:
        return False
    if any(array is None or array.shape != chain.scale.shape for array in arrays):
        return False
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    scale = gamma / np.sqrt(variance + step.attrs["epsilon"].f)
    chain.scale = chain.scale * scale
    chain.offset = chain.offset * scale + beta - mean * scale
    return True


Factors = tuple[Any, Any] | None


def _divide(constant: Array, is_left: bool) -> Factors:
    return (1 / constant, 0.0) if is_left and constant.all() else None


_AFFINE: dict[str, Callable[[Array, bool], Factors]] = {
    "BiasAdd": lambda c, is_left: (1.0, c) if is_left else None,
    "Add": lambda c, is_left: (1.0, c),
    "AddV2": lambda c, is_left: (1.0, c),
    "Sub": lambda c, is_left: (1.0, -c) if is_left else (-1.0, c),
    "Mul": lambda c, is_left: (c, 0.0),
    "RealDiv": _divide,
}


def _per_channel(body: Graph, ref: Ref, step: Node, channels: int) -> Array | None:
    """A constant as one value per channel, if that is how it is broadcast."""
    constant = body.constant(ref)
    # Of a BiasAdd it is known without the result's rank, which functions do not tell.
    result = (None,) * 2 if step.op == "BiasAdd" else body.shape((step.name, 0))
    if constant is None or result is None or constant.ndim > len(result):
        return None
    if constant.size == 1 or (constant.shape and constant.shape[-1] == constant.size == channels):
        return np.broadcast_to(constant.reshape(-1).astype(np.float64), (channels,))
    return None


def _make_fused(node: Node, activation: Node | None, *, has_bias: bool) -> None:
    node.op = _FUSED[node.op]
    names = [b"BiasAdd" if has_bias else b"NoOp"]
    if activation is not None:
        names.append(activation.op.encode())
    if activation is not None and activation.op == "LeakyRelu":
        node.attrs["leakyrelu_alpha"] = activation.attrs["alpha"]
    set_attribute(node, "fused_ops", names)
    set_attribute(node, "num_args", int(has_bias))


def _reconnect(body: Graph, node: Node, chain: _Chain) -> None:
    """Puts the transparent steps behind the fused node, and drops the others."""
    end: Ref = (node.name, 0)
    for step in chain.between:
        step.inputs[0] = end
        end = (step.name, 0)
    if chain.last.name not in {step.name for step in chain.between}:
        body.redirect({(chain.last.name, 0): end})


def make_depthwise(graph: Graph) -> None:
    """Writes a convolution with as many groups as channels as a depthwise one.

    To be called before `fuse`, which does not fuse the same activations with both.
    """
    _rewrite_groups(graph, _to_depthwise)


def split_groups(graph: Graph) -> None:
    """Writes a convolution with groups as one convolution per group.

    TF.js has no groups; TensorFlow tells their number by the weights' shape alone.
    """
    _rewrite_groups(graph, _split)


def _rewrite_groups(graph: Graph, rewrite: Callable[[Graph, Node, int], None]) -> None:
    for body in graph.bodies():
        for node in list(body.nodes.values()):
            groups = _groups(body, node)
            if groups > 1:
                rewrite(body, node, groups)
        body.prune()


def _groups(body: Graph, node: Node) -> int:
    if node.op not in ("Conv2D", "_FusedConv2D") or not _is_plain(node):
        return 1
    weights, shape = body.constant(node.inputs[1]), body.shape(node.inputs[0])
    if weights is None or shape is None or shape[-1] is None:
        return 1
    return int(shape[-1] // weights.shape[2])


def _to_depthwise(body: Graph, node: Node, groups: int) -> None:
    weights = np.asarray(body.constant(node.inputs[1]))
    strides = list(node.attrs["strides"].list.i)
    if weights.shape[2] != 1 or strides[1] != strides[2]:
        return
    each = weights.shape[3] // groups
    node.inputs[1] = body.add_constant(
        f"{node.name}/depthwise", weights.reshape(*weights.shape[:2], groups, each)
    )
    node.op = "DepthwiseConv2dNative"


def _split(body: Graph, node: Node, groups: int) -> None:
    axis = body.add_constant(f"{node.name}/axis", np.array(3, np.int32))
    split = body.add(Node(f"{node.name}/split", "Split", [axis, node.inputs[0]]))
    set_attribute(split, "num_split", groups)
    parts = [np.split(np.asarray(body.constant(r)), groups, -1) for r in node.inputs[1:]]
    made: list[Ref] = []
    for k in range(groups):
        own = [body.add_constant(f"{node.name}/{k}/weight", part[k]) for part in parts]
        part = Node(f"{node.name}/{k}", node.op, [(split.name, k), *own], dict(node.attrs))
        made.append((body.add(part).name, 0))
    joined = body.add(Node(f"{node.name}/joined", "ConcatV2", [*made, axis], shapes=node.shapes))
    set_attribute(joined, "N", groups)
    body.redirect({(node.name, 0): (joined.name, 0)})
