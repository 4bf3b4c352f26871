"""Writes twins of one operator each and their int8 file: python build_qat.py FOLDER NAME...

All are branches of one model, so that one conversion does for all. Weights differ in size by
channel, so that a kernel that mixes up scales cannot pass.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from packager.quantize import qat
from packager.quantize.qat.normalizing import normalized
from packager.quantize.qat.twin import twin_of

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
IMAGE, ROW = (12, 12, 8), (24, 8)


def conv(**more):
    return layers.Conv2D(16, 3, padding="same", **more)


def bn():
    return layers.BatchNormalization()


def then(*parts):
    def apply(x):
        for part in parts:
            x = part(x)
        return x

    return apply


def shared(x):
    twice = layers.Conv2D(8, 3, padding="same", name="twice")
    return twice(twice(x))


def shared_block(x):
    block = keras.Sequential(
        [keras.Input(IMAGE), layers.Conv2D(8, 3, padding="same"), bn(), layers.ReLU()]
    )
    return block(block(x))


def shared_apart(x):
    twice = layers.Conv2D(8, 3, padding="same")
    return layers.ReLU()(bn()(twice(x))) + bn()(twice(layers.ReLU()(x)))


def nested(x):
    inner = keras.Input((12, 12, 8), name="inner")
    left = layers.Conv2D(8, 1, activation="relu")(inner)
    model = keras.Model(inner, [left, layers.Add()([left, inner])], name="nest")
    first, second = model(x)
    return layers.Concatenate()([first, second])


def dense_block(x):
    """Every concatenation is read by the next one and by a convolution, as in DenseNet."""
    for _ in range(3):
        y = layers.Conv2D(4, 3, padding="same")(layers.ReLU()(bn()(x)))
        x = layers.Concatenate()([x, y])
    return layers.Conv2D(8, 1)(x)


def encoder(x):
    """A tensor goes down and up, and on beside that, as in U-Net."""
    top = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    low = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(top))
    up = layers.Conv2DTranspose(8, 2, strides=2)(low)
    return layers.Conv2D(4, 1)(layers.Concatenate()([top, up]))


def residual(x):
    y = layers.ReLU(6.0)(bn()(layers.DepthwiseConv2D(3, padding="same")(x)))
    y = bn()(layers.Conv2D(8, 1)(y))
    y = layers.ReLU()(layers.Add()([x, y]))
    return layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(y))


def fan_out(x):
    y = conv()(x)
    return layers.Add()([layers.ReLU()(y), y])


def squeeze(x):
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = layers.Conv2D(8, 1, activation="sigmoid")(layers.Conv2D(4, 1, activation="relu")(y))
    return layers.Multiply()([x, y])


# Name: (input shape, layers).
MODELS = {
    "conv": (IMAGE, lambda: conv()),
    "conv_relu": (IMAGE, lambda: conv(activation="relu")),
    "conv_relu6": (IMAGE, lambda: then(conv(), layers.ReLU(6.0))),
    "conv_bn": (IMAGE, lambda: then(conv(use_bias=False), bn())),
    "conv_bn_relu": (IMAGE, lambda: then(conv(), bn(), layers.Activation("relu"))),
    "conv_strided": (IMAGE, lambda: layers.Conv2D(16, 3, strides=2)),
    "conv_dilated": (IMAGE, lambda: layers.Conv2D(16, 3, dilation_rate=2)),
    "conv1d": (ROW, lambda: layers.Conv1D(16, 3, strides=2, activation="relu")),
    "conv1d_causal": (
        ROW,
        lambda: then(layers.Conv1D(16, 3, padding="causal", dilation_rate=2), bn()),
    ),
    "depthwise": (IMAGE, lambda: layers.DepthwiseConv2D(3, padding="same")),
    "depthwise_multiplied": (
        IMAGE,
        lambda: layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2),
    ),
    "depthwise_bn_relu6": (IMAGE, lambda: then(layers.DepthwiseConv2D(3), bn(), layers.ReLU(6.0))),
    "depthwise1d": (ROW, lambda: layers.DepthwiseConv1D(3, padding="same")),
    "separable": (IMAGE, lambda: layers.SeparableConv2D(16, 3, activation="relu")),
    "separable_bn": (IMAGE, lambda: then(layers.SeparableConv2D(8, 1, use_bias=False), bn())),
    "separable1d": (ROW, lambda: layers.SeparableConv1D(16, 3)),
    "transposed": (IMAGE, lambda: layers.Conv2DTranspose(16, 3, strides=2)),
    "transposed_same": (
        IMAGE,
        lambda: then(layers.Conv2DTranspose(4, 4, strides=2, padding="same"), bn(), layers.ReLU()),
    ),
    "dense": (IMAGE, lambda: layers.Dense(16)),
    "dense_row": (ROW, lambda: layers.Dense(16, activation="relu")),
    "dense_flat": (IMAGE, lambda: then(layers.Flatten(), layers.Dense(20), bn(), layers.ReLU())),
    "dense_softmax": (
        IMAGE,
        lambda: then(layers.Flatten(), layers.Dense(10, activation="softmax")),
    ),
    "bn": (IMAGE, lambda: bn()),
    "bn_relu": (IMAGE, lambda: then(bn(), layers.ReLU())),
    "bn_flat": (IMAGE, lambda: then(layers.Flatten(), bn())),
    "bn_row": (ROW, lambda: bn()),
    "rescaling": (IMAGE, lambda: layers.Rescaling(1 / 127.5, -1.0)),
    "rescaling_channels": (
        IMAGE,
        lambda: layers.Rescaling(list(np.linspace(0.1, 3, 8)), list(np.linspace(-1, 1, 8))),
    ),
    "normalization": (
        IMAGE,
        lambda: layers.Normalization(mean=np.linspace(-1, 1, 8), variance=np.linspace(0.1, 2, 8)),
    ),
    "relu": (IMAGE, lambda: layers.ReLU()),
    "relu6": (IMAGE, lambda: layers.Activation("relu6")),
    "leaky": (IMAGE, lambda: layers.LeakyReLU(0.1)),
    "conv_leaky": (IMAGE, lambda: conv(activation="leaky_relu")),
    "prelu": (IMAGE, lambda: layers.PReLU(shared_axes=[1, 2])),
    "prelu_full": (IMAGE, lambda: then(conv(), layers.PReLU())),
    "hard_swish": (IMAGE, lambda: layers.Activation("hard_swish")),
    "conv_hard_swish": (
        IMAGE,
        lambda: then(conv(use_bias=False), bn(), layers.Activation("hard_silu")),
    ),
    "swish": (IMAGE, lambda: layers.Activation("swish")),
    "sigmoid": (IMAGE, lambda: layers.Activation("sigmoid")),
    "tanh": (IMAGE, lambda: layers.Activation("tanh")),
    "softmax": (IMAGE, lambda: layers.Softmax()),
    "sigmoid_dense": (IMAGE, lambda: then(layers.Flatten(), layers.Dense(1, activation="sigmoid"))),
    "added": (IMAGE, lambda: lambda x: layers.Add()([x, layers.MaxPooling2D(3, 1, "same")(x)])),
    "added_three": (IMAGE, lambda: lambda x: layers.Add()([x, conv1(x), layers.ReLU()(x)])),
    "added_relu": (IMAGE, lambda: lambda x: layers.ReLU()(x + conv1(x))),
    "multiplied": (
        IMAGE,
        lambda: lambda x: layers.Multiply()([x, layers.Activation("sigmoid")(x)]),
    ),
    "subtracted": (IMAGE, lambda: lambda x: layers.Subtract()([conv1(x), x])),
    "concatenated": (
        IMAGE,
        lambda: lambda x: layers.Concatenate()([x, conv1(x), layers.ReLU()(conv1(x))]),
    ),
    "maxpool": (IMAGE, lambda: layers.MaxPooling2D(2)),
    "maxpool1d": (ROW, lambda: layers.MaxPooling1D(2)),
    "avgpool": (IMAGE, lambda: layers.AveragePooling2D(2)),
    "avgpool_same": (IMAGE, lambda: layers.AveragePooling2D(3, strides=2, padding="same")),
    "avgpool1d": (ROW, lambda: layers.AveragePooling1D(2)),
    "mean": (IMAGE, lambda: layers.GlobalAveragePooling2D()),
    "mean_keep": (IMAGE, lambda: layers.GlobalAveragePooling2D(keepdims=True)),
    "mean1d": (ROW, lambda: layers.GlobalAveragePooling1D()),
    "max": (IMAGE, lambda: layers.GlobalMaxPooling2D()),
    "max1d": (ROW, lambda: layers.GlobalMaxPooling1D()),
    "padded": (IMAGE, lambda: layers.ZeroPadding2D(((1, 0), (2, 1)))),
    "padded1d": (ROW, lambda: layers.ZeroPadding1D(2)),
    "cropped": (IMAGE, lambda: layers.Cropping2D(1)),
    "reshaped": (IMAGE, lambda: layers.Reshape((24, 48))),
    "permuted": (IMAGE, lambda: layers.Permute((2, 1, 3))),
    "flat": (IMAGE, lambda: layers.Flatten()),
    "dropout": (IMAGE, lambda: then(layers.Dropout(0.5), layers.ReLU())),
    "upsampled": (IMAGE, lambda: layers.UpSampling2D((2, 3))),
    "upsampled_bilinear": (IMAGE, lambda: layers.UpSampling2D(2, interpolation="bilinear")),
    "shared": (IMAGE, lambda: shared),
    "shared_block": (IMAGE, lambda: shared_block),
    "shared_apart": (IMAGE, lambda: shared_apart),
    "nested": (IMAGE, lambda: nested),
    "fan_out": (IMAGE, lambda: fan_out),
    "dense_block": (IMAGE, lambda: dense_block),
    "encoder": (IMAGE, lambda: encoder),
    "residual": (IMAGE, lambda: residual),
    "squeeze": (IMAGE, lambda: squeeze),
    # No rule: these stay float, and the file says so.
    "float_elu": (IMAGE, lambda: then(conv(), layers.ELU(), conv())),
}


def conv1(x):
    return layers.Conv2D(8, 1)(x)


def build(chosen):
    """One model of a branch for each name; an input for each, so that none shares a tensor."""
    inputs = [keras.Input(MODELS[name][0], name=f"x_{name}") for name in chosen]
    # Each output gets its name from a layer that computes nothing.
    outputs = [
        layers.Activation("linear", name=f"out_{name}")(MODELS[name][1]()(x))
        for name, x in zip(chosen, inputs, strict=True)
    ]
    model = keras.Model(inputs, outputs)
    for weight in model.weights:
        weight.assign(values(weight))
    return model


def values(weight):
    if "variance" in weight.name:
        return RNG.uniform(0.2, 2, size=weight.shape)
    if len(weight.shape) > 1:
        channels = weight.shape[-2:] if "depthwise" in weight.path else weight.shape[-1:]
        spread = np.exp(RNG.normal(size=channels))
        return RNG.normal(size=weight.shape) * spread / np.sqrt(weight.shape[0] * 8)
    return RNG.normal(size=weight.shape) * 0.3 + (weight.name == "gamma")


def write(folder, chosen):
    folder.mkdir(exist_ok=True)
    model = build(chosen)
    shapes = [tensor.shape[1:] for tensor in model.inputs]
    samples = [(RNG.normal(size=(32, *shape)) * 2).astype(np.float32) for shape in shapes]
    twin = qat.quantize_model(model)
    qat.calibrate(twin, samples)
    few = [array[:8] for array in samples]
    stripped = qat.strip(twin)
    results = {"float": model(few), "twin": twin(few), "stripped": stripped(few)}
    for kind, outputs in results.items():
        arrays = {
            f"y_{n}": np.asarray(y)
            for n, y in zip(chosen, keras.tree.flatten(outputs), strict=True)
        }
        np.savez(folder / f"{kind}.npz", **arrays)
    np.savez(folder / "inputs.npz", **dict(zip([t.name for t in model.inputs], few, strict=True)))
    description = qat.export(twin, folder / "int8.tflite")
    description["float_layers"] = twin_of(twin).float_layers
    (folder / "described.json").write_text(json.dumps(description))


def digits(name):
    """Real digits, as the example's model takes them."""
    with np.load(ROOT / "examples" / "digits" / "data" / f"{name}.npz") as stored:
        return stored["x"].astype(np.float32)[..., None] / 255


