"""Trains the small digit classifier that the demo packages, in about two minutes on two cores.

    python train.py

It reads `data/train.npz`, measures on `data/evaluation.npz` and writes `model.keras`. The model
takes float32 [N, 28, 28, 1] in 0..1 (white digit on black) and gives ten probabilities.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Training must not depend on how TensorFlow splits sums between oneDNN's threads.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

HERE = Path(__file__).resolve().parent
SEED = 7
EPOCHS = 20
BATCH = 64
PEAK_LEARNING_RATE = 4e-3
REQUIRED_ACCURACY = 0.97


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a data set: images float32 [N, 28, 28] in 0..1, digits uint8 [N]."""
    with np.load(HERE / "data" / f"{name}.npz", allow_pickle=False) as data:
        return data["x"].astype(np.float32) / 255, data["y"]


def build_model() -> keras.Model:
    """Returns the untrained network: two convolutions and two residual depthwise blocks."""
    image = keras.Input((28, 28, 1), name="image")
    x = convolution(image, 16, "stem")
    x = convolution(x, 32, "widen1")
    x = layers.MaxPooling2D(2, name="pool1")(x)
    x = residual_block(x, "block1")
    x = convolution(x, 64, "widen2")
    x = layers.MaxPooling2D(2, name="pool2")(x)
    x = residual_block(x, "block2")
    x = layers.GlobalAveragePooling2D(name="average")(x)
    x = layers.Dropout(0.2, name="dropout")(x)
    digit = layers.Dense(10, activation="softmax", name="digit")(x)
    return keras.Model(image, digit, name="digits")


def convolution(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
    """Returns a 3 x 3 convolution with batch normalization and ReLU."""
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
    x = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)


def residual_block(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Returns `relu(x + f(x))`; f is a depthwise 3 x 3 and a pointwise convolution."""
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name=f"{name}_depthwise")(x)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_depthwise_norm")(y)
    y = layers.ReLU(name=f"{name}_depthwise_relu")(y)
    y = layers.Conv2D(x.shape[-1], 1, use_bias=False, name=f"{name}_pointwise")(y)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_pointwise_norm")(y)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([x, y]))


def augment(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns each image turned, scaled and moved a little, float32 [N, 28, 28].

    Up to 12 degrees, 10 % and 2 pixels; bilinear, black outside.
    """
    count, height, width = images.shape
    angle = rng.uniform(-np.pi / 15, np.pi / 15, (count, 1, 1))
    scale = rng.uniform(0.9, 1.1, (count, 1, 1))
    move = rng.uniform(-2, 2, (2, count, 1, 1))
    y, x = np.mgrid[:height, :width] - (height - 1) / 2
    source_y = scale * (np.cos(angle) * y - np.sin(angle) * x) + (height - 1) / 2 + move[0]
    source_x = scale * (np.sin(angle) * y + np.cos(angle) * x) + (width - 1) / 2 + move[1]
    return sample_bilinear(images, source_y, source_x)


def sample_bilinear(images: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns `images` read at fractional positions `y`, `x` [N, H, W] in pixels."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    y = np.clip(y + 1, 0, padded.shape[1] - 1.001)
    x = np.clip(x + 1, 0, padded.shape[2] - 1.001)
    top, left = y.astype(np.intp), x.astype(np.intp)
    down, right = y - top, x - left
    n = np.arange(len(images))[:, None, None]
    above = padded[n, top, left] * (1 - right) + padded[n, top, left + 1] * right
    below = padded[n, top + 1, left] * (1 - right) + padded[n, top + 1, left + 1] * right
    return (above * (1 - down) + below * down).astype(np.float32)


def train(model: keras.Model, images: np.ndarray, digits: np.ndarray) -> None:
    """Fits `model` in place, with newly augmented images in every epoch."""
    steps = EPOCHS * -(-len(images) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(PEAK_LEARNING_RATE, steps)
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    rng = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        batch = augment(images, rng)[..., None]
        history = model.fit(batch, digits, batch_size=BATCH, verbose=0).history
        print(f"epoch {epoch + 1:2}/{EPOCHS}  loss {history['loss'][0]:.4f}", flush=True)


def accuracy(model: keras.Model, images: np.ndarray, digits: np.ndarray) -> float:
    """Returns the share of right answers, 0 to 1."""
    scores = model.predict(images[..., None], batch_size=250, verbose=0)
    return float(np.mean(scores.argmax(axis=1) == digits))


def main() -> None:
    """Trains, measures and saves; a model below the required accuracy is not saved."""
    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()
    model = build_model()
    train(model, *load("train"))
    measured = accuracy(model, *load("evaluation"))
    print(f"{model.count_params()} parameters, {measured:.2%} right on evaluation.npz")
    if measured < REQUIRED_ACCURACY:
        raise SystemExit(f"below {REQUIRED_ACCURACY:.0%}: model.keras is not written")
    # A copy without the optimizer: its state would triple the file.
    trained = build_model()
    trained.set_weights(model.get_weights())
    trained.save(HERE / "model.keras")


if __name__ == "__main__":
    main()
