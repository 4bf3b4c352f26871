"""Keras models that no graph holds."""

import keras
import numpy as np
from keras import layers

INPUT = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32)


class Collatz(keras.layers.Layer):
    """Counts steps in a Python loop whose length depends on the values."""

    def call(self, x):
        found = [[self._steps(value) for value in row] for row in np.asarray(x).tolist()]
        return keras.ops.convert_to_tensor(np.array(found, np.float32) / 10)

    @staticmethod
    def _steps(value):
        number, steps = 1 + int(abs(value) * 10), 0
        while number != 1:
            number = 3 * number + 1 if number % 2 else number // 2
            steps += 1
        return steps


class Counted(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = Collatz()
        self.out = layers.Dense(3, activation="softmax")

    def build(self, input_shape):
        self.out.build(input_shape)

    def call(self, x):
        return self.out(self.count(x))


class Unbuilt(keras.Model):
    """Keras cannot build it without calling it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = Collatz()
        self.out = layers.Dense(3)

    def call(self, x):
        return self.out(self.count(x))


class Pair(keras.Model):
    """Two arguments, and a dictionary of outputs whose sorted order is not its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = Collatz()
        self.left, self.right = layers.Dense(2), layers.Dense(2)

    def build(self, near_shape, far_shape):
        self.left.build(near_shape)
        self.right.build(far_shape)

    def call(self, near, far):
        return {"zeta": self.left(near) - self.right(far), "alpha": self.count(far)}


def counted():
    keras.utils.set_random_seed(3)
    model = Counted(name="counted")
    model(INPUT)
    return model


def pair():
    keras.utils.set_random_seed(4)
    model = Pair(name="pair")
    model(INPUT, far=INPUT[:, :2])
    return model


def save(folder):
    model, unbuilt = counted(), Unbuilt()
    unbuilt(INPUT)
    model.save(folder / "counted.keras")
    unbuilt.save(folder / "unbuilt.keras")
    answers = pair()(INPUT, far=INPUT[:, :2])
    np.savez(folder / "answers.npz", input=INPUT, counted=model(INPUT), **answers)
