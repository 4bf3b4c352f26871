"""What the names of a `.tflite` file's tensors tell of the layers that they come from."""

from __future__ import annotations

import re

# Operators of TensorFlow that hold a layer's own weights; of a fused operator's names, the layer
# with one of them names it.
_WEIGHTED = ("convolution", "depthwise", "separable_conv2d", "MatMul", "conv_transpose", "einsum")
_COPY = re.compile(r"_\d+$")


def plain(name: str) -> str:
    """Takes the number away that Keras adds to each scope when it exports: `digits_1/conv_1`."""
    return ";".join(_plain_path(path) for path in name.split(";"))


def layer_of(name: str) -> str:
    """The layer in a plain name: `digits/conv/convolution` is of `conv`.

    A fused operator carries the names of all that went into it; the one with weights counts.
    """
    paths = [path.split("/") for path in name.split(";") if path]
    if not paths:
        return ""
    weighted = [p for p in paths if any(p[-1].startswith(op) for op in _WEIGHTED)]
    chosen = (weighted or paths)[0]
    return "/".join(chosen[1:-1]) if len(chosen) > 2 else chosen[0]


def _plain_path(path: str) -> str:
    first, *rest = path.split("/")
    suffix = _COPY.search(first)
    if suffix is None or not rest:
        return path
    return "/".join(part.removesuffix(suffix[0]) for part in (first, *rest))
