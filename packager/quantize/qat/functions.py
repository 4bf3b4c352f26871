"""The twin's layers without weights of a kernel: activations, sums and products, enlarging."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from packager.quantize.qat.layers import (
    ACTIVATIONS,
    SMALLEST_WEIGHT,
    UNIT,
    Range,
    sizes,
    value_of,
)

Tensor = Any


class LearnedLeak(keras.layers.Layer):
    """PReLU, with its slopes fake-quantized."""

    def __init__(self, inner: Any, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.inner = inner
        self.calibrating = False
        self.constants = False

    def build(self, input_shape: Any) -> None:
        """Makes nothing: the parts are built."""
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """Computes `max(x, 0) - slope * max(-x, 0)`, the form that the converter knows."""
        slope = self.inner.alpha.value
        if self.constants:
            negative = tf.constant(-value_of(self.inner.alpha))
        elif self.calibrating:
            negative = -slope
        else:
            limit = tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(slope)), SMALLEST_WEIGHT))
            negative = tf.quantization.fake_quant_with_min_max_vars(
                -slope, -limit, limit, narrow_range=True
            )
        return tf.nn.relu(x) + negative * tf.nn.relu(-x)


class Function(keras.layers.Layer):
    """An activation that TFLite has as an operator of its own, in the form the converter knows."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {
        "relu": tf.nn.relu,
        "relu6": tf.nn.relu6,
        "sigmoid": tf.nn.sigmoid,
        "tanh": tf.nn.tanh,
        "softmax": tf.nn.softmax,
        "hard_silu": lambda x: x * tf.nn.relu6(x + np.float32(3)) * np.float32(1 / 6),
    }

    def __init__(self, function: str, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.function = function

    def call(self, x: Tensor) -> Tensor:
        """Applies the function."""
        return self.FUNCTIONS[self.function](x)


class Gate(keras.layers.Layer):
    """SiLU (swish): TFLite computes it as a sigmoid and a product."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.range = Range(UNIT, name="sigmoid_range")

    def build(self, input_shape: Any) -> None:
        """Makes nothing: the parts are built."""
        self.range.build(input_shape)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """Applies the function."""
        return x * self.range(tf.nn.sigmoid(x))


class Leak(keras.layers.Layer):
    """LeakyReLU with a constant slope."""

    def __init__(self, slope: float, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.slope = slope

    def call(self, x: Tensor) -> Tensor:
        """Applies the function."""
        return tf.nn.leaky_relu(x, self.slope)


class Join(keras.layers.Layer):
    """Add, Subtract or Multiply of two tensors or more, and the ReLU behind it."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {
        "add": tf.add,
        "subtract": tf.subtract,
        "multiply": tf.multiply,
    }

    def __init__(self, function: str, activation: str = "", **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.function = function
        self.activation = activation

    def call(self, first: Tensor, second: Tensor) -> Tensor:
        """Applies the function."""
        return ACTIVATIONS[self.activation](self.FUNCTIONS[self.function](first, second))


class Enlarge(keras.layers.Layer):
    """UpSampling2D, as one resize operator."""

    def __init__(self, factors: tuple[int, int], interpolation: str, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.factors = factors
        self.interpolation = interpolation

    def call(self, x: Tensor) -> Tensor:
        """Resizes."""
        height, width = (n * f for n, f in zip(sizes(x)[1:3], self.factors, strict=True))
        if self.interpolation == "nearest":
            # By whole factors the corners' positions do not matter; this is the oldest operator.
            return tf.compat.v1.image.resize_nearest_neighbor(x, (height, width))
        return tf.image.resize(x, (height, width), "bilinear")
