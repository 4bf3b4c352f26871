"""A child process that runs files of Keras 2 by tf-keras, the reference for what they compute.

Run as `python -m packager.loaders.tf_keras_check`; see `packager.children`. Files with embedded
code, and classes that `keras2_table` does not know, have been refused before.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from packager.children import serve
from packager.errors import ModelError, brief
from packager.loaders.keras3 import load_custom_objects

SAMPLES = 8
# Sizes to try where an axis is free: deep image networks need large ones.
_FREE_SIZES = (32, 96, 224)
_SEED = 0


def run(
    source: str, inputs: list[str], outputs: list[str], folder: str, custom_objects: list[str]
) -> dict[str, Any]:
    """Runs the file on seeded inputs and writes both.

    Args:
        source: The file as Keras 2 saved it.
        inputs: Names for the model's inputs, in its order.
        outputs: Names for its outputs, in its order.
        folder: Where `inputs/NAME.npy` and `outputs/NAME.npy` go.
        custom_objects: Modules of the user's own classes.

    Returns:
        `samples`: how many there are, those with outputs that are not finite left out; `mixed`:
        whether tf-keras computes in a type of 16 bits.

    Raises:
        ModelError: tf-keras cannot open or run it.
    """
    model = _load(source, custom_objects)
    arrays, results = _run(source, model)
    finite = np.ones(len(arrays[0]), bool)
    for result in results:
        if result.dtype.kind == "f":
            finite &= np.isfinite(result).reshape(len(result), -1).all(axis=1)
    for kind, names, values in (("inputs", inputs, arrays), ("outputs", outputs, results)):
        if len(names) != len(values):
            raise ModelError(f"{source}: tf-keras finds {len(values)} {kind}, Keras 3 {len(names)}")
        (Path(folder) / kind).mkdir()
        for name, value in zip(names, values, strict=True):
            np.save(Path(folder) / kind / f"{name}.npy", value[finite])
    computed = {layer.compute_dtype for layer in model._flatten_layers()}
    mixed = bool(computed & {"float16", "bfloat16"})
    return {"samples": int(finite.sum()), "mixed": mixed}


def _load(source: str, custom_objects: list[str]) -> Any:
    import tensorflow as tf
    import tf_keras

    # Spellings of TensorFlow's own functions, which Keras 2 saved by name and does not find.
    objects = {"relu6": tf.nn.relu6, "leaky_relu": tf.nn.leaky_relu, "softmax_v2": tf.nn.softmax}
    objects.update(load_custom_objects(custom_objects))
    with tempfile.TemporaryDirectory() as folder:
        # tf-keras goes by the extension; the content has been recognised already.
        link = Path(folder) / "model.h5"
        link.symlink_to(Path(source).resolve())
        try:
            return tf_keras.models.load_model(link, custom_objects=objects, compile=False)
        except Exception as error:
            raise ModelError(
                f"{source}: tf-keras cannot open it, so the rebuilt model has no reference:"
                f" {brief(error)}",
                hint="a module of --custom-objects must import Keras as `from tensorflow import"
                " keras`, which is tf-keras here and Keras 3 in the rebuilt model",
            ) from error


def _run(source: str, model: Any) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs, each with the samples on its first axis."""
    import tensorflow as tf

    free = any(None in tensor.shape[1:] for tensor in model.inputs)
    failure: Exception | None = None
    for size in _FREE_SIZES if free else (0,):
        arrays = _inputs(model, size)
        try:
            results = model(arrays if len(arrays) > 1 else arrays[0], training=False)
            return arrays, [np.asarray(value) for value in tf.nest.flatten(results)]
        except Exception as error:
            failure = error
    raise ModelError(
        f"{source}: tf-keras cannot run it on random inputs: {brief(failure or ValueError())}",
        hint="export it with the Keras that saved it, model.export('saved_model')",
    )


def _inputs(model: Any, free_size: int) -> list[Any]:
    """Real numbers are uniform in 0..1 in every other sample and normally distributed in the rest.

    Later samples are smaller, down to a thirtieth: a saturated sigmoid hides what is before it.
    Whole numbers are indices that every Embedding of the model has.
    """
    random = np.random.default_rng(_SEED)
    tables = [layer for layer in model._flatten_layers() if type(layer).__name__ == "Embedding"]
    rows = min((int(layer.input_dim) for layer in tables), default=2)
    indices = {name for layer in tables for name in _reads(layer)}
    arrays = []
    for tensor in model.inputs:
        shape = (tensor.shape[0] or SAMPLES, *(n or free_size for n in tensor.shape[1:]))
        values: Any = random.normal(size=shape)
        values[::2] = random.random(values[::2].shape)
        steps = np.arange(len(values)) // 2
        values *= 10.0 ** -(steps / 2).reshape(-1, *(1,) * (values.ndim - 1))
        if not tensor.dtype.is_floating or tensor.name in indices:
            values = random.integers(0, rows, shape)
        arrays.append(values.astype(tensor.dtype.as_numpy_dtype))
    return arrays


def _reads(layer: Any) -> list[str]:
    inputs = [node.input_tensors for node in layer._inbound_nodes]
    return [tensor.name for tensor in inputs if hasattr(tensor, "name")]


if __name__ == "__main__":
    # A user's module that takes Keras from TensorFlow must get Keras 2 here.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    serve({"run": run})
