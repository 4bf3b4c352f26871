"""Saves y = x * N + 1 as versions N = 1.. of a model: python make_versions.py FOLDER COUNT."""

import sys

import tensorflow as tf


def save(path, number):
    module = tf.Module()
    module.factor = tf.Variable(float(number))
    run = tf.function(lambda x: {"y": x * module.factor + 1.0})
    module.kept = run.get_concrete_function(x=tf.TensorSpec([None, 2], tf.float32, name="x"))
    tf.saved_model.save(module, path, signatures={"serving_default": module.kept})


for version in range(1, int(sys.argv[2]) + 1):
    save(f"{sys.argv[1]}/{version}", version)
