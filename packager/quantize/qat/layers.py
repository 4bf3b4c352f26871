"""The twin's layers: fake-quantized tensors and weights, as TFLite's int8 kernels compute them.

Each has two states more than training and inference. `calibrating`: nothing is quantized, and
the ranges of the activations are recorded. `constants`: weights and ranges are constants of the
graph, which TensorFlow's converter needs to see integers.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from packager.quantize.qat import normalizing

Tensor = Any
Array = np.ndarray[Any, Any]

# Ranges that TFLite's specification fixes: scale 1/256 and 1/128.
UNIT = (0.0, 255 / 256)
SIGNED_UNIT = (-1.0, 127 / 128)

# A range must contain 0, which int8 then holds exactly, and must not be empty.
_SMALLEST_RANGE = 1e-5
# The smallest weight scale that a kernel's integer multiplier can still use.
SMALLEST_WEIGHT = 1e-7


@keras.saving.register_keras_serializable("packager")
class Range(keras.layers.Layer):
    """Fake-quantizes a tensor to int8 with one asymmetric range, a moving average.

    Args:
        fixed: The range that TFLite's specification fixes, for instance of a softmax.
        at_end: The tensor is an output of the model: a fixed range is not applied in training,
            where a probability of 0 would make the loss infinite.
        momentum: Share of the old range that each training step keeps.
    """

    def __init__(
        self,
        fixed: tuple[float, float] | None = None,
        at_end: bool = False,
        momentum: float = 0.99,
        **arguments: Any,
    ) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.fixed = None if fixed is None else (float(fixed[0]), float(fixed[1]))
        self.at_end = at_end
        self.momentum = momentum
        self.calibrating = False
        self.constants = False
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Makes the two ends of the range."""
        low, high = self.fixed or (-1.0, 1.0)
        self.low, self.high = (
            self.add_weight(
                name=name,
                initializer=keras.initializers.Constant(value),
                trainable=False,
                aggregation="only_first_replica",
            )
            for name, value in (("low", low), ("high", high))
        )

    def call(
        self,
        x: Tensor,
        training: bool | None = None,
        observe: bool = True,
    ) -> Tensor:
        """Returns `x` on the grid of its range.

        Args:
            x: Float tensor.
            training: Moves the range.
            observe: False where this is the range of another tensor, whose values count alone.
        """
        if self.calibrating:
            if observe and self.fixed is None:
                self.low.assign(tf.minimum(self.low, tf.reduce_min(x)))
                self.high.assign(tf.maximum(self.high, tf.reduce_max(x)))
            return x
        if self.fixed is not None and self.at_end and training:
            return x
        if training and observe and self.fixed is None:
            self._follow(x)
        low, high = self.low.value, self.high.value
        if self.constants:
            low, high = tf.constant(value_of(self.low)), tf.constant(value_of(self.high))
        return tf.quantization.fake_quant_with_min_max_vars(x, low, high)

    def _follow(self, x: Tensor) -> None:
        low, high = _over_replicas(tf.stack([tf.reduce_min(x), tf.reduce_max(x)]))
        keep = self.momentum
        low = keep * self.low.value + (1 - keep) * tf.minimum(low, 0.0)
        high = keep * self.high.value + (1 - keep) * tf.maximum(high, 0.0)
        self.low.assign(low)
        self.high.assign(tf.maximum(high, low + _SMALLEST_RANGE))

    def start_calibration(self) -> None:
        """Empties the range; calls record from here on."""
        self.calibrating = True
        if self.fixed is None:
            self.low.assign(0.0)
            self.high.assign(0.0)

    def end_calibration(self) -> None:
        """Keeps what was recorded."""
        self.calibrating = False
        if float(self.high.numpy()) - float(self.low.numpy()) < _SMALLEST_RANGE:
            self.high.assign(float(self.low.numpy()) + _SMALLEST_RANGE)

    def get_config(self) -> dict[str, Any]:
        """The layer's arguments."""
        own = {"fixed": self.fixed, "at_end": self.at_end, "momentum": self.momentum}
        return {**super().get_config(), **own}


