"""What training minimises, and the metric that it shows.

Each function takes batches of what the outputs should be and are, and returns one value per
sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from packager.errors import ConfigError

Tensor = Any
PerSample = Callable[[Tensor, Tensor], Tensor]

# A probability is kept this far from 0 and 1, where its logarithm ends.
_EPSILON = 1e-6


@dataclass(frozen=True)
class Objective:
    """A loss and a metric of the whole model.

    Attributes:
        name: What it is, for messages: `cross entropy`.
        metric: The metric's name: `accuracy`, `agreement`; empty where there is none.
        losses: One per output that counts, in the model's order.
        score: The metric, of the first output.
    """

    name: str
    metric: str
    losses: tuple[PerSample, ...]
    score: PerSample | None

    def loss(self, wanted: Sequence[Tensor], given: Sequence[Tensor]) -> Tensor:
        """The loss of each sample, `[N]`."""
        parts = [f(w, g) for f, w, g in zip(self.losses, wanted, given, strict=False)]
        return tf.add_n(parts)

    def scores(self, wanted: Sequence[Tensor], given: Sequence[Tensor]) -> Tensor:
        """1 for each sample that is right, `[N]`; zeros without a metric."""
        if self.score is None:
            return tf.zeros(tf.shape(given[0])[0])
        return tf.cast(self.score(wanted[0], given[0]), tf.float32)


def labelled(task: str, activation: str, threshold: float | None) -> Objective:
    """The loss against targets, of the model's first output.

    Args:
        task: The manifest's task.
        activation: The manifest's activation of the first output.
        threshold: From which probability a class counts.

    Raises:
        ConfigError: The task has no targets.
    """
    if task == "classification":
        return Objective(
            "cross entropy", "accuracy", (_sparse_cross_entropy(activation),), _right_class
        )
    if task in ("binary", "multilabel"):
        return Objective(
            "binary cross entropy",
            "accuracy",
            (_binary_cross_entropy(activation),),
            _right_side(activation, threshold),
        )
    if task == "regression":
        return Objective("mean squared error", "", (_squared_error,), None)
    raise ConfigError(
        f"training on labels: the task is {task!r}, which has none",
        hint="give --task classification, binary, multilabel or regression, or --qat-loss distill",
    )


def distilled(activations: Sequence[str], task: str, threshold: float | None) -> Objective:
    """The loss against the float model's outputs, of all outputs."""
    losses = tuple(_distilling(activation, task) for activation in activations)
    if task == "classification":
        return Objective("distillation", "agreement", losses, _same_class)
    if task in ("binary", "multilabel"):
        score = _same_side(activations[0], threshold)
        return Objective("distillation", "agreement", losses, score)
    return Objective("distillation", "", losses, None)


def _distilling(activation: str, task: str) -> PerSample:
    if activation == "softmax" or (activation == "logits" and task == "classification"):
        return _divergence(activation)
    if activation in ("sigmoid", "logits"):
        return _binary_cross_entropy(activation, soft=True)
    return _squared_error


def _probabilities(values: Tensor, activation: str) -> Tensor:
    return tf.nn.softmax(values) if activation == "logits" else values


def _chances(values: Tensor, activation: str) -> Tensor:
    return tf.nn.sigmoid(values) if activation == "logits" else values


def _per_sample(values: Tensor) -> Tensor:
    """The mean over all axes but the first."""
    return tf.reduce_mean(tf.reshape(values, (tf.shape(values)[0], -1)), axis=1)


def _clipped(p: Tensor) -> Tensor:
    # The gradient must not end where a probability is small: that is where it is needed.
    return p + tf.stop_gradient(tf.clip_by_value(p, _EPSILON, 1 - _EPSILON) - p)


def _sparse_cross_entropy(activation: str) -> PerSample:
    def loss(wanted: Tensor, given: Tensor) -> Tensor:
        classes = given.shape[-1]
        rows = tf.reshape(given, (-1, classes))
        chosen = tf.one_hot(tf.reshape(tf.cast(wanted, tf.int32), (-1,)), classes)
        if activation == "logits":
            each = -tf.reduce_sum(chosen * tf.nn.log_softmax(rows), axis=-1)
        else:
            each = -tf.math.log(_clipped(tf.reduce_sum(chosen * rows, axis=-1)))
        return _per_sample(tf.reshape(each, (tf.shape(given)[0], -1)))

    return loss


def _divergence(activation: str) -> PerSample:
    """Kullback-Leibler divergence from the float model's distribution."""

    def loss(wanted: Tensor, given: Tensor) -> Tensor:
        p = _clipped(_probabilities(wanted, activation))
        q = _clipped(_probabilities(given, activation))
        return _per_sample(tf.reduce_sum(p * (tf.math.log(p) - tf.math.log(q)), axis=-1))

    return loss


def _binary_cross_entropy(activation: str, *, soft: bool = False) -> PerSample:
    def loss(wanted: Tensor, given: Tensor) -> Tensor:
        p = _chances(wanted, activation) if soft else wanted
        p = tf.reshape(tf.cast(p, tf.float32), tf.shape(given))
        if activation == "logits":
            return _per_sample(tf.nn.sigmoid_cross_entropy_with_logits(p, given))
        q = _clipped(given)
        return _per_sample(-p * tf.math.log(q) - (1 - p) * tf.math.log(1 - q))

    return loss


def _squared_error(wanted: Tensor, given: Tensor) -> Tensor:
    wanted = tf.reshape(tf.cast(wanted, tf.float32), tf.shape(given))
    return _per_sample(tf.square(wanted - tf.cast(given, tf.float32)))


def _right_class(wanted: Tensor, given: Tensor) -> Tensor:
    found = tf.reshape(tf.argmax(given, axis=-1), (-1,))
    right = tf.equal(found, tf.reshape(tf.cast(wanted, tf.int64), (-1,)))
    return _per_sample(tf.reshape(tf.cast(right, tf.float32), (tf.shape(given)[0], -1)))


def _same_class(wanted: Tensor, given: Tensor) -> Tensor:
    return _right_class(tf.argmax(wanted, axis=-1), given)


def _right_side(activation: str, threshold: float | None) -> PerSample:
    def score(wanted: Tensor, given: Tensor) -> Tensor:
        limit = 0.5 if threshold is None else threshold
        found = _chances(given, activation) >= limit
        right = tf.equal(found, tf.reshape(tf.cast(wanted, tf.float32), tf.shape(given)) >= 0.5)
        return _per_sample(tf.cast(right, tf.float32))

    return score


def _same_side(activation: str, threshold: float | None) -> PerSample:
    right = _right_side(activation, threshold)
    limit = 0.5 if threshold is None else threshold

    def score(wanted: Tensor, given: Tensor) -> Tensor:
        return right(tf.cast(_chances(wanted, activation) >= limit, tf.float32), given)

    return score
