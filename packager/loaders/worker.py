"""The TensorFlow child process: opens the source model and makes what needs TensorFlow.

Run as `python -m packager.loaders.worker`; see `packager.handlers`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from packager.errors import ConversionError, ModelError, PackagerError, UsageError, brief
from packager.handlers import serve
from packager.loaders import (
    activations,
    as_python,
    keras3,
    keras_graph,
    keras_probe,
    layer_graph,
    recurrent,
    saved_model,
    trace_check,
)
from packager.loaders.opened import OpenedModel
from packager.targets import saved_model as saved_model_target
from packager.targets import tfjs_graph_writer, tfjs_weights, tflite_convert, warmup


class Worker:
    """Holds the opened model between requests."""

    def __init__(self) -> None:
        self._opened: OpenedModel | None = None
        self._function: Any = None
        self._compared = False
        self._as_python = False

    def open(
        self,
        source: str,
        format: str,
        saved_by: str,
        architecture: str = "",
        signature: str | None = None,
        custom_objects: list[str] | None = None,
        allow_unsafe_code: bool = False,
        ends: dict[str, list[list[str]]] | None = None,
        keep_python: bool = False,
        no_layers: str = "",
    ) -> dict[str, Any]:
        """Opens the model and describes its ends.

        Args:
            source: What the user gave, or a file or folder made from it.
            format: As in `ModelFile`.
            saved_by: As in `ModelFile`.
            architecture: As in `ModelFile`.
            signature: Which signature of a SavedModel.
            custom_objects: Modules of the user's own classes.
            allow_unsafe_code: Run code that the file holds.
            ends: For a SavedModel, `inputs` and `outputs` in the model's order: the signature's
                name and the model's own name of each.
            keep_python: Run a Keras model without a graph.
            no_layers: For a SavedModel that was made from a Keras 2 model, why it was.
        """
        objects = custom_objects or []
        if format == "saved_model":
            opened = saved_model.open_folder(source, signature, saved_by, ends)
            opened = dataclasses.replace(opened, no_layers=no_layers)
        elif format == "callable":
            opened = keras3.open_callable(source, objects)
        elif format == "keras_weights":
            opened = keras3.open_weights(source, architecture, saved_by, objects, allow_unsafe_code)
        else:
            opened = keras3.open_file(source, format, saved_by, objects, allow_unsafe_code)
        self._opened = opened
        self._function = None
        self._compared = False
        no_graph = self._reason_against_graph()
        self._as_python = bool(no_graph) or (keep_python and opened.keras_model is not None)
        if self._as_python:
            found = as_python.activations(opened)
        else:
            found = activations.of_graph(self._traced())
        return {
            "no_graph": no_graph,
            "as_python": self._as_python,
            "saved_by": opened.saved_by,
            "inputs": [dataclasses.asdict(end) for end in opened.inputs],
            "outputs": [
                {**dataclasses.asdict(end), "activation": found[end.name]} for end in opened.outputs
            ],
            "left_out": list(opened.left_out),
            "parameters": int(sum(np.prod(v.shape) for v in opened.variables)),
            "tools": _tools(),
        }

    def _reason_against_graph(self) -> str:
        if self.opened.no_graph or self.opened.keras_model is None:
            return self.opened.no_graph
        try:
            self._traced()
        except PackagerError:
            raise
        # A layer may be the user's code and raise anything.
        except Exception as error:
            return brief(error)
        return ""

    def write_keras(self, path: str) -> None:
        """Writes the model as a `.keras` archive of Keras 3."""
        try:
            self.opened.keras_model.save(path)
        # A layer may be the user's code and raise anything.
        except Exception as error:
            raise ConversionError(
                f"the model cannot be saved as .keras: {brief(error)}",
                hint="give its classes get_config(), or package a function that returns the model:"
                " packager build module:function",
            ) from error

    def write_saved_model(self, folder: str) -> None:
        """Writes the SavedModel files into the bundle's folder."""
        saved_model_target.write(self.opened, self._traced(), Path(folder))

    def write_warmup(self, folder: str, model_name: str, samples: str) -> None:
        """Writes TensorFlow Serving's warm-up requests into the bundle's folder."""
        warmup.write(Path(folder), model_name, Path(samples))

    def convert_tflite(
        self,
        path: str,
        input_shapes: dict[str, list[int]],
        values: str = "",
        inside: list[int] | None = None,
    ) -> dict[str, Any]:
        """Writes the converter's float TFLite file; returns the order of its ends.

        Args:
            path: The file.
            input_shapes: Shapes of the inputs.
            values: A folder for large weights, which then stay out of the file.
            inside: Of these, those that the converter must see.
        """
        return tflite_convert.convert(
            self.opened, Path(path), input_shapes, Path(values) if values else None, inside or ()
        )

    def convert_unrolled(
        self, path: str, input_shapes: dict[str, list[int]]
    ) -> dict[str, Any] | None:
        """As `convert_tflite`, with the steps of recurrent layers one after another.

        Returns:
            None where the model has no recurrent layers.
        """
        with recurrent.unrolled(self.opened.keras_model) as found:
            return tflite_convert.convert(self.opened, Path(path), input_shapes) if found else None

    def layer_names(self) -> list[str]:
        """Names of the Keras model's layers in topological order, nested ones too; else none."""
        model = self.opened.keras_model
        layers = [] if model is None else model._flatten_layers(include_self=False)
        return list(dict.fromkeys(layer.name for layer in layers))

    def write_layer_graph(self, folder: str) -> bool:
        """Writes the model's `LayerGraph`; False where it has none."""
        if self.opened.keras_model is None:
            return False
        layer_graph.save(keras_graph.layer_graph(self.opened.keras_model), Path(folder))
        return True

    def write_tfjs_graph(
        self, folder: str, card: dict[str, Any], weights: list[str]
    ) -> dict[str, Any]:
        """Writes a TF.js graph model; returns its size and how often what was fused."""
        written = tfjs_graph_writer.write(
            self.opened,
            self._traced(),
            Path(folder),
            card=card,
            rules=tfjs_weights.parse(weights),
        )
        return {"size_bytes": written.files.size_bytes, "fused": written.fused}

    def reasons_against_tfjs_graph(self) -> list[str]:
        """Tells why the model cannot become a TF.js graph model; empty when it can."""
        return tfjs_graph_writer.reasons_against(self.opened, self._traced())

    def predict_nudged(self, inputs: str, outputs: str) -> int:
        """Runs the model on inputs that are moved by one step of rounding."""
        arrays = {e.name: np.load(Path(inputs) / f"{e.name}.npy") for e in self.opened.inputs}
        with tempfile.TemporaryDirectory() as folder:
            for name, values in trace_check.nudged(arrays).items():
                np.save(Path(folder) / f"{name}.npy", values)
            return self.predict(folder, outputs)

    def predict(self, inputs: str, outputs: str, batch: int = 64) -> int:
        """Runs the model on `<input>.npy` arrays and writes `<output>.npy`; returns the count."""
        opened = self.opened
        arrays = {
            e.name: np.load(Path(inputs) / f"{e.name}.npy", mmap_mode="r") for e in opened.inputs
        }
        count = len(next(iter(arrays.values())))
        fixed = [end.shape[0] for end in opened.inputs if end.fixed_batch]
        batch = fixed[0] or batch if fixed else batch
        written: dict[str, Any] = {}
        for start in range(0, count, batch):
            rows = min(batch, count - start)
            result = self._run(
                {
                    k: _filled(a[start : start + rows], batch if fixed else rows)
                    for k, a in arrays.items()
                }
            )
            for name, padded in result.items():
                values = padded[:rows]
                if name not in written:
                    written[name] = np.lib.format.open_memmap(
                        Path(outputs) / f"{name}.npy",
                        mode="w+",
                        dtype=values.dtype,
                        shape=(count, *values.shape[1:]),
                    )
                written[name][start : start + batch] = values
        return count

    def probe(self, inputs: str, outputs: str, layers: list[str] | None = None) -> list[str]:
        """Writes what layers give on `<input>.npy` arrays, as `0.npy`, `1.npy`, ….

        Args:
            inputs: Folder of the inputs.
            outputs: Folder for the values.
            layers: Names of layers; None: the outputs before their softmax or sigmoid.

        Returns:
            What was written, in order: names of layers or outputs; nothing where the model has no
            Keras layers.
        """
        model = self.opened.keras_model
        if model is None or not keras_graph.is_graph(model):
            return []
        arrays = [np.load(Path(inputs) / f"{end.name}.npy") for end in self.opened.inputs]
        if layers is None:
            names = [end.name for end in self.opened.outputs]
            found = keras_probe.logits(model, arrays, names)
        else:
            found = keras_probe.layer_outputs(model, arrays, layers)
        for number, values in enumerate(found.values()):
            np.save(Path(outputs) / f"{number}.npy", values)
        return list(found)

    def _run(self, arrays: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        tensors = {
            end.name: tf.constant(np.ascontiguousarray(arrays[end.name]), end.dtype)
            for end in self.opened.inputs
        }
        try:
            result = {k: np.asarray(v) for k, v in self._call(tensors).items()}
        except PackagerError:
            raise
        # TensorFlow's errors, and whatever the user's code raises.
        except Exception as error:
            raise ConversionError(
                f"the source model fails on the samples: {brief(error)}",
                hint="give inputs that it takes: --evaluation DATA",
            ) from error
        rows = len(next(iter(tensors.values())))
        for name, values in result.items():
            if not values.shape or len(values) != rows:
                raise ModelError(
                    f"the output {name!r} has the shape {list(values.shape)} for {rows} samples:"
                    " the first axis of every input and output must be the sample",
                    hint="build a model that takes and returns [samples, ...]",
                )
        if not self._compared:
            trace_check.check(self.opened, tensors, result, self._call)
            self._compared = True
        for name, values in result.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ConversionError(
                    f"the source model's output {name!r} is not finite on the samples",
                    hint="check the samples' range against the model's preprocessing",
                )
        return result

    def _call(self, tensors: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (
            self.opened.call(tensors) if self._as_python else self._traced()(**tensors)
        )
        return found

    def _traced(self) -> Any:
        if self._function is None:
            shapes = {e.name: saved_model_target.free_batch(e) for e in self.opened.inputs}
            self._function = saved_model_target.concrete_function(self.opened, shapes)
        return self._function

    @property
    def opened(self) -> OpenedModel:
        """The opened model."""
        if self._opened is None:
            raise UsageError("no model has been opened")
        return self._opened


def _filled(rows: Any, count: int) -> Any:
    """Repeats the last row up to a fixed batch."""
    missing = count - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing else rows


def _tools() -> dict[str, str]:
    import keras
    import tensorflow as tf

    return {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}


if __name__ == "__main__":
    worker = Worker()
    serve(
        {
            "open": worker.open,
            "write_saved_model": worker.write_saved_model,
            "write_warmup": worker.write_warmup,
            "convert_tflite": worker.convert_tflite,
            "convert_unrolled": worker.convert_unrolled,
            "layer_names": worker.layer_names,
            "write_layer_graph": worker.write_layer_graph,
            "write_tfjs_graph": worker.write_tfjs_graph,
            "reasons_against_tfjs_graph": worker.reasons_against_tfjs_graph,
            "predict": worker.predict,
            "probe": worker.probe,
            "predict_nudged": worker.predict_nudged,
        }
    )
