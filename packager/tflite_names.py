"""What the names of a `.tflite` file's tensors tell of the layers that they come from."""

from __future__ import annotations

import re

# Operators of TensorFlow that hold a layer's own weights; of a fused operator's names, the layer
# with one of them names it.
WEIGHTED = (
    "convolution", "depthwise", "separable_conv2d", "MatMul", "Tensordot", "conv_transpose",
    "einsum",
)  # fmt: skip
# Scopes that Keras' layers open for themselves.
_INTERNAL = ("batchnorm", "separable_conv2d", "moments", "Gelu")
_COPY = re.compile(r"_\d+$")


def plain(name: str) -> str:
    """Takes the number away that Keras adds to each scope when it exports: `digits_1/conv_1`."""
    return ";".join(_plain_path(path) for path in name.split(";"))


def layer_of(name: str) -> str:
    """The layer in a plain name: `digits/conv/convolution` is of `conv`.

    A fused operator carries the names of all that went into it, the last step first: the one
    with weights counts, else the first step.
    """
    paths = [path.split("/") for path in name.split(";") if path]
    if not paths:
        return ""
    weighted = [p for p in paths if p[-1].startswith(WEIGHTED)]
    chosen = weighted[0] if weighted else paths[-1]
    scopes = chosen[1:-1] if len(chosen) > 2 else chosen[:1]
    while len(scopes) > 1 and scopes[-1] in _INTERNAL:
        scopes = scopes[:-1]
    return "/".join(scopes)


def _plain_path(path: str) -> str:
    first, *rest = path.split("/")
    suffix = _COPY.search(first)
    if suffix is None or not rest:
        return path
    return "/".join(part.removesuffix(suffix[0]) for part in (first, *rest))