def write_digits(folder):
    """The example's trained model: its twin's answers to 1,000 digits, and its int8 file."""
    folder.mkdir()
    model = keras.saving.load_model(ROOT / "examples" / "digits" / "model.keras")
    twin = qat.quantize_model(model)
    qat.calibrate(twin, digits("calibration"))
    inputs = digits("evaluation")
    answers = tf.function(twin)
    outputs = [np.asarray(answers(inputs[i : i + 100])) for i in range(0, len(inputs), 100)]
    np.savez(folder / "twin.npz", **{f"y_{model.output_names[0]}": np.concatenate(outputs)})
    np.savez(folder / "inputs.npz", **{model.inputs[0].name: inputs})
    description = qat.export(twin, folder / "int8.tflite")
    (folder / "described.json").write_text(json.dumps(description))


def write_normalized(folder):
    """Two steps of a BatchNormalization in training, by Keras and by the twin."""
    found = {}
    for kind in ("keras", "twin"):
        for form, options in {"full": {}, "bare": {"scale": False, "center": False}}.items():
            random = np.random.default_rng(0)
            norm = layers.BatchNormalization(momentum=0.8, epsilon=0.1, **options)
            norm.build((None, 3, 3, 4))
            for weight in norm.weights:
                weight.assign(random.uniform(0.5, 2, weight.shape))
            for step in range(2):
                x = tf.constant(random.normal(size=(2, 3, 3, 4)) * [1, 5, 9, 13], tf.float32)
                own = kind == "keras"
                y = norm(x, training=True) if own else normalized(norm, x, training=True)
                found[f"{kind}_{form}_{step}"] = np.asarray(y)
            for weight in norm.weights:
                found[f"{kind}_{form}_{weight.name}"] = np.asarray(weight)
    np.savez(folder / "normalized.npz", **found)


def main(folder, chosen):
    write_normalized(folder)
    if "digits" in chosen:
        write_digits(folder / "digits")
        chosen = [name for name in chosen if name != "digits"]
    kind = "float" if chosen[0].startswith("float_") else "integer"
    write(folder / kind, chosen)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
