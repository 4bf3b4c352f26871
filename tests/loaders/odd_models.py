"""Keras models that are easy to get wrong; run with a FOLDER it writes what they answer."""

import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
from keras import layers

INPUTS = np.random.default_rng(4).normal(size=(5, 6)).astype(np.float32)


def seeded(model):
    generator = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(generator.normal(size=weight.shape) / np.sqrt(max(1, weight.shape[0])))
    return model


class TwoAnswers(keras.Model):
    """Returns a dictionary whose sorted order is not its own."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(5, activation="tanh")
        self.first = layers.Dense(3)
        self.second = layers.Dense(2)

    def call(self, x):
        hidden = self.hidden(x)
        return {"zeta": self.first(hidden), "alpha": self.second(hidden)}


class Scaled(keras.Model):
    """A functional model whose call does more than its graph."""

    def __init__(self):
        x = keras.Input((6,), name="x")
        super().__init__(x, layers.Dense(3, name="plain")(x))

    def call(self, x, training=None, mask=None):
        return super().call(x, training=training) * 100.0


class ScaledSequence(keras.Sequential):
    """The same for a Sequential model."""

    def call(self, x, training=None, mask=None):
        return super().call(x, training=training) * 100.0


def called():
    model = TwoAnswers()
    model(INPUTS)
    return seeded(model)


def scaled():
    return seeded(Scaled())


def scaled_sequence():
    return seeded(ScaledSequence([keras.Input((6,), name="x"), layers.Dense(3)]))


def half():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x = keras.Input((6,), name="x")
        hidden = layers.Dense(8, activation="relu")(x)
        return seeded(keras.Model(x, layers.Dense(3, name="y")(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")


def unsorted_outputs():
    x = keras.Input((6,), name="x")
    return seeded(
        keras.Model(x, [layers.Dense(3, name="zeta")(x), layers.Dense(3, name="alpha")(x)])
    )


def reshaped_softmax():
    x = keras.Input((6,), name="x")
    y = layers.Dense(4, activation="softmax")(x)
    return seeded(keras.Model(x, layers.Reshape((4,), name="y")(y)))


def cut_when_traced():
    """Keras 3.15: with this dtype the traced layer cuts its inputs to whole numbers."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Discretization([-0.5, 0.0, 0.7], dtype="int64", name="bins")(x))


class EagerOnly(layers.Layer):
    """Computes something else inside a graph."""

    def call(self, x):
        import tensorflow as tf

        return x * 2.0 if tf.executing_eagerly() else x * 2.01


def another_graph():
    x = keras.Input((6,), name="x")
    return keras.Model(x, EagerOnly(name="y")(x))


class Noisy(layers.Layer):
    """Draws random numbers, whatever it is told."""

    def call(self, x):
        return x + keras.random.normal((6,))


def random_answers():
    x = keras.Input((6,), name="x")
    return keras.Model(x, Noisy(name="y")(x))


def stateful():
    x = keras.Input(batch_shape=(1, 6), name="x")
    rows = layers.Reshape((3, 2))(x)
    return seeded(keras.Model(x, layers.LSTM(3, stateful=True, name="y")(rows)))


def samples_elsewhere():
    x = keras.Input((6,), name="x")
    return keras.Model(x, keras.ops.transpose(x))


def recurrent(scale=1.0, *, mask=False):
    words = keras.Input((6,), dtype="int32", name="words")
    rows = layers.Embedding(11, 4, mask_zero=mask)(words)
    rows = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(rows)
    model = seeded(keras.Model(words, layers.Dense(2, name="y")(layers.GRU(4)(rows))))
    model.set_weights([scale * w for w in model.get_weights()])
    return model


def recurrent_masked():
    """Keras 3.15: unrolled, a masked layer that goes backwards gives something else."""
    return recurrent(mask=True)


def recurrent_with_other_weights():
    return recurrent(1.01)


def long():
    x = keras.Input((2000, 2), name="x")
    return keras.Model(x, layers.Bidirectional(layers.SimpleRNN(2, name="slow"))(x))


def floored():
    x = keras.Input((6,), name="x")
    return keras.Model(x, keras.ops.floor(x))


def channels_first():
    x = keras.Input((3, 8, 8), name="x")
    return keras.Model(x, layers.Conv2D(4, 3, data_format="channels_first", name="nchw")(x))


EQUAL = ("called", "scaled", "scaled_sequence", "half", "unsorted_outputs", "reshaped_softmax")

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    np.save(folder / "inputs.npy", INPUTS)
    for name in EQUAL:
        answers = globals()[name]()(INPUTS, training=False)
        if not isinstance(answers, (list, dict)):
            answers = [answers]
        flat = keras.tree.flatten(answers)
        np.savez(folder / f"{name}.npz", *[np.asarray(a, np.float32) for a in flat])
