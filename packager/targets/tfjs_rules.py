"""How Keras' layers of normalisation, pooling, shape and merging are said in TF.js.

A rule turns one call of a Keras layer into a chain of TF.js layers that computes the same numbers,
or refuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from packager.targets.tfjs_activations import ACTIVATION_RULES
from packager.targets.tfjs_attention import ATTENTION_RULES
from packager.targets.tfjs_convolutions import CONVOLUTION_RULES
from packager.targets.tfjs_parts import (
    TENSOR,
    Chain,
    Part,
    Refused,
    Rule,
    Site,
    as_tuple,
    custom,
    operator,
    rescaling,
    reshape,
    short,
)
from packager.targets.tfjs_preprocessing import PREPROCESSING_RULES
from packager.targets.tfjs_recurrent import RECURRENT_RULES
from packager.targets.tfjs_stock import STOCK, stock

# Layers that take several tensors.
MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot")
_ELEMENTWISE = ("Add", "Multiply", "Average", "Maximum", "Minimum")
SEVERAL_INPUTS = (*MERGES, *ATTENTION_RULES)


def _axes(axis: int | Sequence[int], rank: int) -> list[int]:
    listed = [axis] if isinstance(axis, int) else list(axis)
    return sorted(a % rank for a in listed)


def _is_last(axis: int | Sequence[int], rank: int) -> bool:
    return _axes(axis, rank) == [rank - 1]


def _batch_normalization(site: Site) -> Chain:
    rank = len(site.shape)
    if _is_last(site.config["axis"], rank) and rank <= 4:
        return stock(site, axis=-1)
    sizes = [size for size in site.shape[1:] if size is not None]
    if _is_last(site.config["axis"], rank) and len(sizes) == rank - 1:
        # TF.js has no five axes: the first ones become one for a moment.
        return (
            reshape([math.prod(sizes[:-2]), *sizes[-2:]]),
            *stock(site, axis=-1),
            reshape(sizes),
        )
    # TF.js broadcasts other axes wrongly: as one multiplication and addition per channel.
    scale, offset = batch_norm_line(site.config, site.weights)
    shape = [1] * rank
    shape[_axes(site.config["axis"], rank)[0]] = len(scale)
    weights = {"scale": scale.reshape(shape), "offset": offset.reshape(shape)}
    return (
        operator("mul", TENSOR, {"weight": "scale"}, weights={"scale": weights["scale"]}),
        operator("add", TENSOR, {"weight": "offset"}, weights={"offset": weights["offset"]}),
    )


def batch_norm_line(
    config: dict[str, Any], weights: dict[str, np.ndarray[Any, Any]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """BatchNormalization at inference as `x * scale + offset`, per channel, in float32."""
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    scale = wide.get("gamma", 1.0) / np.sqrt(wide["moving_variance"] + config["epsilon"])
    offset = wide.get("beta", 0.0) - wide["moving_mean"] * scale
    return scale.astype(np.float32), offset.astype(np.float32)


def _layer_normalization(site: Site) -> Chain:
    rms = bool(site.config.get("rms_scaling"))
    if not rms and len(site.shape) <= 4:
        return stock(site)
    return _own_layer_norm(site, rms=rms, gamma="gamma")


def _rms_normalization(site: Site) -> Chain:
    return _own_layer_norm(site, rms=True, gamma="scale")


def _own_layer_norm(site: Site, *, rms: bool, gamma: str) -> Chain:
    rank = len(site.shape)
    axes = _axes(site.config["axis"], rank)
    shape = [site.shape[i] if i in axes else 1 for i in range(rank)]
    settings = {"axes": axes, "epsilon": site.config["epsilon"], "rms": rms, "shape": shape}
    names = {gamma: "gamma", "beta": "beta"}
    weights = {names[name]: array for name, array in site.weights.items()}
    return (custom("LayerNormalization", settings, weights),)


def _group_normalization(site: Site) -> Chain:
    config = site.config
    channels = site.shape[config["axis"]]
    groups = channels if config["groups"] == -1 else config["groups"]
    settings = {"groups": groups, "axis": config["axis"], "epsilon": config["epsilon"]}
    return (custom("GroupNormalization", settings, site.weights),)


def _unit_normalization(site: Site) -> Chain:
    return (operator("normalize", TENSOR, site.config["axis"], 2, 1e-12),)


def _spectral_normalization(site: Site) -> Chain:
    """At inference the wrapped layer with the weights as they are."""
    described = site.config["layer"]
    name = described["config"].get("name", "")
    weights = {
        path.removeprefix(f"{name}/"): array
        for path, array in site.weights.items()
        if path != "vector_u"
    }
    return site.inner(
        site.with_layer(
            class_name=described["class_name"],
            config=described["config"],
            module=described.get("module") or "",
            weights=weights,
        )
    )


def _softmax(site: Site) -> Chain:
    axis, rank = site.config["axis"], len(site.shape)
    mask = site.argument(1, "mask")
    if isinstance(axis, (list, tuple)) and len(axis) == 1:
        axis = axis[0]
    if not isinstance(axis, int):
        raise Refused("TF.js takes the softmax over one axis", "reshape these axes to one")
    if mask is not None:
        return (operator("maskedSoftmax", TENSOR, mask, axis % rank),)
    if axis % rank == rank - 1:
        return (Part("Softmax", {"axis": -1}),)
    return (operator("softmax", TENSOR, axis % rank),)


def _max_pooling_3d(site: Site) -> Chain:
    """In two passes: the wasm back end starts from the smallest number above zero."""
    pool = as_tuple(site.config["pool_size"], 3)
    strides = as_tuple(site.config.get("strides") or pool, 3)
    padding = site.config["padding"]

    def part(pool_size: list[int], steps: list[int]) -> Part:
        return Part("MaxPooling2D", {"pool_size": pool_size, "strides": steps, "padding": padding})

    return _three_axes(
        site, part(list(pool[:2]), list(strides[:2])), part([1, pool[2]], [1, strides[2]])
    )


def _global_pooling(site: Site) -> Chain:
    config, shape = site.config, site.shape
    mask = site.argument(1, "mask")
    kept = config.get("keepdims")
    if mask is not None and "Average" in site.layer.class_name:
        return (operator("maskedMean", TENSOR, mask, bool(kept), outputs=[site.output.shape]),)
    rank = len(shape) - 2
    if rank == 3:
        # The first two axes become one.
        flat = (None if None in shape[1:3] else math.prod(shape[1:3]), *shape[3:])  # type: ignore[arg-type]
        plane = site.with_layer(class_name=site.layer.class_name.replace("3D", "2D"))
        chain: Chain = (reshape(flat), *stock(plane))
    else:
        chain = stock(site)
    return (*chain, reshape([*[1] * rank, shape[-1]])) if kept else chain


def _adaptive_pooling(site: Site) -> Chain:
    rank = len(site.shape) - 2
    kind = "max" if "Max" in site.layer.class_name else "mean"
    counts = list(as_tuple(site.config["output_size"], rank))
    if None in counts or None in site.shape[1:-1]:
        raise Refused("its sizes are free", "give the input a fixed size")
    settings = {"counts": counts, "kind": kind}
    return (custom("AdaptivePooling", settings, outputs=[site.output.shape]),)


def _merge(site: Site) -> Chain:
    shapes = site.shapes
    if len(shapes) == 1:
        return ()
    if len({len(shape) for shape in shapes}) == 1:
        return stock(site)
    raise Refused(
        f"TF.js merges inputs of one rank, here {[list(s) for s in shapes]}",
        "reshape the inputs to one rank",
    )


def _subtract(site: Site) -> Chain:
    if len({len(shape) for shape in site.shapes}) != 1:
        raise Refused("TF.js merges inputs of one rank", "reshape the inputs to one rank")
    return minus()


def minus() -> Chain:
    """`a - b` as `a + (-1 * b)`, which rounds alike."""
    opposite = Part("Rescaling", {"scale": -1.0, "offset": 0.0}, sources=((-1, 1),))
    return (opposite, Part("Add", sources=((-1, 0), (0, 0))))


def _dot(site: Site) -> Chain:
    axes = as_tuple(site.config["axes"], 2)
    a, b = site.shapes
    # TF.js was seen to be right for these.
    if max(len(a), len(b)) > 3 or 0 in [x % len(s) for x, s in zip(axes, site.shapes, strict=True)]:
        raise Refused("TF.js takes products of inputs with at most three axes", "use ops.einsum")
    return stock(site)


def _reshape(site: Site) -> Chain:
    target = [None if size in (None, -1) else int(size) for size in site.config["target_shape"]]
    known = site.output.shape[1:] if 0 in site.call.outputs else tuple(target)
    return (reshape(known if list(known).count(None) <= target.count(None) else target),)


def _zero_padding_1d(site: Site) -> Chain:
    before, after = as_tuple(site.config["padding"], 2)
    return _one_axis(site, Part("ZeroPadding2D", {"padding": [[before, after], [0, 0]]}))


def _cropping_1d(site: Site) -> Chain:
    before, after = as_tuple(site.config["cropping"], 2)
    return _one_axis(site, Part("Cropping2D", {"cropping": [[before, after], [0, 0]]}))


def _up_sampling_1d(site: Site) -> Chain:
    size = [as_tuple(site.config["size"], 1)[0], 1]
    return _one_axis(site, Part("UpSampling2D", {"size": size, "interpolation": "nearest"}))


def _one_axis(site: Site, part: Part) -> Chain:
    """The two-dimensional class on steps that are the rows of an image of width 1."""
    steps, channels = site.shape[1:]
    return (reshape([steps, 1, channels]), part, reshape(site.output.shape[1:]))


def _zero_padding_3d(site: Site) -> Chain:
    first, second, third = site.config["padding"]
    return _three_axes(
        site,
        Part("ZeroPadding2D", {"padding": [first, second]}),
        Part("ZeroPadding2D", {"padding": [[0, 0], third]}),
    )


def _cropping_3d(site: Site) -> Chain:
    first, second, third = site.config["cropping"]
    return _three_axes(
        site,
        Part("Cropping2D", {"cropping": [first, second]}),
        Part("Cropping2D", {"cropping": [[0, 0], third]}),
    )


def _up_sampling_3d(site: Site) -> Chain:
    first, second, third = as_tuple(site.config["size"], 3)
    return _three_axes(
        site,
        Part("UpSampling2D", {"size": [first, second], "interpolation": "nearest"}),
        Part("UpSampling2D", {"size": [1, third], "interpolation": "nearest"}),
    )


def _three_axes(site: Site, first_two: Part, third: Part) -> Chain:
    """Two passes of a two-dimensional class: over the first two axes, then over the third."""
    a, b, c, channels = site.shape[1:]
    output = site.output.shape[1:]
    if None in (a, b, c, channels, *output):
        raise Refused("the shape has free axes", "give the model's input a fixed shape")
    rows = output[0] * output[1]  # type: ignore[operator]
    return (
        reshape([a, b, c * channels]),  # type: ignore[operator]
        first_two,
        reshape([rows, c, channels]),
        third,
        reshape(output),
    )


def _up_sampling_2d(site: Site) -> Chain:
    method = site.config["interpolation"]
    if method == "nearest":
        return stock(site)
    if method != "bilinear":
        raise Refused(
            f"TF.js has no {method} upsampling", "use nearest, bilinear, or Conv2DTranspose"
        )
    factors = list(as_tuple(site.config["size"], 2))
    settings = {"method": method, "factors": factors}
    return (custom("Resize", settings, outputs=[site.output.shape]),)


def _layer_scale(site: Site) -> Chain:
    """ConvNeXt's own layer: one factor per channel."""
    (gamma,) = site.weights.values()
    return (rescaling(short(gamma), 0.0),)


