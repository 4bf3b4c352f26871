"""Writes TF.js graph models in one TensorFlow process: python tfjs_graph_models.py FOLDER.

Each case gets FOLDER/NAME with tfjs/model.json, in.N.npy and out.N.npy, all with random weights and
inputs. cases.json lists them, with the refusal's message where the writer refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")

import keras
import numpy as np
import tensorflow as tf
from keras import layers as k

from packager.errors import PackagerError
from packager.loaders.opened import End, OpenedModel
from packager.targets import saved_model, tfjs_graph_writer, tfjs_weights

IMAGE, STEPS, FLAT = (8, 9, 4), (7, 4), (6,)
Tensors = dict[str, Any]


@dataclass
class Case:
    """A model, as the loaders hand it over, and its inputs."""

    name: str
    opened: OpenedModel
    inputs: Tensors
    rules: tuple[str, ...] = ()
    shard_bytes: int = 4 * 1024 * 1024


@dataclass
class Cases:
    """All cases; `random` makes weights and inputs."""

    found: list[Case] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def model(self, name: str, model: Any, rules: tuple[str, ...] = (), **given: Any) -> None:
        """A Keras model, whose weights become random."""
        self.randomise(model)
        inputs = tuple(
            End(tensor.name, tensor.name, (None, *tensor.shape[1:]), str(tensor.dtype))
            for tensor in model.inputs
        )
        names = [f"out{i}" for i in range(len(model.outputs))]
        outputs = tuple(
            End(n, n, (None, *tensor.shape[1:]), str(tensor.dtype))
            for n, tensor in zip(names, model.outputs, strict=True)
        )

        def call(tensors: Tensors) -> Tensors:
            fed = [tensors[end.name] for end in inputs]
            result = model(fed if len(fed) > 1 else fed[0], training=False)
            return dict(zip(names, tf.nest.flatten(result), strict=True))

        opened = OpenedModel("keras3", "keras", inputs, outputs, call, model.variables, model)
        self._add(name, opened, given, rules)

    def layer(self, name: str, shape: tuple[int | None, ...], apply: Any, **given: Any) -> None:
        """A functional model around `apply`."""
        x = k.Input(shape, name="x", dtype=given.pop("dtype", None))
        self.model(name, keras.Model(x, apply(x)), **given)

    def function(
        self,
        name: str,
        function: Callable[..., Any],
        dtypes: str | Mapping[str, str] = "float32",
        shape: tuple[int, ...] = (4,),
        **given: Any,
    ) -> None:
        """A Python function of tensors; its result is an output, or outputs by name."""
        by_name = {"x": dtypes} if isinstance(dtypes, str) else dtypes

        def call(**tensors: Any) -> Tensors:
            result = function(*(tensors[n] for n in by_name))
            return result if isinstance(result, dict) else {"y": result}

        specs = {n: tf.TensorSpec((None, *shape), d, name=n) for n, d in by_name.items()}
        traced = tf.function(call).get_concrete_function(**specs)
        inputs = tuple(End(n, n, (None, *shape), d) for n, d in by_name.items())
        outputs = tuple(
            End(n, n, tuple(t.shape.as_list()), t.dtype.name)
            for n, t in traced.structured_outputs.items()
        )
        opened = OpenedModel(
            "callable", "python", inputs, outputs, lambda tensors: call(**tensors), []
        )
        self._add(name, opened, given)

    def randomise(self, model: Any) -> None:
        for variable in model.variables:
            if variable.dtype.startswith("float"):
                variable.assign(self._weights(variable))

    def _weights(self, variable: Any) -> Any:
        fan = int(np.prod(variable.shape[:-1])) if len(variable.shape) > 1 else 1
        values = self.random.standard_normal(variable.shape) / np.sqrt(max(fan, 1))
        last = variable.path.rpartition("/")[2]
        return np.abs(values) / 2 + 0.5 if "variance" in last or "gamma" in last else values

    def _add(
        self, name: str, opened: OpenedModel, given: Tensors, rules: tuple[str, ...] = ()
    ) -> None:
        shard_bytes = given.pop("shard_bytes", 4 * 1024 * 1024)
        inputs = {
            e.name: given[e.name] if e.name in given else self._values(e) for e in opened.inputs
        }
        self.found.append(Case(name, opened, inputs, rules, shard_bytes))

    def _values(self, end: End) -> Any:
        shape = (3, *(size or 5 for size in end.shape[1:]))
        if np.dtype(end.dtype).kind == "f":
            return self.random.standard_normal(shape).astype(end.dtype)
        low, high = (0, 2) if end.dtype == "bool" else (0 if end.dtype == "uint8" else -3, 4)
        return self.random.integers(low, high, shape).astype(end.dtype)


def convolutions(cases: Cases) -> None:
    x = k.Input((16, 16, 3), name="image")
    y = k.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
    y = k.ReLU(6.0)(k.BatchNormalization()(y))
    y = k.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
    y = k.ReLU(6.0)(k.BatchNormalization()(y))
    y = k.DepthwiseConv2D(3, strides=2)(k.ZeroPadding2D(((0, 1), (0, 1)))(y))
    y = k.BatchNormalization()(y)
    y = k.Conv2D(8, 3, groups=2, activation="elu")(y)
    y = k.Conv2D(16, 3, groups=8, activation="leaky_relu", padding="same")(y)
    y = k.GlobalAveragePooling2D()(y)
    y = k.Dense(5, activation="relu", name="head")(y)
    cases.model("fused", keras.Model(x, y))
    cases.model("small_shards", keras.models.clone_model(keras.Model(x, y)), shard_bytes=256)
    for rule in ("float16", "uint16", "uint8"):
        cases.model(f"rule_{rule}", keras.models.clone_model(keras.Model(x, y)), rules=(rule,))
    cases.layer(
        "conv1d",
        (9, 4),
        lambda x: k.Conv1DTranspose(3, 2, strides=2)(
            k.SeparableConv1D(4, 3)(
                k.Conv1D(4, 3, dilation_rate=2, padding="same")(
                    k.BatchNormalization()(k.Conv1D(6, 3, padding="causal", activation="relu")(x))
                )
            )
        ),
    )
    cases.layer(
        "dilated",
        (12, 12, 4),
        lambda x: k.Conv2D(4, 3, dilation_rate=2)(
            k.DepthwiseConv2D(3, dilation_rate=2, padding="same", activation="relu6")(x)
        ),
    )
    cases.layer("conv3d", (5, 6, 7, 2), lambda x: k.Conv3D(3, 2, strides=2, padding="same")(x))
    cases.layer(
        "transpose",
        IMAGE,
        lambda x: k.Conv2DTranspose(3, 3, strides=2, padding="same", activation="sigmoid")(x),
    )
    cases.layer(
        "depthwise_slope",
        IMAGE,
        lambda x: k.DepthwiseConv2D(3, depth_multiplier=2, activation="leaky_relu")(x),
    )
    cases.layer("transpose_dilated", IMAGE, lambda x: k.Conv2DTranspose(3, 3, dilation_rate=2)(x))
    cases.layer("shared_kernel", (9, 9, 2), _shared_kernel)


def _shared_kernel(x: Any) -> Any:
    conv = k.Conv2D(2, 3, padding="same", use_bias=False)
    return k.BatchNormalization()(conv(k.ReLU()(k.BatchNormalization()(conv(x)))))


def recurrent_and_attention(cases: Cases) -> None:
    cases.layer("gru", STEPS, lambda x: k.GRU(3)(x))
    x = k.Input(STEPS, name="steps")
    both = k.Bidirectional(k.LSTM(3, return_sequences=True))(x)
    cases.model("lstm", keras.Model(x, [both, k.Dense(2)(x)]))
    cases.layer(
        "masked", (None,), lambda x: k.LSTM(3)(k.Embedding(9, 4, mask_zero=True)(x)), dtype="int32",
        x=np.array([[3, 4, 0, 0], [1, 8, 2, 0], [5, 6, 7, 1]], np.int32),
    )  # fmt: skip
    cases.layer("conv_lstm", (4, 5, 5, 2), lambda x: k.ConvLSTM2D(3, 2, padding="same")(x))
    causal = {"use_causal_mask": True}
    cases.layer("attention", (5, 8), lambda x: k.MultiHeadAttention(2, 4)(x, x, **causal))
    several = {"attention_axes": (1, 2)}
    cases.layer("attention_2d", (5, 6, 8), lambda x: k.MultiHeadAttention(2, 4, **several)(x, x))
    cases.layer("gelu", FLAT, lambda x: k.Dense(4, activation="gelu")(x))
    cases.layer("softsign", FLAT, lambda x: k.Dense(4, activation="softsign")(x))
    cases.layer("sparsemax", FLAT, lambda x: k.Activation("sparsemax")(x))
    cases.layer("group_norm", IMAGE, lambda x: k.LayerNormalization()(k.GroupNormalization(2)(x)))
    cases.layer("resized", IMAGE, lambda x: k.CenterCrop(4, 4)(k.Resizing(5, 13)(x)))
    cases.layer("discretized", FLAT, lambda x: k.Discretization(bin_boundaries=[-1.0, 0.5])(x))
    lookup = k.IntegerLookup(vocabulary=[10, 20, 30])
    cases.layer(
        "looked_up", (3,), lambda x: k.Embedding(9, 2)(lookup(x)), dtype="int64",
        x=np.array([[10, 20, 30], [30, 7, 10], [10, 10, 20]]),
    )  # fmt: skip
    words = k.StringLookup(vocabulary=["one", "two", "zwölf"])
    cases.layer(
        "words", (2,), lambda x: k.Embedding(9, 2)(words(x)), dtype="string",
        x=np.array([["one", "zwölf"], ["two", "none"], ["", "one"]], object),
    )  # fmt: skip


def ends(cases: Cases) -> None:
    a, b = k.Input((4,), name="b"), k.Input((4,), name="a")
    cases.model(
        "two_inputs", keras.Model([a, b], [k.Dense(2)(a - 2 * b), a * 1.0, k.Add()([a, b])])
    )
    cases.function("input_is_output", lambda x: {"x": x, "twice": x * 2})
    cases.function("same_output", lambda x: {"one": x + 1, "two": x + 1})
    cases.function("split", lambda x: dict(zip("cab", tf.split(x, 4, 1)[:3], strict=True)))
    cases.function("uint8", lambda x: tf.cast(x, tf.float32) / 255.0, "uint8")
    cases.function(
        "numbers",
        lambda i, f, b: {
            "long": i * 2 + 1, "double": tf.cast(tf.cast(f, tf.float64) / 3, tf.float32),
            "not_b": tf.logical_not(b), "floor": tf.cast(f * 10, tf.int32) // 3,
            "modulo": tf.cast(f * 10, tf.int32) % 3, "largest": tf.argmax(f, 1),
        },
        {"i": "int64", "f": "float32", "b": "bool"},
    )  # fmt: skip
    cases.function("complex", lambda x: tf.abs(tf.signal.rfft(x)), shape=(8,))


def control_flow(cases: Cases) -> None:
    def loop(x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            top = tf.nn.top_k(y, 4)
            return i + 1, top.values * 1.5 + tf.cast(top.indices, tf.float32)

        return tf.while_loop(lambda i, y: i < 3, body, [tf.constant(0), x])[1]

    cases.function("while_loop", loop)
    for sign in (1.0, -1.0):
        cases.function(
            f"cond_{'yes' if sign > 0 else 'no'}",
            lambda x: tf.cond(
                tf.reduce_sum(x) > 0,
                lambda: x * 2.0,
                lambda: tf.stack(tf.unstack(x, axis=1)[::-1], 1) - 1.0,
            ),
            x=np.float32(sign) + np.arange(12, dtype=np.float32).reshape(3, 4) * np.float32(sign),
        )
    cases.function("two_of_one_list", _two_of_one_list)
    cases.function("refused_list_before_a_change", _list_before_a_change)
    cases.function("rows", lambda x: tf.gather(x, tf.where(tf.reduce_sum(x, 1) > 0)[:, 0]))


def _with_zeros(x: Any) -> Any:
    return tf.pad(x, [[0, 0], [1, 1]])


def _two_of_one_list(x: Any) -> Tensors:
    empty = tf.raw_ops.TensorListReserve(
        element_shape=[-1, 4], num_elements=2, element_dtype=tf.float32
    )
    return {"a": _filled(empty, x, 2 * x), "b": _filled(empty, -x, x + 1)}


def _list_before_a_change(x: Any) -> Tensors:
    first = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[4])
    later = tf.raw_ops.TensorListSetItem(input_handle=first, index=0, item=2 * x[1])
    last = tf.raw_ops.TensorListSetItem(input_handle=later, index=1, item=3 * x[0])
    return {"later": _stacked(later, [4]), "last": _stacked(last, [4])}


def _filled(empty: Any, one: Any, two: Any) -> Any:
    half = tf.raw_ops.TensorListSetItem(input_handle=empty, index=0, item=one)
    full = tf.raw_ops.TensorListSetItem(input_handle=half, index=1, item=two)
    return _stacked(full, [-1, 4])


def _stacked(full: Any, shape: list[int]) -> Any:
    return tf.raw_ops.TensorListStack(
        input_handle=full, element_shape=shape, element_dtype=tf.float32
    )


MOVES: dict[str, Callable[[Any], Any]] = {
    "tile": lambda x: tf.tile(x, [1, 2]),
    "concat": lambda x: tf.concat([x, x], 1),
    "strided": lambda x: x[:, ::2],
    "backwards": lambda x: x[:, ::-1],
    "gather": lambda x: tf.gather(x, [2, 0], axis=1),
    "transpose": tf.transpose,
    "pad": lambda x: tf.pad(x, [[0, 0], [1, 2]]),
    "mirror": lambda x: tf.pad(x, [[0, 0], [1, 2]], mode="SYMMETRIC"),
    "reverse": lambda x: tf.reverse(x, [1]),
    "roll": lambda x: tf.roll(x, 1, 1),
    "scatter": lambda x: tf.scatter_nd([[1], [3], [0]], x, [5, 4]),
    "where": lambda x: tf.where([True, False, True, False], x, tf.reverse(x, [1])),
    "equal": lambda x: tf.equal(x, tf.concat([x[:, :2], x[:, :2]], 1)),
    "to_bool": lambda x: tf.cast(_with_zeros(x), tf.bool),
    "one_hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3),
    "one_hot_on": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3, on_value=2.0, off_value=-1.0),
    "band": lambda x: tf.linalg.band_part(tf.reshape(x, [-1, 2, 2]), 1, 0),
    "indices": lambda x: tf.where(_with_zeros(x)),
    "xor": lambda x: tf.math.logical_xor(
        tf.cast(_with_zeros(x), tf.bool), tf.cast(tf.roll(_with_zeros(x), 1, 1), tf.bool)
    ),
}
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "cumsum": lambda x: tf.cumsum(x, -1),
    "cumprod": lambda x: tf.math.cumprod(x, -1, exclusive=True, reverse=True),
    "sum": lambda x: tf.reduce_sum(x, -1),
    "max": lambda x: tf.reduce_max(x, -1, keepdims=True),
    "prod": lambda x: tf.reduce_prod(x, 0),
    "sort": lambda x: tf.sort(x, -1),
    "floor_mod": lambda x: tf.math.floormod(x, x * x + 1),
    "power": lambda x: tf.pow(tf.abs(x), tf.constant(2, x.dtype)),
    "squared_difference": lambda x: tf.math.squared_difference(x, tf.reverse(x, [1])),
    "clip": lambda x: tf.clip_by_value(x, tf.constant(-1, x.dtype), tf.constant(1, x.dtype)),
    "sign": tf.sign,
}
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "svd": (lambda x: tf.linalg.svd(tf.reshape(x, [-1, 2, 2]), compute_uv=False), "float32"),
    "truncated": (lambda x: tf.raw_ops.Mod(x=x, y=x * x + 1), "float32"),
    "integer_mean": (tf.reduce_mean, "int32"),
    "integer_quotient": (lambda x: tf.raw_ops.Div(x=x, y=x * x + 1), "int32"),
    "integer_product": (lambda x: tf.matmul(x, x, transpose_b=True), "int32"),
    "to_uint8": (lambda x: tf.cast(tf.cast(x, tf.uint8), tf.float32), "float32"),
    "uint8_sum": (lambda x: x + x, "uint8"),
    "random": (lambda x: x + tf.random.normal([4]), "float32"),
    "fake_quantized": (lambda x: tf.quantization.fake_quant_with_min_max_vars(x, -1, 1), "float32"),
    "one_hot_axis": (lambda x: tf.one_hot(x, 3, axis=0), "int32"),
    "channels_first": (
        lambda x: tf.nn.bias_add(tf.reshape(x, [-1, 2, 1, 2]), [1.0, 2.0], data_format="NCHW"),
        "float32",
    ),
    "nan": (lambda x: tf.where(x > 0, x, np.full(4, np.nan, np.float32)), "float32"),
    "long_constant": (lambda x: x + 2**40, "int64"),
}


def operators(cases: Cases) -> None:
    for dtype in ("float32", "int32", "bool"):
        for name, function in MOVES.items():
            cases.function(f"{name}_{dtype}", function, dtype)
    for dtype in ("float32", "int32"):
        for name, function in NUMBERS.items():
            cases.function(f"{name}_{dtype}", function, dtype)
    for name, (function, dtype) in REFUSED.items():
        cases.function(f"refused_{name}", function, dtype)


def write(case: Case, folder: Path) -> dict[str, Any]:
    """Writes a case's files; returns its entry in cases.json."""
    folder.mkdir()
    opened = case.opened
    function = saved_model.concrete_function(opened, {end.name: end.shape for end in opened.inputs})
    card = {
        "inputs": [{"name": end.name, "dtype": end.dtype} for end in opened.inputs],
        "outputs": [{"name": end.name} for end in opened.outputs],
    }
    entry: dict[str, Any] = {"name": case.name, "outputs": len(opened.outputs), "refused": ""}
    try:
        written = tfjs_graph_writer.write(
            opened,
            function,
            folder / "tfjs",
            card=card,
            rules=tfjs_weights.parse(case.rules),
            shard_bytes=case.shard_bytes,
        )
    except PackagerError as error:
        return {**entry, "refused": f"{type(error).__name__}: {error.message}"}
    for i, end in enumerate(opened.inputs):
        values = case.inputs[end.name]
        stored = np.char.encode(values.astype(str), "utf-8") if end.dtype == "string" else values
        np.save(folder / f"in.{i}.npy", stored)
    result = function(**{n: tf.constant(v) for n, v in case.inputs.items()})
    for i, end in enumerate(opened.outputs):
        np.save(folder / f"out.{i}.npy", result[end.name].numpy())
    weights = {v.path: np.asarray(v) for v in opened.variables}
    np.savez(folder / "weights.npz", **{name.replace("/", "|"): a for name, a in weights.items()})
    return {**entry, "fused": written.fused}


def main(folder: Path) -> None:
    cases = Cases()
    for add in (convolutions, recurrent_and_attention, ends, control_flow, operators):
        add(cases)
    entries = [write(case, folder / case.name) for case in cases.found]
    (folder / "cases.json").write_text(json.dumps(entries), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
