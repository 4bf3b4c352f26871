"""A child process that holds a model of Keras 2 in tf-keras, the reference for what it computes.

Run as `python -m packager.loaders.tf_keras_worker`; see `packager.handlers`. Files with embedded
code have been refused before.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from packager.errors import ModelError, NoReferenceError, brief
from packager.handlers import serve
from packager.loaders import names, recurrent, trace_check
from packager.loaders.model_file import FUNCTION, weights_link
from packager.loaders.opened import Tensors
from packager.user_code import load_function, load_objects

SAMPLES = 8
# Sizes to try where an axis is free: deep image networks need large ones.
_FREE_SIZES = (32, 96, 224)
_SEED = 0
_EXPORT_THERE = "export it with the Keras that saved it, model.export('saved_model')"


class Worker:
    """Holds the model between requests."""

    def __init__(self) -> None:
        self._source = ""
        self._model: Any = None

    def open(
        self, source: str, format: str, architecture: str, custom_objects: list[str], unsafe: bool
    ) -> bool:
        """Opens a model, or builds it and reads its weights.

        Args:
            source: The file, or the weights' file.
            format: `keras_h5`, `keras2_archive` or `keras_weights`; see `ModelFile`.
            architecture: A JSON file or `module:function` for weights without a model.
            custom_objects: Modules of the user's own classes.
            unsafe: Run code that a `.keras` archive holds.

        Returns:
            Whether it is a model of Keras 2: the user's function may return another one.

        Raises:
            NoReferenceError: tf-keras cannot open it.
            ModelError: The user's own code cannot be imported.
        """
        import tensorflow as tf
        import tf_keras

        # What Keras 2 saved by name and does not find itself.
        objects = {
            "SpectralNormalization": tf_keras.layers.SpectralNormalization,
            "relu6": tf.nn.relu6,
            "leaky_relu": tf.nn.leaky_relu,
            "softmax_v2": tf.nn.softmax,
            **load_objects(custom_objects, ModelError),
        }
        with tempfile.TemporaryDirectory() as folder, tf_keras.utils.custom_object_scope(objects):
            try:
                if format == "keras_weights":
                    model = _build(architecture)
                    if isinstance(model, tf_keras.Model):
                        model.load_weights(weights_link(Path(source), Path(folder)))
                else:
                    # tf-keras goes by the extension; the content has been recognised already.
                    suffix = ".keras" if format == "keras2_archive" else ".h5"
                    link = Path(folder) / f"model{suffix}"
                    link.symlink_to(Path(source).resolve())
                    model = tf_keras.models.load_model(link, compile=False, safe_mode=not unsafe)
            except ModelError:
                raise
            except Exception as error:
                raise NoReferenceError(
                    f"{source}: tf-keras cannot open it, so the model has no reference:"
                    f" {brief(error)}",
                    hint="a class of your own needs --custom-objects; its module must import Keras"
                    " as `from tensorflow import keras`, which is tf-keras here and Keras 3 in"
                    " the rebuilt model",
                ) from error
        self._source, self._model = source, model
        return isinstance(model, tf_keras.Model)

    def run(self, inputs: list[str], outputs: list[str], folder: str) -> dict[str, Any]:
        """Runs the model on seeded inputs and writes both.

        Args:
            inputs: Names for the model's inputs, in its order.
            outputs: Names for its outputs, in its order.
            folder: Where `inputs/NAME.npy` and `outputs/NAME.npy` go.

        Returns:
            `samples`: how many there are, those with outputs that are not finite left out;
            `mixed`: whether tf-keras computes in a type of 16 bits.

        Raises:
            ModelError: tf-keras cannot run it.
        """
        arrays, results = _run(self._source, self._model)
        finite = np.ones(len(arrays[0]), bool)
        for result in results:
            if result.dtype.kind == "f":
                finite &= np.isfinite(result).reshape(len(result), -1).all(axis=1)
        for kind, ends, values in (("inputs", inputs, arrays), ("outputs", outputs, results)):
            if len(ends) != len(values):
                raise ModelError(
                    f"{self._source}: tf-keras finds {len(values)} {kind}, Keras 3 {len(ends)}"
                )
            (Path(folder) / kind).mkdir()
            for name, value in zip(ends, values, strict=True):
                np.save(Path(folder) / kind / f"{name}.npy", value[finite])
        computed = {layer.compute_dtype for layer in self._model._flatten_layers()}
        mixed = bool(computed & {"float16", "bfloat16"})
        return {"samples": int(finite.sum()), "mixed": mixed}

    def save_h5(self, path: str) -> None:
        """Writes the model as an `.h5` file, for the way through Keras 3.

        Raises:
            ModelError: It cannot be described in one: a subclassed model.
        """
        try:
            self._model.save(path, save_format="h5", include_optimizer=False)
        except (NotImplementedError, ValueError, TypeError) as error:
            raise ModelError(
                f"{self._source}: tf-keras cannot describe it by its layers: {brief(error)}",
                hint=_EXPORT_THERE + ", and give that folder",
            ) from error

    def export(self, folder: str) -> dict[str, list[list[str]]]:
        """Writes a SavedModel whose `serving_default` has the model's own names.

        Returns:
            `inputs` and `outputs`: the signature's and the model's own name of each, in the
            model's order.

        Raises:
            ModelError: Its answer depends on earlier calls or on chance, or it cannot be traced.
        """
        import tensorflow as tf

        model = self._model
        recurrent.refuse_stateful(model, self._source)
        originals = {"inputs": list(model.input_names), "outputs": list(model.output_names)}
        ends = {kind: names.sanitise(found, kind[:-1]) for kind, found in originals.items()}

        def call(**tensors: Any) -> dict[str, Any]:
            given = [tensors[name] for name in ends["inputs"]]
            structure = getattr(model, "_nested_inputs", given[0])
            packed = tf.nest.pack_sequence_as(structure, given) if len(given) > 1 else given[0]
            results = tf.nest.flatten(model(packed, training=False))
            return dict(zip(ends["outputs"], results, strict=True))

        specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
            for name, tensor in zip(ends["inputs"], model.inputs, strict=True)
        }
        try:
            traced = tf.function(call, autograph=False).get_concrete_function(**specs)
            _refuse_chance(self._source, model)
            tf.saved_model.save(model, folder, signatures={"serving_default": traced})
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self._source}: tf-keras cannot export it: {brief(error)}",
                hint=_EXPORT_THERE + ", and give that folder",
            ) from error
        return {
            kind: [[a, b] for a, b in zip(ends[kind], originals[kind], strict=True)]
            for kind in ends
        }


def _build(architecture: str) -> Any:
    """The model that a JSON file describes or a function returns, without its weights."""
    import tf_keras

    if FUNCTION.fullmatch(architecture):
        return load_function(architecture, ModelError)()
    return tf_keras.models.model_from_json(Path(architecture).read_text(encoding="utf-8"))


def _refuse_chance(source: str, model: Any) -> None:
    arrays, results = _run(source, model)
    outputs = model.output_names

    def run(inputs: Tensors) -> dict[str, Any]:
        given = list(inputs.values())
        return dict(zip(outputs, _called(model, given), strict=True))

    inputs = {str(number): array for number, array in enumerate(arrays)}
    trace_check.refuse_chance(run, inputs, dict(zip(outputs, results, strict=True)), source)


def _called(model: Any, arrays: list[Any]) -> list[Any]:
    import tensorflow as tf

    results = model(arrays if len(arrays) > 1 else arrays[0], training=False)
    return [np.asarray(value) for value in tf.nest.flatten(results)]


def _run(source: str, model: Any) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs, each with the samples on its first axis."""
    free = any(None in tensor.shape[1:] for tensor in model.inputs)
    failure: Exception | None = None
    ways = [(size, whole) for whole in (False, True) for size in (_FREE_SIZES if free else (0,))]
    for size, whole in ways:
        arrays = _inputs(model, size, whole)
        try:
            return arrays, _called(model, arrays)
        except Exception as error:
            failure = error
    raise ModelError(
        f"{source}: tf-keras cannot run it on random inputs: {brief(failure or ValueError())}",
        hint=_EXPORT_THERE,
    )