def _over_replicas(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest minimum and largest maximum over all replicas of a distributed step."""
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        found = context.all_gather(bounds[tf.newaxis], axis=0)
        return tf.reduce_min(found[:, 0]), tf.reduce_max(found[:, 1])
    return bounds[0], bounds[1]


def fake_quantize_weights(kernel: Tensor) -> Tensor:
    """Weights on the grid of int8: symmetric, narrow range, one scale per channel of the last axis.

    The gradient passes unchanged: no weight lies outside a range that its channel's largest sets.
    """
    axes = tuple(range(len(kernel.shape) - 1))
    limit = tf.stop_gradient(tf.reduce_max(tf.abs(kernel), axis=axes))
    limit = tf.maximum(limit, SMALLEST_WEIGHT)
    return tf.quantization.fake_quant_with_min_max_vars_per_channel(
        kernel, -limit, limit, narrow_range=True
    )


def value_of(variable: Any) -> Array:
    """A variable's value while a graph is traced."""
    with tf.init_scope():
        return np.asarray(variable.value.numpy(), np.float32)


ACTIVATIONS = {"": tf.identity, "relu": tf.nn.relu, "relu6": tf.nn.relu6}


class Weighted(keras.layers.Layer):
    """A layer with fake-quantized weights, and the normalization and ReLU that TFLite fuses.

    In training the weights are quantized before the normalization. Scales are per channel, so
    this is the same as quantizing the folded weights, which is what the constants are.

    Args:
        inner: A built layer of its own, which holds kernel and bias; it is not called.
        norm: A built BatchNormalization of its own, or None.
        activation: A key of `ACTIVATIONS`.

    Attributes:
        statistics_frozen: The normalization uses its moving statistics in training, too.
        precision: The type that the kernel is applied in. The layer itself is float32: Keras
            would hand a mixed layer its kernel rounded, and no fake-quantization takes 16 bits.
    """

    def __init__(self, inner: Any, norm: Any, activation: str, **arguments: Any) -> None:
        super().__init__(**{**arguments, "dtype": "float32"})
        self.precision = keras.config.dtype_policy().compute_dtype
        self.inner = inner
        self.norm = norm
        self.activation = activation
        self.statistics_frozen = False
        self.calibrating = False
        self.constants = False

    def build(self, input_shape: Any) -> None:
        """Makes nothing: the parts are built."""
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Computes the layer; the result is float32."""
        if self.constants:
            kernel, bias = self.folded()
            # The converter quantizes a constant as `fake_quantize_weights` does: per channel,
            # symmetric, by its largest. A fake-quantization here would stand in its way, because
            # it cannot carry scales per channel through the transposition of a kernel.
            y = self.compute(x, tf.constant(kernel))
            return ACTIVATIONS[self.activation](tf.nn.bias_add(y, tf.constant(bias)))
        kernel = self.kernel
        if not self.calibrating:
            kernel = self.from_last(fake_quantize_weights(self.to_last(kernel)))
        y = self.compute(tf.cast(x, self.precision), tf.cast(kernel, self.precision))
        y = tf.cast(y, tf.float32)
        if self.bias is not None:
            y = tf.nn.bias_add(y, self.bias)
        if self.norm is not None:
            learns = bool(training) and not self.statistics_frozen
            y = normalizing.normalized(self.norm, y, training=learns)
        return ACTIVATIONS[self.activation](y)

    def folded(self) -> tuple[Array, Array]:
        """Kernel and bias, float32, with the normalization in them."""
        with tf.init_scope():
            kernel = self.to_last(np.asarray(self.kernel, np.float32))
            bias = np.zeros(kernel.shape[-1]) if self.bias is None else np.asarray(self.bias)
            factor, offset = (
                normalizing.folding(self.norm) if self.norm is not None else (None, None)
            )
        if self.norm is not None:
            kernel = kernel * factor
            bias = bias * factor + offset
        return np.asarray(self.from_last(kernel), np.float32), bias.astype(np.float32)

    @property
    def kernel(self) -> Tensor:
        """The float kernel."""
        return self.inner.kernel.value

    @property
    def bias(self) -> Tensor | None:
        """The float bias."""
        found = getattr(self.inner, "bias", None)
        return None if found is None else found.value

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        raise NotImplementedError

    def to_last(self, kernel: Any) -> Any:
        """Arranges a kernel so that its last axis is the output channel."""
        return kernel

    def from_last(self, kernel: Any) -> Any:
        """The inverse of `to_last`."""
        return kernel


class Convolution(Weighted):
    """Conv1D or Conv2D."""

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        strides, dilations = _pair(self.inner.strides), _pair(self.inner.dilation_rate)
        if self.inner.rank == 1:
            x, kernel = _with_height(x, self.inner), kernel[tf.newaxis]
        padding = _padding(self.inner)
        y = tf.nn.conv2d(x, kernel, strides, padding, dilations=dilations)
        return _without_height(y) if self.inner.rank == 1 else y


class Depthwise(Weighted):
    """DepthwiseConv1D or DepthwiseConv2D."""

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        strides, dilations = _pair(self.inner.strides), _pair(self.inner.dilation_rate)
        if self.inner.rank == 1:
            x, kernel = _with_height(x, self.inner), kernel[tf.newaxis]
            strides = (max(strides),) * 2
        padding = _padding(self.inner)
        y = tf.nn.depthwise_conv2d(x, kernel, (1, *strides, 1), padding, dilations=dilations)
        return _without_height(y) if self.inner.rank == 1 else y

    def to_last(self, kernel: Any) -> Any:
        """The output channel last."""
        return _reshaped(kernel, self._flat)

    def from_last(self, kernel: Any) -> Any:
        """The inverse of `to_last`."""
        return _reshaped(kernel, tuple(self.inner.kernel.shape))

    @property
    def _flat(self) -> tuple[int, ...]:
        *space, channels, multiplier = self.inner.kernel.shape
        return (*space, channels * multiplier)


class TransposedConvolution(Weighted):
    """Conv2DTranspose."""

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        shape = sizes(x)
        space = self.inner.compute_output_shape((1, *shape[1:3], x.shape[-1]))[1:]
        if any(isinstance(n, tf.Tensor) for n in shape[1:3]):
            space = None
        output = (shape[0], *(space or self.inner.compute_output_shape(x.shape)[1:]))
        padding = self.inner.padding.upper()
        return tf.nn.conv2d_transpose(x, kernel, output, _pair(self.inner.strides), padding)

    def to_last(self, kernel: Any) -> Any:
        """The output channel last."""
        return _swap_last(kernel)

    def from_last(self, kernel: Any) -> Any:
        """The inverse of `to_last`."""
        return _swap_last(kernel)


class FullyConnected(Weighted):
    """Dense, on any rank."""

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        *rows, features = sizes(x)
        flat = x if len(rows) == 1 else tf.reshape(x, (-1, features))
        y = tf.matmul(flat, kernel)
        return y if len(rows) == 1 else tf.reshape(y, (*rows, kernel.shape[-1]))


class Scale(Weighted):
    """A factor and an offset per channel: a BatchNormalization, Rescaling or Normalization alone.

    TFLite computes it as a depthwise convolution of one pixel. The factor of a channel is its
    largest weight, so int8 holds it exactly.
    """

    def __init__(
        self, factor: Array, offset: Array | None, norm: Any, activation: str, **arguments: Any
    ) -> None:
        super().__init__(None, norm, activation, **arguments)
        self.factor = np.asarray(factor, np.float32).reshape(1, 1, -1, 1)
        self.offset = None if offset is None else np.asarray(offset, np.float32)

    @property
    def kernel(self) -> Tensor:
        """The factors."""
        return tf.constant(self.factor)

    @property
    def bias(self) -> Tensor | None:
        """The offsets."""
        return None if self.offset is None else tf.constant(self.offset)

    def compute(self, x: Tensor, kernel: Tensor) -> Tensor:
        """Applies the kernel, without bias."""
        shape = sizes(x)
        flat = x if len(shape) == 4 else tf.reshape(x, (shape[0], -1, 1, shape[-1]))
        y = tf.nn.depthwise_conv2d(flat, kernel, (1, 1, 1, 1), "VALID")
        return y if len(shape) == 4 else tf.reshape(y, shape)

    def to_last(self, kernel: Any) -> Any:
        """The output channel last."""
        return kernel.reshape(1, 1, -1) if isinstance(kernel, np.ndarray) else kernel[..., 0]

    def from_last(self, kernel: Any) -> Any:
        """The inverse of `to_last`."""
        return kernel[..., np.newaxis]


def sizes(x: Tensor) -> list[Any]:
    """The sizes of a tensor: numbers where they are known, tensors elsewhere."""
    dynamic = tf.shape(x)
    return [dynamic[i] if n is None else n for i, n in enumerate(x.shape)]


def _pair(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return (1, *values) if len(values) == 1 else values


def _padding(layer: Any) -> str:
    return "VALID" if layer.padding == "causal" else layer.padding.upper()


def _with_height(x: Tensor, layer: Any) -> Tensor:
    """A sequence as an image of height 1; causal padding is zeros before it."""
    if layer.padding == "causal":
        reach = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        x = tf.pad(x, ((0, 0), (reach, 0), (0, 0)))
    *_, length, channels = sizes(x)
    return tf.reshape(x, (-1, 1, length, channels))


def _without_height(x: Tensor) -> Tensor:
    batch, _, length, channels = sizes(x)
    return tf.reshape(x, (batch, length, channels))


def _swap_last(kernel: Any) -> Any:
    axes = (*range(len(kernel.shape) - 2), len(kernel.shape) - 1, len(kernel.shape) - 2)
    if isinstance(kernel, np.ndarray):
        return kernel.transpose(axes)
    return tf.transpose(kernel, axes)


def _reshaped(kernel: Any, shape: tuple[int, ...]) -> Any:
    return kernel.reshape(shape) if isinstance(kernel, np.ndarray) else tf.reshape(kernel, shape)
