"""Convolutions: those of TF.js, and classes of web/packager-layers.js for what these lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.targets.tfjs_activations import activation, inside
from packager.targets.tfjs_parts import (
    Chain,
    Config,
    Part,
    Refused,
    Rule,
    Site,
    as_tuple,
    custom,
    reshape,
)
from packager.targets.tfjs_stock import stock

Array = np.ndarray[Any, Any]


def _rank(site: Site) -> int:
    return len(site.shape) - 2


def _axes(site: Site, key: str) -> tuple[int, ...]:
    return as_tuple(site.config.get(key, 1), _rank(site))


def _settings(site: Site) -> Config:
    """Settings of the classes of packager-layers.js, which see one dimension as an image."""
    rank = _rank(site)
    padding = site.config["padding"]
    size, dilation = _axes(site, "kernel_size"), _axes(site, "dilation_rate")
    before = dilation[0] * (size[0] - 1) if padding == "causal" else 0
    end = (1,) * (2 - rank)
    return {
        "rank": rank,
        "strides": [*_axes(site, "strides"), *end],
        "dilation": [*dilation, *end],
        "padding": "valid" if padding == "causal" else padding,
        "before": before,
        "activation": inside(site.config.get("activation")),
    }


def _image_kernel(kernel: Array, rank: int) -> Array:
    return kernel[:, np.newaxis] if rank == 1 else kernel


def _with_bias(site: Site, **weights: Array) -> dict[str, Array]:
    return weights | ({"bias": site.weights["bias"]} if "bias" in site.weights else {})


def _conv(site: Site) -> Chain:
    groups = site.config.get("groups", 1)
    if groups != 1:
        return _grouped(site, groups)
    if site.config["padding"] == "causal":
        return _causal(site)
    return stock(site)


def _causal(site: Site) -> Chain:
    # TF.js refuses causal padding; zeros before the first step are the same. Padding exists for
    # images only, so the steps become the rows of a one-pixel-wide image for a moment.
    (size,), (dilation,) = _axes(site, "kernel_size"), _axes(site, "dilation_rate")
    before = dilation * (size - 1)
    steps, channels = site.shape[1:]
    padded = None if steps is None else steps + before
    valid = site.with_layer(config=site.config | {"padding": "valid"})
    return (
        reshape([steps, 1, channels]),
        Part("ZeroPadding2D", {"padding": [[before, 0], [0, 0]]}),
        reshape([padded, channels]),
        *stock(valid),
    )


def _grouped(site: Site, groups: int) -> Chain:
    kernel, rank = site.weights["kernel"], _rank(site)
    if rank == 2 and kernel.shape[2] == 1 and max(_axes(site, "dilation_rate")) == 1:
        return _depthwise_of_groups(site, groups)
    if rank == 3:
        settings = {
            "groups": groups,
            "strides": list(_axes(site, "strides")),
            "dilation": list(_axes(site, "dilation_rate")),
            "padding": site.config["padding"],
            "activation": inside(site.config.get("activation")),
        }
        weights = _with_bias(site, kernel=kernel)
        return (custom("GroupedConv3D", settings, weights, outputs=[site.output.shape]),)
    settings = _settings(site) | {"groups": groups}
    weights = _with_bias(site, kernel=_image_kernel(kernel, rank))
    return (custom("Conv", settings, weights, outputs=[site.output.shape]),)


def _depthwise_of_groups(site: Site, groups: int) -> Chain:
    kernel = site.weights["kernel"]
    multiplier = kernel.shape[3] // groups
    depthwise = site.with_layer(
        class_name="DepthwiseConv2D",
        config=site.config | {"depth_multiplier": multiplier},
        weights=site.weights | {"kernel": kernel.reshape(*kernel.shape[:2], groups, multiplier)},
    )
    return _depthwise(depthwise)


def _is_plain(site: Site) -> bool:
    return max(_axes(site, "dilation_rate")) == 1 and site.config["padding"] != "causal"


def _as_image(site: Site, class_name: str, *kernels: str) -> Chain:
    """The two-dimensional class on steps that are the rows of an image of width 1."""
    steps, channels = site.shape[1:]
    (size,), (stride,) = _axes(site, "kernel_size"), _axes(site, "strides")
    # TF.js wants equal strides for depthwise kernels; over a width of 1 any stride is the same.
    strides = [stride, 1] if class_name == "Conv2DTranspose" else [stride, stride]
    config = site.config | {"kernel_size": [size, 1], "strides": strides, "dilation_rate": [1, 1]}
    weights = site.weights | {name: _image_kernel(site.weights[name], 1) for name in kernels}
    image = site.with_layer(class_name=class_name, config=config, weights=weights)
    return (reshape([steps, 1, channels]), *stock(image), reshape(site.output.shape[1:]))


def _depthwise(site: Site) -> Chain:
    rank = _rank(site)
    if rank == 2 and max(_axes(site, "dilation_rate")) == 1:
        return stock(site)
    if rank == 1 and _is_plain(site):
        return _as_image(site, "DepthwiseConv2D", "kernel")
    # TF.js drops the dilation of its own class.
    weights = _with_bias(site, kernel=_image_kernel(site.weights["kernel"], rank))
    return (custom("DepthwiseConv", _settings(site), weights, outputs=[site.output.shape]),)


def _separable(site: Site) -> Chain:
    if _rank(site) == 2:
        return stock(site)
    if _is_plain(site):
        return _as_image(site, "SeparableConv2D", "depthwise_kernel", "pointwise_kernel")
    weights = _with_bias(
        site,
        depthwiseKernel=_image_kernel(site.weights["depthwise_kernel"], 1),
        pointwiseKernel=_image_kernel(site.weights["pointwise_kernel"], 1),
    )
    return (custom("SeparableConv", _settings(site), weights, outputs=[site.output.shape]),)


def _transpose(site: Site) -> Chain:
    """A transposed convolution; with dilation, its kernel is written with the holes filled."""
    rank, dilation = _rank(site), _axes(site, "dilation_rate")
    size = [d * (k - 1) + 1 for k, d in zip(_axes(site, "kernel_size"), dilation, strict=True)]
    kernel = site.weights["kernel"]
    if max(dilation) > 1:
        spread = np.zeros((*size, *kernel.shape[rank:]), kernel.dtype)
        spread[tuple(slice(None, None, d) for d in dilation)] = kernel
        kernel = spread
    site = site.with_layer(
        config=site.config | {"kernel_size": size, "dilation_rate": 1},
        weights=site.weights | {"kernel": kernel},
    )
    if rank == 3:
        return _transpose_3d(site, size)
    if site.config.get("output_padding") is None and rank > 1 and max(dilation) == 1:
        return stock(site)
    if site.config.get("output_padding") is None and max(dilation) == 1:
        return _as_image(site, "Conv2DTranspose", "kernel")
    sizes = site.output.shape[1:-1]
    if None in sizes:
        raise Refused(
            f"TF.js has no {site.layer.class_name} with output_padding or dilation here",
            "leave output_padding and dilation_rate out",
        )
    settings = _settings(site) | {"size": [*sizes, *(1,) * (2 - rank)]}
    weights = _with_bias(site, kernel=_image_kernel(kernel, rank))
    return (custom("ConvTranspose", settings, weights, outputs=[site.output.shape]),)


def _transpose_3d(site: Site, size: list[int]) -> Chain:
    """The wasm back end computes Conv3DTranspose wrongly; see packager-layers.js."""
    strides, given, sizes = _axes(site, "strides"), site.shape[1:-1], site.output.shape[1:-1]
    edges = []
    for k, s, before, after in zip(size, strides, given, sizes, strict=True):
        if before is None or after is None:
            raise Refused("the size is free", "give the input a fixed size")
        # A forward convolution of the output with this padding would give the input.
        total = max((before - 1) * s + k - after, 0) if site.config["padding"] == "same" else 0
        first = k - 1 - total // 2
        edges.append([first, after + k - 1 - first - ((before - 1) * s + 1)])
    settings = {
        "strides": list(strides),
        "edges": edges,
        "activation": inside(site.config.get("activation")),
    }
    weights = _with_bias(site, kernel=site.weights["kernel"])
    return (custom("ConvTranspose3D", settings, weights, outputs=[site.output.shape]),)


def _einsum_dense(site: Site) -> Chain:
    equation = _plain_equation(site.config["equation"], len(site.shape))
    name, behind = activation(site.config.get("activation"))
    settings = {"equation": equation, "activation": name}
    weights = _with_bias(site, kernel=site.weights["kernel"])
    if set(site.weights) - {"kernel", "bias"}:
        raise Refused("it has more weights than kernel and bias", "merge the LoRA weights")
    return (custom("EinsumDense", settings, weights, outputs=[site.output.shape]), *behind)


def _plain_equation(equation: str, rank: int) -> str:
    """Replaces the ellipsis of an einsum over one input of this rank by letters."""
    equation = equation.replace(" ", "")
    if "..." not in equation:
        return equation
    taken = len(equation.partition(",")[0].replace("...", ""))
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    return equation.replace("...", "".join(free[: rank - taken]))


CONVOLUTION_RULES: dict[str, Rule] = {
    **{f"Conv{n}D": _conv for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": _transpose for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": _depthwise for n in (1, 2)},
    **{f"SeparableConv{n}D": _separable for n in (1, 2)},
    "EinsumDense": _einsum_dense,
}