def _inputs(model: Any, free_size: int, whole: bool) -> list[Any]:
    """Real numbers are uniform in 0..1 in every other sample and normally distributed in the rest.

    Later samples are smaller, down to a thirtieth: a saturated sigmoid hides what is before it.
    Whole numbers are indices that every Embedding of the model has; `whole` makes all inputs such,
    for an Embedding inside a nested model.
    """
    random = np.random.default_rng(_SEED)
    tables = [layer for layer in model._flatten_layers() if type(layer).__name__ == "Embedding"]
    rows = min((int(layer.input_dim) for layer in tables), default=2)
    indices = {name for layer in tables for name in _reads(layer)}
    arrays = []
    for tensor in model.inputs:
        shape = (tensor.shape[0] or SAMPLES, *(n or free_size for n in tensor.shape[1:]))
        if tensor.dtype.name == "string":
            arrays.append(random.choice(["a", "b", "word", "two words"], shape))
            continue
        values: Any = random.normal(size=shape)
        values[::2] = random.random(values[::2].shape)
        steps = np.arange(len(values)) // 2
        values *= 10.0 ** -(steps / 2).reshape(-1, *(1,) * (values.ndim - 1))
        if whole or not tensor.dtype.is_floating or tensor.name in indices:
            values = random.integers(0, rows, shape)
        arrays.append(values.astype(tensor.dtype.as_numpy_dtype))
    return arrays


def _reads(layer: Any) -> list[str]:
    inputs = [node.input_tensors for node in layer._inbound_nodes]
    return [tensor.name for tensor in inputs if hasattr(tensor, "name")]


if __name__ == "__main__":
    # A user's module that takes Keras from TensorFlow must get Keras 2 here.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    worker = Worker()
    serve(
        {
            "open": worker.open,
            "run": worker.run,
            "save_h5": worker.save_h5,
            "export": worker.export,
        }
    )
