"""What the names of a `.tflite` file's tensors tell of the layers that they come from."""

from __future__ import annotations

import re
from collections.abc import Collection

# Operators of TensorFlow that hold a layer's own weights; of a fused operator's names, the layer
# with one of them names it.
_WEIGHTED = ("convolution", "depthwise", "separable_conv2d", "MatMul", "conv_transpose", "einsum")
_COPY = re.compile(r"_\d+$")


def plain(name: str, known: Collection[str] = ()) -> str:
    """Takes the number away that Keras adds to each scope when it exports: `digits_1/conv_1`.

    Args:
        name: The tensor's name.
        known: Names of the model's layers; a scope that is one of them is left as it is.
    """
    return ";".join(_plain_path(path, known) for path in name.split(";"))


def layer_of(name: str, known: Collection[str] = ()) -> str:
    """The layer in a plain name: `digits/conv/convolution` is of `conv`.

    A fused operator carries the names of all that went into it, the last step first: the one
    with weights counts, else the first step.
    """
    paths = [path.split("/") for path in name.split(";") if path]
    if not paths:
        return ""
    weighted = [p for p in paths if any(p[-1].startswith(op) for op in _WEIGHTED)]
    return _layer(weighted[0] if weighted else paths[-1], known)


def fused_layers(name: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """All layers in a plain name, each once, in the order of the name."""
    paths = [path.split("/") for path in name.split(";") if path]
    return tuple(dict.fromkeys(_layer(path, known) for path in paths))


def _layer(path: list[str], known: Collection[str]) -> str:
    """The layer of one path: the innermost known one, else what is between model and operator."""
    for end in range(len(path), 0, -1):
        for start in range(end):
            if "/".join(path[start:end]) in known:
                return "/".join(path[start:end])
    return "/".join(path[1:-1]) if len(path) > 2 else path[0]


def _plain_path(path: str, known: Collection[str]) -> str:
    first, *rest = path.split("/")
    suffix = _COPY.search(first)
    if suffix is None or not rest:
        return path
    return "/".join(
        part if part in known else part.removesuffix(suffix[0]) for part in (first, *rest)
    )
