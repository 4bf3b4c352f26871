"""Writes the SavedModels of test_engine.py: python make_models.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

FOLDER = Path(sys.argv[1])
WEIGHTS = tf.Variable(np.load(FOLDER / "weights.npy"))


def save(name, inputs, **functions):
    module = tf.Module()
    module.weights = WEIGHTS
    specs = {key: tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in inputs.items()}
    signatures = {
        key: tf.function(function).get_concrete_function(**specs)
        for key, function in functions.items()
    }
    module.signatures_kept = list(signatures.values())
    tf.saved_model.save(module, str(FOLDER / name), signatures=signatures)


def affine(image):
    return {"digit": tf.reshape(image, [-1, 16]) @ WEIGHTS}


def doubled(image):
    return {"digit": 2 * affine(image)["digit"]}


def inverse(image):
    return {"digit": 1 / image}


def two(left, right):
    total = tf.reduce_sum(left, axis=1, keepdims=True) + tf.cast(right, tf.float32)
    return {"total": total, "largest": tf.reduce_max(right, axis=1)}


free = {"image": ([None, 4, 4, 1], tf.float32)}
save("affine", free, serving_default=affine, doubled=doubled)
save("fixed", {"image": ([4, 4, 4, 1], tf.float32)}, serving_default=affine)
save("inverse", free, serving_default=inverse)
pair = {"left": ([None, 3], tf.float32), "right": ([None, 2], tf.int32)}
save("two", pair, serving_default=two)
