"""Models that no TensorFlow graph holds: their `call` runs Python on the values of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from packager.errors import ModelError, brief
from packager.loaders.opened import End, OpenedModel, Tensors

# Sizes for free axes: an output's axis that differs between the two is free.
_SIZES = (8, 12)
_ROWS = 16
_SEED = 0
Returned = list[tuple[tuple[int | None, ...], str]]


def returned_by(
    apply: Callable[[Tensors], list[Any]], inputs: tuple[End, ...], source: str
) -> tuple[Returned, str]:
    """Finds out what a model whose `call` is code returns: by tracing it, or else by running it.

    Args:
        apply: The model: tensors by input name to a list of tensors.
        inputs: Its inputs.
        source: The model's file, for messages.

    Returns:
        Shape and dtype of each output, and why the model cannot be traced; empty where it can.

    Raises:
        ModelError: It can neither be traced nor be run on random inputs.
    """
    import tensorflow as tf

    function = tf.function(lambda **tensors: apply(tensors), autograph=False)
    specs = {e.name: tf.TensorSpec(e.shape, e.dtype, name=e.name) for e in inputs}
    try:
        outputs = function.get_concrete_function(**specs).structured_outputs
        return [(tuple(one.shape), one.dtype.name) for one in outputs], ""
    # The code is the user's: it may raise anything.
    except Exception as error:
        reason = brief(error)
    small, large = (_run(apply, inputs, size, source) for size in _SIZES)
    return [
        (
            (None, *(a if a == b else None for a, b in zip(x.shape[1:], y.shape[1:], strict=True))),
            x.dtype.name,
        )
        for x, y in zip(small, large, strict=True)
    ], reason


def activations(opened: OpenedModel) -> dict[str, str]:
    """Measures `softmax`, `sigmoid` or `none` by output name: there is no graph to read.

    A softmax sums to 1, a sigmoid stays between 0 and 1, on random inputs.
    """
    values = opened.call(random_inputs(opened.inputs, _SIZES[0]))
    return {end.name: _measured(np.asarray(values[end.name])) for end in opened.outputs}


def _measured(values: np.ndarray[Any, Any]) -> str:
    if values.dtype.kind != "f" or values.ndim < 2 or values.min() < 0.0 or values.max() > 1.0:
        return "none"
    sums_to_one = np.allclose(values.sum(-1), 1.0, rtol=0.0, atol=1e-5)
    return "softmax" if sums_to_one and values.shape[-1] > 1 else "sigmoid"


def random_inputs(inputs: tuple[End, ...], size: int) -> Tensors:
    """Returns seeded inputs: normally distributed, larger and larger, or indices 0 and 1."""
    import tensorflow as tf

    random = np.random.default_rng(_SEED)
    tensors = {}
    for end in inputs:
        shape = (_ROWS, *(n or size for n in end.shape[1:]))
        values: Any = random.normal(size=shape) * np.linspace(0.1, 4.0, _ROWS).reshape(
            -1, *(1,) * (len(shape) - 1)
        )
        if not tf.dtypes.as_dtype(end.dtype).is_floating:
            values = random.integers(0, 2, shape)
        tensors[end.name] = tf.constant(values, end.dtype)
    return tensors


def _run(
    apply: Callable[[Tensors], list[Any]], inputs: tuple[End, ...], size: int, source: str
) -> list[np.ndarray[Any, Any]]:
    try:
        return [np.asarray(value) for value in apply(random_inputs(inputs, size))]
    # The code is the user's: it may raise anything.
    except Exception as error:
        raise ModelError(
            f"{source}: the model can be run neither in a graph nor on random inputs:"
            f" {brief(error)}",
            hint="give it a build() that takes the shape of each argument of call(), and call it"
            " on a sample before saving",
        ) from error
