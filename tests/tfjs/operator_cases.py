"""Models of operators on tensors, which Keras 3 turns into layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from whole_models import FLAT, IMAGE, STEPS, Case


def operator_cases() -> Iterator[Case]:
    import keras

    ops = keras.ops
    yield from elementwise(ops)
    yield from shapes(ops)
    yield from several(ops)
    yield Case("operators", operators)
    for name, shape, function in (
        ("mean", IMAGE, lambda x: ops.mean(x, axis=(1, 2))),
        ("mean_kept", IMAGE, lambda x: ops.mean(x, axis=[1, 2], keepdims=True)),
        ("mean_last", STEPS, lambda x: ops.mean(x, axis=-1)),
        ("sum", STEPS, lambda x: ops.sum(x, axis=1, keepdims=True)),
        ("max", STEPS, lambda x: ops.max(x, axis=1)),
        ("min", STEPS, lambda x: ops.amin(x, axis=2)),
        ("prod", STEPS, lambda x: ops.prod(x, axis=2)),
        ("std", STEPS, lambda x: ops.std(x, axis=1)),
        ("var", IMAGE, lambda x: ops.var(x, axis=(1, 2), keepdims=True)),
        ("argmax", STEPS, lambda x: ops.argmax(x, axis=-1)),
        ("argmin", STEPS, lambda x: ops.argmin(x, axis=1)),
        ("any", STEPS, lambda x: ops.any(x > 1.2, axis=-1)),
        ("all", STEPS, lambda x: ops.all(x > -0.8, axis=-1)),
        ("logsumexp", STEPS, lambda x: ops.logsumexp(x, axis=-1)),
        ("softmax", STEPS, lambda x: ops.softmax(x, axis=1)),
        ("log_softmax", STEPS, lambda x: ops.log_softmax(x, axis=-1)),
        ("normalize", STEPS, lambda x: ops.normalize(x, axis=-1)),
        ("norm", STEPS, lambda x: ops.norm(x, axis=-1)),
        ("cumsum", STEPS, lambda x: ops.cumsum(x, axis=1)),
        ("moments", STEPS, lambda x: list(ops.moments(x, axes=[1]))),
        ("one_hot", FLAT, lambda x: ops.one_hot(whole(x), 5)),
    ):
        yield Case(f"ops_{name}", lambda shape=shape, f=function: operator(f, shape))


def whole(x: Any) -> Any:
    import keras

    return keras.ops.cast(keras.ops.clip(keras.ops.abs(x * 3), 0, 4), "int32")


def elementwise(ops: Any) -> Iterator[Case]:
    functions: dict[str, Callable[[Any], Any]] = {
        "minus": lambda x: 2.0 - (x - 3) / 255,
        "times": lambda x: (x * 2.5 + 1) * -1,
        "divide": lambda x: 1.0 / (ops.abs(x) + 1),
        "power": lambda x: ops.abs(x) ** 1.5,
        "square_root": lambda x: ops.sqrt(ops.square(x) + 0.1),
        "rsqrt": lambda x: ops.rsqrt(ops.square(x) + 0.1),
        "maximum": lambda x: ops.maximum(x, 0.2),
        "minimum": lambda x: ops.minimum(0.2, x),
        "clip": lambda x: ops.clip(x, -0.5, 0.5),
        "exp": lambda x: ops.exp(x),
        "log": lambda x: ops.log(ops.abs(x) + 1),
        "log1p": lambda x: ops.log1p(ops.abs(x)),
        "sin_cos": lambda x: ops.sin(x) * ops.cos(x),
        "tanh": lambda x: ops.tanh(x),
        "erf": lambda x: ops.erf(x),
        "negative": lambda x: -x,
        "floor": lambda x: ops.floor(x * 3),
        "round": lambda x: ops.round(x * 3),
        "sign": lambda x: ops.sign(x) + x,
        "modulo": lambda x: ops.mod(x, 0.7),
        "floor_divide": lambda x: ops.floor_divide(x, 0.7),
        "where": lambda x: ops.where(x > 0.1, x, 0.1 * x),
        "greater": lambda x: ops.cast(x > 0.1, "float32"),
        "logical": lambda x: ops.logical_and(x > -0.5, ops.logical_not(x > 0.5)),
        "integers": lambda x: whole(x) * 2 + 1,
        "integer_divide": lambda x: whole(x) / 2,
        "relu": lambda x: ops.relu(x) + ops.relu6(x * 9),
        "sigmoid": lambda x: ops.sigmoid(x),
        "silu": lambda x: ops.silu(x),
        "hard_silu": lambda x: ops.hard_silu(x),
        "gelu": lambda x: ops.gelu(x),
        "gelu_exact": lambda x: ops.gelu(x, approximate=False),
        "elu": lambda x: ops.elu(x, alpha=0.7),
        "leaky_relu": lambda x: ops.leaky_relu(x, 0.3),
        "celu": lambda x: ops.celu(x, 0.7),
        "threshold": lambda x: ops.threshold(x, 0.3, 0.1),
        "array": lambda x: x * array(7) + array(7),
        "subtract_array": lambda x: ops.subtract(array(7), x),
    }
    for name, function in functions.items():
        yield Case(f"ops_{name}", lambda f=function: operator(f))


def array(size: int) -> Any:
    import numpy as np

    return np.linspace(-1.0, 2.0, size, dtype="float32")


def shapes(ops: Any) -> Iterator[Case]:
    functions: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
        "slice": (FLAT, lambda x: x[:, :2]),
        "slice_steps": (STEPS, lambda x: x[:, 1:9:2, ::-1]),
        "slice_index": (STEPS, lambda x: x[:, -1]),
        "slice_middle": (STEPS, lambda x: x[:, 3, 1:]),
        "slice_ellipsis": (IMAGE, lambda x: x[..., 1]),
        "slice_new": (STEPS, lambda x: x[:, None, :, 2:-1]),
        "transpose": (IMAGE, lambda x: ops.transpose(x, (0, 3, 1, 2))),
        "swapaxes": (STEPS, lambda x: ops.swapaxes(x, 1, 2)),
        "moveaxis": (IMAGE, lambda x: ops.moveaxis(x, 1, -1)),
        "reshape": (STEPS, lambda x: ops.reshape(x, (-1, 22, 3))),
        "reshape_batch": (STEPS, lambda x: ops.reshape(ops.reshape(x, (-1, 6)) * 2, (-1, 66))),
        "expand": (STEPS, lambda x: ops.expand_dims(x, 2)),
        "expand_last": (FLAT, lambda x: ops.expand_dims(x, -1)),
        "squeeze": (STEPS, lambda x: ops.squeeze(ops.mean(x, axis=1, keepdims=True), axis=1)),
        "pad": (IMAGE, lambda x: ops.pad(x, [[0, 0], [1, 2], [0, 3], [0, 0]])),
        "pad_value": (STEPS, lambda x: ops.pad(x, [[0, 0], [1, 2], [1, 0]], constant_values=2)),
        "pad_reflect": (STEPS, lambda x: ops.pad(x, [[0, 0], [1, 2], [1, 0]], mode="reflect")),
        "flip": (STEPS, lambda x: ops.flip(x, axis=1)),
        "repeat": (STEPS, lambda x: ops.repeat(x, 2, axis=1)),
        "tile": (STEPS, lambda x: ops.tile(x, [1, 2, 1])),
        "broadcast": (FLAT, lambda x: ops.broadcast_to(ops.expand_dims(x, 1), (5, 3, 7))),
        "take": (STEPS, lambda x: ops.take(x, [2, 0, 5], axis=2)),
        "split": (STEPS, lambda x: ops.split(x, 3, axis=2)),
        "split_places": (STEPS, lambda x: ops.split(x, [1, 4], axis=-1)),
    }
    for name, (shape, function) in functions.items():
        yield Case(f"ops_{name}", lambda s=shape, f=function: operator(f, s))


def several(ops: Any) -> Iterator[Case]:
    functions: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], Any]]] = {
        "add": (STEPS, lambda a, b: a + b),
        "subtract": (STEPS, lambda a, b: b - a),
        "divide_tensors": (STEPS, lambda a, b: a / (ops.abs(b) + 1)),
        "itself": (STEPS, lambda a, b: a * a - b),
        "concatenate": (STEPS, lambda a, b: ops.concatenate([b, a], axis=-1)),
        "stack": (STEPS, lambda a, b: ops.stack([a, b], axis=1)),
        "matmul": (STEPS, lambda a, b: ops.matmul(a, ops.transpose(b, (0, 2, 1)))),
        "einsum": (STEPS, lambda a, b: ops.einsum("bij,bkj->bik", a, b)),
        "broadcast_ranks": (STEPS, lambda a, b: a * ops.mean(b, axis=1, keepdims=True)),
        "compare": (STEPS, lambda a, b: ops.where(a > b, a, b * 2)),
        "logical_or": (STEPS, lambda a, b: ops.logical_or(a > 0.5, b > 0.5)),
        "not_equal": (STEPS, lambda a, b: ops.not_equal(whole(a), whole(b))),
        "arctan2": (STEPS, lambda a, b: ops.arctan2(a, b)),
    }
    for name, (shape, function) in functions.items():
        yield Case(f"ops_{name}", lambda s=shape, f=function: pair(f, s))


def operator(function: Callable[[Any], Any], shape: tuple[int, ...] = FLAT) -> Any:
    import keras

    x = keras.Input(shape, name="x")
    return keras.Model(x, function(x))


def pair(function: Callable[[Any, Any], Any], shape: tuple[int, ...]) -> Any:
    import keras

    a, b = keras.Input(shape, name="a"), keras.Input(shape, name="b")
    return keras.Model([a, b], function(a, b))


def operators() -> Any:
    import keras

    a, b = keras.Input(FLAT, name="a"), keras.Input(FLAT, name="b")
    scaled = (3.0 + a * 2.0) * (b + a)
    return keras.Model([a, b], keras.ops.maximum(keras.ops.concatenate([scaled, a]), 0.1))