def _masking(site: Site) -> Chain:
    return (operator("masking", TENSOR, site.config["mask_value"]),)


def _reversible_embedding(site: Site) -> Chain:
    if not (site.argument(1, "reverse") or False):
        embed = {"embeddings": site.weights["embeddings"]}
        return stock(site.with_layer(class_name="Embedding", weights=embed))
    kernel = site.weights.get("reverse_embeddings")
    kernel = site.weights["embeddings"].T if kernel is None else kernel
    dense = operator(
        "matmul",
        TENSOR,
        {"weight": "kernel"},
        outputs=[site.output.shape],
        weights={"kernel": np.ascontiguousarray(kernel)},
    )
    cap = site.config.get("logit_soft_cap")
    return (dense,) if cap is None else (dense, operator("softCap", TENSOR, cap))


def _each(names: Iterable[str], rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


def _numbered(name: str, *ranks: int) -> list[str]:
    return [f"{kind}{name}{n}D" for kind in ("Max", "Average") for n in ranks]


LAYER_RULES: dict[str, Rule] = {
    **_each(STOCK, stock),
    **CONVOLUTION_RULES,
    **ACTIVATION_RULES,
    **ATTENTION_RULES,
    **RECURRENT_RULES,
    **PREPROCESSING_RULES,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "GroupNormalization": _group_normalization,
    "UnitNormalization": _unit_normalization,
    "SpectralNormalization": _spectral_normalization,
    "Softmax": _softmax,
    **{f"Global{name}": _global_pooling for name in _numbered("Pooling", 1, 2, 3)},
    "MaxPooling3D": _max_pooling_3d,
    **{f"Adaptive{name}": _adaptive_pooling for name in _numbered("Pooling", 1, 2, 3)},
    **_each((*_ELEMENTWISE, "Concatenate"), _merge),
    "Subtract": _subtract,
    "Dot": _dot,
    "Reshape": _reshape,
    "ZeroPadding1D": _zero_padding_1d,
    "ZeroPadding3D": _zero_padding_3d,
    "Cropping1D": _cropping_1d,
    "Cropping3D": _cropping_3d,
    "UpSampling1D": _up_sampling_1d,
    "UpSampling2D": _up_sampling_2d,
    "UpSampling3D": _up_sampling_3d,
    "LayerScale": _layer_scale,
    "Masking": _masking,
    "ReversibleEmbedding": _reversible_embedding,
}
