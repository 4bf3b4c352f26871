"""Recurrent layers of Keras models: loops, or their steps one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from packager.errors import ModelError, UnsupportedError

# Beyond that a graph of single steps takes minutes to convert and is slow to load.
MAX_STEPS = 1024


def refuse_stateful(model: Any, source: str) -> None:
    """Refuses a model of either Keras whose answer depends on the calls before it.

    Raises:
        ModelError: Names the layer.
    """
    for layer in model._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False) and hasattr(layer, "cell"):
            raise ModelError(
                f"{source}: the layer {layer.name!r} ({type(layer).__name__}) is stateful: its"
                " answer depends on the calls before it",
                hint="build the model with stateful=False and load the weights into it",
            )


@contextlib.contextmanager
def unrolled(model: Any) -> Iterator[bool]:
    """Lets the model be traced without loops for a while: what is in them cannot be quantized.

    Args:
        model: A Keras 3 model, or None.

    Yields:
        Whether it has recurrent layers.

    Raises:
        UnsupportedError: They take too many steps.
    """
    layers = _layers(model)
    steps = sum(_steps(layer) for layer in layers)
    if steps > MAX_STEPS:
        raise UnsupportedError(
            f"the recurrent layers take {steps} steps, which are unrolled for integers, at most"
            f" {MAX_STEPS}: {', '.join(repr(layer.name) for layer in layers)}",
            hint="use tflite/dynamic_int8 or tflite/float16, which keep the loop",
        )
    before = [layer.unroll for layer in layers]
    for layer in layers:
        layer.unroll = True
    try:
        yield bool(layers)
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.unroll = value


def _layers(model: Any) -> list[Any]:
    import keras

    return (
        []
        if model is None
        else [x for x in model._flatten_layers() if isinstance(x, keras.layers.RNN)]
    )


def _steps(layer: Any) -> int:
    """The number of steps; 1 where only --input-shape tells."""
    with contextlib.suppress(AttributeError, ValueError):
        return int(layer.input.shape[1] or 1)
    # Inside Bidirectional: what it was built with.
    shape = next(iter((getattr(layer, "_build_shapes_dict", None) or {}).values()), None)
    return int(shape[1] or 1) if shape else 1
