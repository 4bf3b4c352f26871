"""Writes small models, good and bad, into a folder: python make_models.py FOLDER.

Runs in a child process, because it needs TensorFlow. Weights are seeded and well scaled.
"""

import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

RNG = np.random.default_rng(3)


def fill(model):
    """Gives every weight values with a spread of about one per unit of fan-in."""
    for weight in model.weights:
        fan_in = max(1, int(np.prod(weight.shape[:-1])))
        values = RNG.normal(size=weight.shape) / np.sqrt(fan_in)
        if "variance" in weight.path or "gamma" in weight.path:
            values = RNG.uniform(0.5, 1.5, weight.shape)
        weight.assign(values)
    return model


def small_cnn():
    image = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(8, 3, padding="same", name="conv")(image)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.ReLU(name="relu")(x)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return fill(keras.Model(image, layers.Dense(4, activation="softmax", name="answer")(x)))


def two_ends():
    left = keras.Input((3,), name="left side")
    right = keras.Input((5,), name="right-side ü")
    merged = layers.Concatenate(name="both")([right, left])
    first = layers.Dense(2, name="first")(merged)
    second = layers.Dense(6, activation="tanh", name="1st hidden")(merged)
    return fill(keras.Model([left, right], [first, second]))


def binary():
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu", name="hidden")(x)
    return fill(keras.Model(x, layers.Dense(1, activation="sigmoid", name="score")(hidden)))


def linear():
    x = keras.Input((6,), name="x")
    return fill(keras.Model(x, layers.Dense(3, name="values")(x)))


def recurrent():
    x = keras.Input((6, 5), name="steps")
    memory = layers.GRU(12, name="memory")(x)
    ordered = keras.ops.sort(memory)  # which no layer of TF.js does
    return fill(keras.Model(x, layers.Dense(4, activation="softmax", name="answer")(ordered)))


@keras.saving.register_keras_serializable("tests")
class Doubling(layers.Layer):
    """A custom layer that nothing but this file defines."""

    def call(self, x):
        return 2.0 * x


class Subclassed(keras.Model):
    """A subclassed model."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3, activation="relu")

    def call(self, x):
        return self.dense(x)


class HalfPlusTwo(tf.Module):
    """A model without Keras: two signatures."""

    def __init__(self):
        super().__init__()
        self.a = tf.Variable(0.5)
        self.b = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def half(self, x):
        return {"y": self.a * x + self.b}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def double(self, x):
        return {"y": 2.0 * x}


def main(folder):
    cnn = small_cnn()
    cnn.save(folder / "cnn.keras")
    cnn.save(folder / "cnn.h5")
    (folder / "cnn.h5").rename(folder / "renamed_h5.model")
    cnn.save_weights(folder / "only.weights.h5")
    cnn.export(folder / "exported", verbose=False)
    pixels = RNG.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(
        folder / "pixels.npz",
        x=pixels,
        y=cnn.predict(pixels[..., None] / 255.0, verbose=0).argmax(axis=1),
    )
    made = {"two_ends": two_ends, "binary": binary, "linear": linear, "recurrent": recurrent}
    for name, model in ((name, make()) for name, make in made.items()):
        model.save(folder / f"{name}.keras")
    x = keras.Input((4,), name="x")
    keras.Model(x, layers.Lambda(lambda t: t * 3.0, name="tripled")(x)).save(
        folder / "lambda.keras"
    )
    keras.Model(x, Doubling(name="doubled")(x)).save(folder / "custom.keras")
    fill(keras.Model(x, layers.Dense(2, name="out")(x))).save(folder / "nan.keras")
    broken = keras.saving.load_model(folder / "nan.keras")
    broken.layers[-1].kernel.assign(np.full((4, 2), np.nan))
    broken.save(folder / "nan.keras")
    long = keras.Input((None, 4), name="series")
    fill(keras.Model(long, layers.Dense(3, name="out")(long))).save(folder / "free_axis.keras")
    fft = keras.Input((16,), name="wave")
    keras.Model(
        fft, keras.ops.real(keras.ops.fft2((keras.ops.reshape(fft, (-1, 4, 4)),) * 2)[0])
    ).save(folder / "fft.keras")
    module = HalfPlusTwo()
    tf.saved_model.save(
        module,
        str(folder / "half_plus_two"),
        signatures={"half": module.half, "double": module.double},
    )
    called = Subclassed(name="sub")
    called(np.zeros((1, 5), np.float32))
    fill(called).export(folder / "subclassed_export", verbose=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
