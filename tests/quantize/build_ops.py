"""Writes one-operator float models for tests/quantize: python build_ops.py FOLDER.

Weights differ in size by channel, so that a kernel that mixes up scales cannot pass.
"""

import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
from keras import layers

from packager.loaders.keras3 import open_model
from packager.targets import tflite_convert

RNG = np.random.default_rng(0)
SHAPE = (12, 12, 8)
LAYERS = {
    "conv": lambda: layers.Conv2D(32, 3, padding="same"),
    "pointwise": lambda: layers.Conv2D(160, 1),
    "strided": lambda: layers.Conv2D(32, 3, strides=2),
    "dilated": lambda: layers.Conv2D(32, 3, dilation_rate=2),
    "depthwise": lambda: layers.DepthwiseConv2D(3, depth_multiplier=16),
    "dense": lambda: layers.Dense(160),
    "transposed": lambda: layers.Conv2DTranspose(16, 3, strides=2),
    "separable": lambda: layers.SeparableConv2D(24, 3),
    "pooled": lambda: layers.AveragePooling2D(2),
    "padded": lambda: layers.ZeroPadding2D(1),
    "upsampled": lambda: layers.UpSampling2D(2),
    "tanh": lambda: layers.Activation("tanh"),
    "sigmoid": lambda: layers.Activation("sigmoid"),
    "silu": lambda: layers.Activation("silu"),
    "hard_silu": lambda: layers.Activation("hard_silu"),
    "leaky": lambda: layers.LeakyReLU(0.1),
    "softmax": lambda: layers.Softmax(),
    "mean": lambda: layers.GlobalAveragePooling2D(),
    "maxpool": lambda: layers.MaxPooling2D(2),
    "flat_dense": lambda: lambda x: layers.Dense(20)(layers.Flatten()(x)),
    "added": lambda: lambda x: layers.Add()([x, layers.ReLU()(x)]),
    "multiplied": lambda: lambda x: layers.Multiply()([x, layers.Activation("sigmoid")(x)]),
    "subtracted": lambda: lambda x: layers.Subtract()([layers.ReLU()(x), x]),
    "concatenated": lambda: lambda x: layers.Concatenate()([x, layers.ReLU()(x)]),
    "matmul": lambda: (
        lambda x: layers.Dot(axes=(2, 1))(
            [layers.Reshape((144, 8))(x), layers.Reshape((8, 144))(x)]
        )
    ),
    "gelu": lambda: layers.Activation("gelu"),
    "normalised": lambda: layers.LayerNormalization(),
}


def build(make):
    x = keras.Input(SHAPE, name="x")
    model = keras.Model(x, make()(x))
    for weight in model.weights:
        channels = weight.shape[-2:] if "depthwise" in weight.path else weight.shape[-1:]
        if len(weight.shape) > 1:
            fan_in = np.prod(weight.shape) / np.prod(channels)
            spread = np.exp(RNG.normal(size=channels)) / np.sqrt(fan_in)
            weight.assign(RNG.normal(size=weight.shape) * spread)
        else:
            weight.assign(RNG.normal(size=weight.shape) * 0.1)
    return model


def main(folder):
    inputs = RNG.normal(size=(24, *SHAPE)).astype(np.float32)
    (folder / "inputs").mkdir()
    np.save(folder / "inputs" / "x.npy", inputs)
    for name, make in LAYERS.items():
        model = build(make)
        opened = open_model(model, name, "callable", "keras")
        ends = tflite_convert.convert(opened, folder / f"{name}.raw", {})
        np.save(folder / f"{name}.expected.npy", model.predict(inputs[:8], verbose=0))
        (folder / f"{name}.output").write_text(ends["outputs"][0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
