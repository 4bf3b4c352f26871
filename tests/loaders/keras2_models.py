"""Makes small Keras 2 models with tf-keras, each with inputs and the outputs that it computes.

    python tests/loaders/keras2_models.py [--only] FOLDER [NAME ...]

For every name in `CASES` it writes `NAME.h5`, `NAME.keras` and `NAME.npz` (`x0`, `x1`, ..., `y0`,
...), and for the names given, or for all with `all`, a SavedModel `NAME/` too; `--only` writes
nothing of the other cases. `classes.json` has
the classes of layers in each, and those of tf-keras that stand for themselves.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf
import tf_keras as k2

L = k2.layers
SAMPLES = 3
IMAGE, SERIES, FLAT, VOLUME = (6, 5, 4), (7, 4), (5,), (4, 5, 6, 2)


def one(layer: Any, shape: tuple[int | None, ...], **options: Any) -> Any:
    """A Sequential model of one layer."""
    return k2.Sequential([k2.Input(shape, **options), layer])


def _words(layer: Any, length: int = 6) -> Any:
    return k2.Sequential([k2.Input((length,), dtype="int32"), layer])


def _merge(layer: Any, shape: tuple[int, ...] = IMAGE) -> Any:
    a, b = k2.Input(shape, name="a"), k2.Input(shape, name="b")
    return k2.Model([a, b], layer([a, b]))


def _masked(layer: Any) -> Any:
    return k2.Sequential([k2.Input((6,), dtype="int32"), L.Embedding(11, 4, mask_zero=True), layer])


def _attention(layer: Any) -> Any:
    a, b = k2.Input(SERIES, name="a"), k2.Input(SERIES, name="b")
    return k2.Model([a, b], layer([a, b]))


def _nested() -> Any:
    inner_input = k2.Input((6,), name="inner_input")
    hidden = L.BatchNormalization(name="norm")(L.Dense(4, name="hidden")(inner_input))
    inner = k2.Model(inner_input, L.Dense(6, name="inner_out")(hidden), name="inner")
    tail = k2.Sequential([L.Dense(6, activation="tanh", input_shape=(6,))], name="tail")
    given = k2.Input((6,), name="given")
    # Called twice: shared weights.
    return k2.Model(given, [tail(inner(given)), inner(L.ReLU()(inner(given)))])


def _nested_embedding() -> Any:
    """As TensorFlow 2 saved it: the outer inputs are real numbers."""
    encoder = k2.Sequential([L.Embedding(11, 4), L.LSTM(3)], name="encoder")
    a, b = k2.Input((6,), name="a"), k2.Input((6,), name="b")
    return k2.Model([a, b], L.Dot(1)([encoder(a), encoder(b)]), name="nested_embedding")


def _states() -> Any:
    given = k2.Input(SERIES, name="given")
    sequence, h, c = L.LSTM(3, return_sequences=True, return_state=True, name="encoder")(given)
    decoded = L.LSTM(3, name="decoder")(sequence, initial_state=[h, c])
    return k2.Model(given, [decoded, h])


def _frozen() -> Any:
    model = k2.Sequential(
        [L.Dense(4, input_shape=FLAT), L.BatchNormalization(trainable=False), L.Dense(2)]
    )
    model.layers[0].trainable = False
    return model


def _regularised() -> Any:
    return k2.Sequential(
        [
            L.Dense(
                4,
                input_shape=FLAT,
                kernel_initializer=k2.initializers.VarianceScaling(2.0, seed=1),
                kernel_regularizer=k2.regularizers.l2(0.1),
                bias_constraint=k2.constraints.MaxNorm(1),
                activity_regularizer="l1",
            )
        ]
    )


def _normalization() -> Any:
    layer = L.Normalization()
    layer.adapt(np.linspace(-3, 8, 40).reshape(8, 5))
    return one(layer, FLAT)


def _fixed_normalization() -> Any:
    return one(L.Normalization(mean=2.0, variance=9.0), FLAT)


CASES: dict[str, Callable[[], Any]] = {
    # Core
    "dense": lambda: one(L.Dense(3), FLAT),
    "dense_wide": lambda: one(L.Dense(3, use_bias=False), SERIES),
    "einsum": lambda: one(L.EinsumDense("abc,cd->abd", (7, 3), bias_axes="d"), SERIES),
    "embedding": lambda: _words(L.Embedding(11, 4, input_length=6)),
    "masking": lambda: k2.Sequential([k2.Input(SERIES), L.Masking(0.0), L.LSTM(3)]),
    "flatten": lambda: one(L.Flatten(), IMAGE),
    "flatten_first": lambda: one(L.Flatten("channels_first"), IMAGE),
    "reshape": lambda: one(L.Reshape((-1, 10)), IMAGE),
    "permute": lambda: one(L.Permute((3, 1, 2)), IMAGE),
    "identity": lambda: one(L.Identity(), FLAT),
    "repeat": lambda: one(L.RepeatVector(3), FLAT),
    "activity": lambda: one(L.ActivityRegularization(0.1), FLAT),
    "regularised": _regularised,
    "frozen": _frozen,
    "dense_free_axis": lambda: one(L.Dense(2), (None, 4)),
    # Activations
    **{
        f"activation_{name}": (lambda name=name: one(L.Activation(name), SERIES))
        for name in (
            *("linear", "elu", "exponential", "gelu", "hard_sigmoid", "mish", "relu", "selu"),
            *("sigmoid", "softmax", "softplus", "softsign", "swish", "tanh"),
        )
    },
    "dense_hard_sigmoid": lambda: one(L.Dense(3, activation="hard_sigmoid"), FLAT),
    "relu_6": lambda: one(L.ReLU(6.0), SERIES),
    "relu_slope": lambda: one(L.ReLU(2.0, negative_slope=0.1, threshold=0.5), SERIES),
    "leaky": lambda: one(L.LeakyReLU(), SERIES),
    "leaky_alpha": lambda: one(L.LeakyReLU(0.05), SERIES),
    "elu_alpha": lambda: one(L.ELU(0.4), SERIES),
    "prelu": lambda: one(L.PReLU(), IMAGE),
    "prelu_shared": lambda: one(L.PReLU(shared_axes=[1, 2]), IMAGE),
    "softmax_axis": lambda: one(L.Softmax(axis=1), SERIES),
    "thresholded": lambda: one(L.ThresholdedReLU(0.4), SERIES),
    # Convolutions
    "conv1d": lambda: one(L.Conv1D(3, 3, dilation_rate=2, activation="relu"), SERIES),
    "conv1d_causal": lambda: one(L.Conv1D(3, 3, padding="causal"), SERIES),
    "conv2d": lambda: one(L.Conv2D(3, (3, 2), strides=2, padding="same"), IMAGE),
    "fixed_batch": lambda: k2.Sequential(
        [L.Conv2D(3, 3, batch_input_shape=(1, *IMAGE)), L.Flatten(), L.Dense(2)]
    ),
    "conv2d_groups": lambda: one(L.Conv2D(4, 3, groups=2), IMAGE),
    "conv3d": lambda: one(L.Conv3D(3, 2), VOLUME),
    "conv1d_transpose": lambda: one(L.Conv1DTranspose(3, 3, strides=2, padding="same"), SERIES),
    "conv2d_transpose": lambda: one(
        L.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=1), IMAGE
    ),
    "conv2d_transpose_valid": lambda: one(L.Conv2DTranspose(3, (3, 2), strides=(2, 3)), IMAGE),
    "conv3d_transpose": lambda: one(L.Conv3DTranspose(3, 2, strides=2), VOLUME),
    "depthwise1d": lambda: one(L.DepthwiseConv1D(3, depth_multiplier=2), SERIES),
    "depthwise2d": lambda: one(L.DepthwiseConv2D(3, padding="same", activation="relu"), IMAGE),
    "separable1d": lambda: one(L.SeparableConv1D(3, 3), SERIES),
    "separable2d": lambda: one(L.SeparableConv2D(3, 3, depth_multiplier=2), IMAGE),
    "local1d": lambda: one(L.LocallyConnected1D(3, 3), SERIES),
    "local2d": lambda: one(L.LocallyConnected2D(3, 3), IMAGE),
    # Pooling and shapes
    "maxpool1d": lambda: one(L.MaxPooling1D(2), SERIES),
    "maxpool2d": lambda: one(L.MaxPooling2D((2, 3), strides=1, padding="same"), IMAGE),
    "maxpool3d": lambda: one(L.MaxPooling3D(2), VOLUME),
    "avgpool1d": lambda: one(L.AveragePooling1D(2, padding="same"), SERIES),
    "avgpool2d": lambda: one(L.AveragePooling2D(2), IMAGE),
    "avgpool3d": lambda: one(L.AveragePooling3D(2), VOLUME),
    "global_max1d": lambda: one(L.GlobalMaxPooling1D(), SERIES),
    "global_max2d": lambda: one(L.GlobalMaxPooling2D(keepdims=True), IMAGE),
    "global_max3d": lambda: one(L.GlobalMaxPooling3D(), VOLUME),
    "global_avg1d": lambda: one(L.GlobalAveragePooling1D(), SERIES),
    "global_avg2d": lambda: one(L.GlobalAveragePooling2D(), IMAGE),
    "global_avg3d": lambda: one(L.GlobalAveragePooling3D(), VOLUME),
    "crop1d": lambda: one(L.Cropping1D((1, 2)), SERIES),
    "crop2d": lambda: one(L.Cropping2D(((1, 0), (2, 1))), IMAGE),
    "crop3d": lambda: one(L.Cropping3D(1), VOLUME),
    "pad1d": lambda: one(L.ZeroPadding1D((1, 2)), SERIES),
    "pad2d": lambda: one(L.ZeroPadding2D(((1, 0), (2, 1))), IMAGE),
    "pad3d": lambda: one(L.ZeroPadding3D(1), VOLUME),
    "up1d": lambda: one(L.UpSampling1D(2), SERIES),
    "up2d": lambda: one(L.UpSampling2D((2, 3)), IMAGE),
    "up2d_bilinear": lambda: one(L.UpSampling2D(2, interpolation="bilinear"), IMAGE),
    "up2d_bicubic": lambda: one(L.UpSampling2D(2, interpolation="bicubic"), IMAGE),
    "up2d_area": lambda: one(L.UpSampling2D(2, interpolation="area"), IMAGE),
    "up3d": lambda: one(L.UpSampling3D(2), VOLUME),
    # Normalization
    "batch_norm": lambda: one(L.BatchNormalization(epsilon=0.01), IMAGE),
    "batch_norm_axis": lambda: one(L.BatchNormalization(axis=1), IMAGE),
    "batch_norm_axes": lambda: one(L.BatchNormalization(axis=[1, 3]), IMAGE),
    "batch_norm_renorm": lambda: one(L.BatchNormalization(renorm=True), IMAGE),
    "batch_norm_bare": lambda: one(L.BatchNormalization(scale=False, center=False), IMAGE),
    "layer_norm": lambda: one(L.LayerNormalization(), IMAGE),
    "layer_norm_axes": lambda: one(L.LayerNormalization(axis=[1, 2], epsilon=0.1), IMAGE),
    "group_norm": lambda: one(L.GroupNormalization(2), IMAGE),
    "unit_norm": lambda: one(L.UnitNormalization(), IMAGE),
    "spectral_norm": lambda: one(L.SpectralNormalization(L.Dense(3)), FLAT),
    "normalization": _normalization,
    "normalization_fixed": _fixed_normalization,
    "rescaling": lambda: one(L.Rescaling(1 / 127.5, offset=-1), IMAGE),
    "resizing": lambda: one(L.Resizing(4, 7), IMAGE),
    "center_crop": lambda: one(L.CenterCrop(4, 3), IMAGE),
    "category": lambda: _words(L.CategoryEncoding(11, output_mode="multi_hot")),
    "discretization": lambda: one(L.Discretization([-0.5, 0.0, 0.7]), FLAT),
    "hashing": lambda: _words(L.Hashing(5)),
    "hashed_crossing": lambda: _crossing(),
    "string_lookup": lambda: _text(L.StringLookup(vocabulary=["good", "red", "the"])),
    "string_one_hot": lambda: _text(
        L.StringLookup(vocabulary=["good", "red", "the"], output_mode="one_hot"), ()
    ),
    "text_vectorization": lambda: _text(
        L.TextVectorization(vocabulary=["good", "red", "the"], output_sequence_length=4), (1,)
    ),
    "integer_lookup": lambda: _words(L.IntegerLookup(vocabulary=[3, 5, 7])),
    # Regularization: nothing at inference
    "dropout": lambda: one(L.Dropout(0.5), IMAGE),
    "spatial_dropout1d": lambda: one(L.SpatialDropout1D(0.5), SERIES),
    "spatial_dropout2d": lambda: one(L.SpatialDropout2D(0.5), IMAGE),
    "spatial_dropout3d": lambda: one(L.SpatialDropout3D(0.5), VOLUME),
    "alpha_dropout": lambda: one(L.AlphaDropout(0.5), IMAGE),
    "gaussian_dropout": lambda: one(L.GaussianDropout(0.5), IMAGE),
    "gaussian_noise": lambda: one(L.GaussianNoise(0.5), IMAGE),
    "random_flip": lambda: one(L.RandomFlip(), IMAGE),
    "random_rotation": lambda: one(L.RandomRotation(0.1), IMAGE),
    "random_zoom": lambda: one(L.RandomZoom(0.1), IMAGE),
    "random_contrast": lambda: one(L.RandomContrast(0.1), IMAGE),
    "random_brightness": lambda: one(L.RandomBrightness(0.1), IMAGE),
    "random_translation": lambda: one(L.RandomTranslation(0.1, 0.1), IMAGE),
    "random_crop": lambda: one(L.RandomCrop(4, 3), IMAGE),
    "random_height": lambda: one(L.RandomHeight(0.1), IMAGE),
    "random_width": lambda: one(L.RandomWidth(0.1), IMAGE),
    # Merging
    **{
        f"merge_{name.lower()}": (lambda name=name: _merge(getattr(L, name)()))
        for name in (
            *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate"),
        )
    },
    "merge_concatenate_axis": lambda: _merge(L.Concatenate(axis=1)),
    "merge_dot": lambda: _merge(L.Dot(axes=2, normalize=True), SERIES),
    # Recurrent
    "simple_rnn": lambda: one(L.SimpleRNN(3), SERIES),
    "lstm": lambda: one(L.LSTM(3), SERIES),
    "lstm_old": lambda: one(L.LSTM(3, recurrent_activation="hard_sigmoid"), SERIES),
    "lstm_sequences": lambda: one(
        L.LSTM(3, return_sequences=True, go_backwards=True, unit_forget_bias=False), SERIES
    ),
    "lstm_masked": lambda: _masked(L.LSTM(3, return_sequences=True)),
    "lstm_unrolled": lambda: one(L.LSTM(3, unroll=True, implementation=1), SERIES),
    "lstm_stateful": lambda: k2.Sequential(
        [L.LSTM(3, stateful=True, batch_input_shape=(1, *SERIES))]
    ),
    "lstm_time_major": lambda: one(L.LSTM(3, time_major=True), SERIES),
    "lstm_states": _states,
    "gru": lambda: one(L.GRU(3), SERIES),
    "gru_before": lambda: one(L.GRU(3, reset_after=False, return_sequences=True), SERIES),
    "bidirectional": lambda: one(L.Bidirectional(L.LSTM(3, return_sequences=True)), SERIES),
    "bidirectional_sum": lambda: one(L.Bidirectional(L.GRU(3), merge_mode="sum"), SERIES),
    "bidirectional_two": lambda: one(
        L.Bidirectional(L.LSTM(3), backward_layer=L.LSTM(3, go_backwards=True, activation="relu")),
        SERIES,
    ),
    "rnn_cell": lambda: one(L.RNN(L.LSTMCell(3)), SERIES),
    "rnn_gru_cell": lambda: one(L.RNN(L.GRUCell(3, reset_after=False)), SERIES),
    "rnn_stacked": lambda: one(L.RNN([L.GRUCell(3), L.SimpleRNNCell(2)]), SERIES),
    "conv_lstm1d": lambda: one(L.ConvLSTM1D(3, 2), (4, 5, 2)),
    "conv_lstm2d": lambda: one(L.ConvLSTM2D(3, 2, padding="same"), VOLUME),
    "conv_lstm3d": lambda: one(L.ConvLSTM3D(2, 2), (3, *VOLUME)),
    # Wrappers, attention, structure
    "time_distributed": lambda: one(L.TimeDistributed(L.Dense(3, activation="tanh")), SERIES),
    "time_distributed_conv": lambda: one(L.TimeDistributed(L.Conv2D(3, 2)), VOLUME),
    "time_distributed_model": lambda: one(
        L.TimeDistributed(k2.Sequential([L.Dense(3, input_shape=(4,)), L.Dense(2)])), SERIES
    ),
    "attention": lambda: _attention(L.Attention(use_scale=True)),
    "attention_concat": lambda: _attention(L.Attention(score_mode="concat")),
    "additive_attention": lambda: _attention(L.AdditiveAttention()),
    "multi_head": lambda: _multi_head(),
    "nested": _nested,
    "nested_embedding": _nested_embedding,
    "two_ends": lambda: _two_ends(),
    "odd_names": lambda: k2.Sequential(
        [k2.Input(FLAT, name="my-input"), L.Dense(2, name="my-dense.layer")]
    ),
    "operators": lambda: _operators(),
    "operator_pair": lambda: _operator_pair(),
    "operator_reduce": lambda: _operator_reduce(),
    "operator_activations": lambda: _operator_activations(),
    "code_lambda": lambda: one(L.Lambda(lambda x: x * 2.0), FLAT),
    "dropout_in_use": lambda: _dropout_in_use(),
    "mixed": lambda: _mixed(),
    "deferred": lambda: _deferred(),
    "nested_first": lambda: k2.Sequential([_inner(), L.Dense(2)]),
    "leaky_as_activation": lambda: one(L.Dense(3, activation=L.LeakyReLU(0.1)), FLAT),
}


def _multi_head() -> Any:
    a, b = k2.Input(SERIES, name="a"), k2.Input(SERIES, name="b")
    return k2.Model([a, b], L.MultiHeadAttention(2, 3)(a, b))


def _crossing() -> Any:
    a, b = k2.Input((1,), dtype="int32", name="a"), k2.Input((1,), dtype="int32", name="b")
    return k2.Model([a, b], L.HashedCrossing(7)([a, b]))


def _text(layer: Any, shape: tuple[int, ...] = (6,)) -> Any:
    return k2.Sequential([k2.Input(shape, dtype="string"), layer])


def _two_ends() -> Any:
    words, numbers = k2.Input((6,), dtype="int32", name="words"), k2.Input((3,), name="numbers")
    hidden = L.Concatenate()([L.Flatten()(L.Embedding(11, 4)(words)), numbers])
    return k2.Model(
        [words, numbers],
        [
            L.Dense(3, activation="softmax", name="kind")(hidden),
            L.Dense(1, activation="sigmoid", name="chance")(hidden),
        ],
    )


def _operators() -> Any:
    a = k2.Input(FLAT, name="a")
    return k2.Model(a, L.Dense(2)(a * 2.0 + 1.0))


def _operator_pair() -> Any:
    a, b = k2.Input(FLAT, name="a"), k2.Input(FLAT, name="b")
    return k2.Model([a, b], [(a + b) * (a - b), 1.0 - a, a / 4.0 - 0.5, 3.0 * b])


def _operator_reduce() -> Any:
    a = k2.Input(FLAT, name="a")
    return k2.Model(a, tf.reduce_mean(a, axis=1))


def _operator_activations() -> Any:
    a = k2.Input(FLAT, name="a")
    return k2.Model(a, [tf.nn.relu(a), tf.sigmoid(a), tf.nn.relu6(a + 3.0) / 6.0, tf.tanh(a)])


def _dropout_in_use() -> Any:
    a = k2.Input(FLAT, name="a")
    return k2.Model(a, L.Dropout(0.5)(a, training=True))


def _mixed() -> Any:
    """A mixed policy; with whole numbers as weights and inputs float16 is exact."""
    return one(L.Dense(3, dtype=k2.mixed_precision.Policy("mixed_float16")), FLAT)


def _deferred() -> Any:
    """A Sequential model that gets its input shape when it is built."""
    model = k2.Sequential([L.Dense(3), L.Dense(2)])
    model.build((None, 5))
    return model


def _inner() -> Any:
    given = k2.Input(FLAT, name="inner_input")
    return k2.Model(given, L.Dense(4, activation="relu")(given), name="inner")


def _fill(model: Any, random: np.random.Generator) -> None:
    """Gives every weight a value of its own; variances and scales stay positive."""
    for weight in model.weights:
        if weight.dtype.is_floating:
            values = random.normal(0.0, 0.5, weight.shape)
            positive = "variance" in weight.name or "stddev" in weight.name
            weight.assign(np.abs(values) + 0.5 if positive else values)


def _inputs(model: Any, random: np.random.Generator) -> list[np.ndarray]:
    arrays = []
    for tensor in model.inputs:
        shape = [tensor.shape[0] or SAMPLES, *(n or 6 for n in tensor.shape[1:])]
        if tensor.dtype == tf.string:
            arrays.append(random.choice(["good", "the red one", "red", "no", "The"], shape))
            continue
        whole = not tensor.dtype.is_floating or "nested_embedding" in model.name
        values = random.integers(0, 11, shape) if whole else random.normal(0.0, 1.5, shape)
        arrays.append(values.astype(tensor.dtype.as_numpy_dtype))
    return arrays


def main(folder: Path, exported: list[str], *, only: bool = False) -> None:
    """Writes every model, and those in `exported` as a SavedModel too."""
    warnings.simplefilter("ignore")
    classes, names = {}, {}
    for number, (name, build) in enumerate(CASES.items()):
        if only and name not in exported:
            continue
        random = np.random.default_rng(number)
        k2.backend.clear_session()
        model = build()
        if name == "mixed":
            model.set_weights([np.arange(w.size).reshape(w.shape) for w in model.get_weights()])
        elif not name.startswith("normalization"):
            _fill(model, random)
        given = _inputs(model, random)
        if name == "mixed":
            given = [np.round(given[0])]
        fed = [tf.constant(x) for x in given]
        outputs = model(fed if len(fed) > 1 else fed[0], training=False)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        model.save(folder / f"{name}.h5")
        model.save(folder / f"{name}.keras", save_format="keras")
        if name in exported or "all" in exported:
            model.save(folder / name, save_format="tf")
        np.savez(
            folder / f"{name}.npz",
            **{f"x{i}": x for i, x in enumerate(given)},
            **{f"y{i}": y.numpy() for i, y in enumerate(outputs)},
        )
        names[name] = list(model.input_names)
        classes[name] = sorted({type(layer).__name__ for layer in model._flatten_layers()})
    text = json.dumps({"cases": classes, "inputs": names, "public": _public()})
    (folder / "classes.json").write_text(text)


def _public() -> list[str]:
    """Every class in tf-keras' `layers`, once: `AvgPool2D` is another name of one of them."""
    found = {c for c in vars(L).values() if inspect.isclass(c) and issubclass(c, L.Layer)}
    return sorted({c.__name__ for c in found})


if __name__ == "__main__":
    only = sys.argv[1] == "--only"
    main(Path(sys.argv[1 + only]), sys.argv[2 + only :], only=only)
