"""Builds small Keras models, their inputs and their outputs; run as a child process.

    python tfjs_models.py FOLDER

writes, for each case, FOLDER/NAME/ with the layer graph, in.N.npy and out.N.npy, and
FOLDER/cases.json with the names, the inputs and, for a refused case, what its reason mentions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfjs_whole_models import FLAT, IMAGE, STEPS, Case, one, whole_models

BATCH = 5


def convolutions() -> Iterator[Case]:
    from keras import layers as k

    yield one("conv1d", STEPS, lambda: k.Conv1D(5, 3, strides=2, activation="relu"))
    yield one("conv1d_same_dilated", STEPS, lambda: k.Conv1D(5, 3, padding="same", dilation_rate=2))
    yield one("conv1d_causal", STEPS, lambda: k.Conv1D(5, 3, padding="causal", dilation_rate=2))
    yield one("conv2d", IMAGE, lambda: k.Conv2D(5, 3, strides=2, padding="same", activation="elu"))
    yield one("conv2d_dilated", IMAGE, lambda: k.Conv2D(5, (3, 2), dilation_rate=2, use_bias=False))
    yield one("conv2d_grouped", IMAGE, lambda: k.Conv2D(8, 3, groups=4, padding="same"))
    yield one("conv2d_groups_2", IMAGE, lambda: k.Conv2D(8, 3, groups=2), "2 groups")
    yield one("conv3d", (5, 6, 4, 3), lambda: k.Conv3D(4, 2, strides=2))
    yield one("depthwise", IMAGE, lambda: k.DepthwiseConv2D(3, depth_multiplier=2, strides=2))
    yield one("depthwise_dilated", IMAGE, lambda: k.DepthwiseConv2D(3, dilation_rate=2), "dilation")
    yield one(
        "separable",
        IMAGE,
        lambda: k.SeparableConv2D(6, 3, padding="same", depth_multiplier=2, activation="tanh"),
    )
    yield one("separable_dilated", IMAGE, lambda: k.SeparableConv2D(6, 3, dilation_rate=2))
    yield one("transpose", IMAGE, lambda: k.Conv2DTranspose(3, 3, strides=2, padding="same"))
    yield one("transpose_valid", IMAGE, lambda: k.Conv2DTranspose(3, 2, strides=3))
    yield one(
        "transpose_output_padding",
        IMAGE,
        lambda: k.Conv2DTranspose(3, 3, strides=2, output_padding=1),
        "output_padding",
    )
    yield one(
        "transpose_dilated", IMAGE, lambda: k.Conv2DTranspose(3, 3, dilation_rate=2), "dilation"
    )
    yield one(
        "channels_first",
        IMAGE,
        lambda: k.ZeroPadding2D(1, data_format="channels_first"),
        "data_form",
    )
    yield one("separable_1d", STEPS, lambda: k.SeparableConv1D(4, 3), "SeparableConv1D")


def norms_and_dense() -> Iterator[Case]:
    from keras import layers as k

    yield one("dense", FLAT, lambda: k.Dense(6, activation="selu"))
    yield one("dense_on_steps", STEPS, lambda: k.Dense(6, use_bias=False))
    yield one("batch_norm", IMAGE, lambda: k.BatchNormalization(epsilon=0.01))
    yield one("batch_norm_axis_3", IMAGE, lambda: k.BatchNormalization(axis=3))
    yield one("batch_norm_plain", FLAT, lambda: k.BatchNormalization(center=False, scale=False))
    yield one("batch_norm_axis_1", IMAGE, lambda: k.BatchNormalization(axis=1), "axis=1")
    yield one("layer_norm", STEPS, lambda: k.LayerNormalization())
    yield one("group_norm", IMAGE, lambda: k.GroupNormalization(2), "GroupNormalization")
    yield one("normalization", IMAGE, lambda: adapted(axis=-1))
    yield one("normalization_scalar", IMAGE, lambda: adapted(axis=None))
    yield one("normalization_inverse", IMAGE, lambda: adapted(axis=-1, invert=True))
    yield one("normalization_axis_1", IMAGE, lambda: adapted(axis=1), "last axis")
    yield one(
        "normalization_given",
        FLAT,
        lambda: k.Normalization(mean=[1.0, 2, 3, 4, 5, 6, 7], variance=[2.0] * 7),
    )
    yield one("rescaling", IMAGE, lambda: k.Rescaling(1 / 127.5, offset=-1))
    yield one("rescaling_list", IMAGE, lambda: k.Rescaling([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]))


def adapted(**config: Any) -> Any:
    import keras
    import numpy as np

    layer = keras.layers.Normalization(**config)
    layer.adapt(np.random.default_rng(5).normal(100.0, 3.0, (64, *IMAGE)).astype("float32"))
    return layer


def activations() -> Iterator[Case]:
    from keras import layers as k

    for name in (
        *("linear", "relu", "relu6", "sigmoid", "tanh", "softmax", "softplus", "softsign", "elu"),
        *("selu", "gelu", "mish", "silu", "log_softmax", "hard_sigmoid", "leaky_relu"),
    ):
        yield one(f"activation_{name}", STEPS, lambda name=name: k.Activation(name))
    for name in ("hard_silu", "exponential", "log_sigmoid", "celu"):
        yield one(f"activation_{name}", STEPS, lambda name=name: k.Activation(name), name)
    yield one("dense_hard_sigmoid", FLAT, lambda: k.Dense(6, activation="hard_sigmoid"))
    yield one("dense_lambda", FLAT, lambda: k.Dense(6, activation=squared), "as a function")
    yield one("relu", IMAGE, lambda: k.ReLU())
    yield one("relu_max", IMAGE, lambda: k.ReLU(max_value=1.5))
    yield one("relu_slope", IMAGE, lambda: k.ReLU(negative_slope=0.3))
    yield one("relu_threshold", IMAGE, lambda: k.ReLU(threshold=0.4))
    yield one("relu_both", IMAGE, lambda: k.ReLU(max_value=2, negative_slope=0.1), "more than one")
    yield one("leaky_relu", IMAGE, lambda: k.LeakyReLU(negative_slope=0.1))
    yield one("elu", IMAGE, lambda: k.ELU())
    yield one("elu_alpha", IMAGE, lambda: k.ELU(alpha=0.5), "alpha=0.5")
    yield one("prelu", IMAGE, lambda: k.PReLU(shared_axes=[1, 2]))
    yield one("softmax", STEPS, lambda: k.Softmax())
    yield one("softmax_axis_1", STEPS, lambda: k.Softmax(axis=1), "axis=1")


def squared(x: Any) -> Any:
    return x * x


def pooling_and_shapes() -> Iterator[Case]:
    from keras import layers as k

    for kind in ("Max", "Average"):
        for n, shape in ((1, STEPS), (2, IMAGE), (3, (5, 6, 4, 3))):
            layer = getattr(k, f"{kind}Pooling{n}D")
            yield one(f"{kind}_pool_{n}d", shape, lambda layer=layer: layer(2))
            yield one(
                f"{kind}_pool_{n}d_same", shape, lambda layer=layer: layer(3, 2, padding="same")
            )
        for n, shape in ((1, STEPS), (2, IMAGE)):
            layer = getattr(k, f"Global{kind}Pooling{n}D")
            yield one(f"global_{kind}_{n}d", shape, lambda layer=layer: layer())
            yield one(f"global_{kind}_{n}d_kept", shape, lambda layer=layer: layer(keepdims=True))
    yield one("flatten", IMAGE, lambda: k.Flatten())
    yield one("reshape", IMAGE, lambda: k.Reshape((-1, 16)))
    yield one("permute", IMAGE, lambda: k.Permute((3, 1, 2)))
    yield one("repeat", FLAT, lambda: k.RepeatVector(3))
    yield one("zero_padding", IMAGE, lambda: k.ZeroPadding2D(((1, 2), (0, 3))))
    yield one("cropping", IMAGE, lambda: k.Cropping2D(((1, 2), (0, 3))))
    yield one("up_sampling", IMAGE, lambda: k.UpSampling2D((2, 3)))
    yield one("up_bilinear", IMAGE, lambda: k.UpSampling2D(2, interpolation="bilinear"), "bilinear")
    yield one("dropout", IMAGE, lambda: k.Dropout(0.5))
    yield one("gru", STEPS, lambda: k.GRU(4), "GRU")
    for name, layer in (
        ("spatial_dropout", lambda: k.SpatialDropout2D(0.5)),
        ("gaussian_noise", lambda: k.GaussianNoise(0.5)),
        ("random_flip", lambda: k.RandomFlip()),
        ("random_rotation", lambda: k.RandomRotation(0.2)),
        ("random_contrast", lambda: k.RandomContrast(0.2)),
    ):
        yield Case(name, lambda layer=layer: noisy(layer()))


def noisy(layer: Any) -> Any:
    import keras

    inputs = keras.Input(IMAGE, name="x")
    x = keras.layers.Conv2D(4, 3)(inputs)
    return keras.Model(inputs, keras.layers.Conv2D(3, 2)(layer(x)))


def merges() -> Iterator[Case]:
    from keras import layers as k

    for name in ("Add", "Multiply", "Average", "Maximum", "Minimum"):
        yield Case(name.lower(), lambda name=name: merged(getattr(k, name)()))
    yield Case("concatenate", lambda: merged(k.Concatenate(axis=1)))
    yield Case("subtract", lambda: merged(k.Subtract()), "Subtract")
    yield Case("dot", lambda: merged(k.Dot(axes=2), STEPS))
    yield Case("dot_normalized", lambda: merged(k.Dot(axes=(1, 1), normalize=True), FLAT))
    yield Case("broadcast", broadcast)
    yield Case("operators", operators)
    yield Case("operator_minus", lambda: operator(lambda x: 2.0 - (x - 3) / 255))
    yield Case("operator_slice", lambda: operator(lambda x: x[:, :2]), "operator GetItem")


def merged(layer: Any, shape: tuple[int, ...] = IMAGE) -> Any:
    import keras

    a, b = keras.Input(shape, name="a"), keras.Input(shape, name="b")
    return keras.Model([b, a], layer([a, b]))


def broadcast() -> Any:
    import keras

    x = keras.Input(IMAGE, name="x")
    gate = keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = keras.layers.Conv2D(4, 1, activation="sigmoid")(gate)
    y = keras.layers.Multiply()([x, gate])
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.Flatten()(y)))


def operators() -> Any:
    import keras

    a, b = keras.Input(FLAT, name="a"), keras.Input(FLAT, name="b")
    total = (a + b) * b * 0.5 + 3.0
    return keras.Model([a, b], keras.ops.concatenate([total, keras.ops.maximum(a, b)], axis=-1))


def operator(function: Callable[[Any], Any]) -> Any:
    import keras

    x = keras.Input(FLAT, name="x")
    return keras.Model(x, keras.layers.Dense(2)(function(x)))


def cases() -> Iterator[Case]:
    for group in (
        convolutions, norms_and_dense, activations, pooling_and_shapes, merges, whole_models,
    ):  # fmt: skip
        yield from group()


def shake(model: Any, random: Any) -> None:
    """Gives every weight a value that is neither zero nor special."""
    import numpy as np

    for weight in model.weights:
        name = weight.path.rsplit("/", 1)[-1]
        if "normalization" in weight.path and name in ("mean", "variance", "count"):
            continue
        if not weight.dtype.startswith("float") or not np.isfinite(np.asarray(weight)).all():
            continue
        if name in ("moving_variance", "gamma"):
            weight.assign(random.uniform(0.5, 2.0, weight.shape))
        else:
            fan_in = max(1, int(np.prod(weight.shape[:-1])))
            weight.assign(random.normal(0.0, 1.0 / np.sqrt(fan_in), weight.shape))


def inputs_of(model: Any, name: str, random: Any) -> list[Any]:
    found = []
    for tensor in model.inputs:
        shape = (BATCH, *tensor.shape[1:])
        if tensor.dtype.startswith("float"):
            centre, spread = (100.0, 3.0) if name.startswith("normalization") else (0.1, 1.0)
            found.append(random.normal(centre, spread, shape).astype("float32"))
        else:
            found.append(random.integers(0, 20, shape).astype(tensor.dtype))
    return found


def main(folder: Path) -> None:
    import keras
    import numpy as np

    from packager.loaders import keras_graph, layer_graph

    listed = []
    for number, case in enumerate(cases()):
        # Names start anew; collecting garbage each time would take most of the run.
        keras.utils.clear_session(free_memory=False)
        random = np.random.default_rng(number)
        model = case.build()
        shake(model, random)
        target = folder / case.name
        layer_graph.save(keras_graph.layer_graph(model), target)
        inputs = inputs_of(model, case.name, random)
        outputs = [] if case.refused else keras.tree.flatten(model(inputs, training=False))
        for kind, arrays in (("in", inputs), ("out", outputs)):
            for i, array in enumerate(arrays):
                np.save(target / f"{kind}.{i}.npy", np.asarray(array))
        listed.append(
            {
                "name": case.name,
                "refused": case.refused,
                "inputs": len(inputs),
                "outputs": len(outputs),
            }
        )
    (folder / "cases.json").write_text(json.dumps(listed), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
