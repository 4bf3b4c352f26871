"""From a trained twin to the int8 file, and back to the float model."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from packager.errors import UnsupportedError, brief
from packager.loaders import names
from packager.quantize.qat.samples import refuse_floats
from packager.quantize.qat.twin import twin_of


def strip(twin: Any) -> Any:
    """Returns the float model, of the source's architecture, with the twin's weights."""
    known = twin_of(twin)
    source = known.source
    made = type(source).from_config(source.get_config())
    if not made.built:
        made.build([tuple(t.shape) for t in source.inputs])
    values = [
        np.asarray(known.variables.get(id(variable), variable)) for variable in source.weights
    ]
    made.set_weights(values)
    return made


def export(twin: Any, path: str | Path, *, require_integer: bool = False) -> dict[str, Any]:
    """Writes the int8 `.tflite` file: integer inputs and outputs, batch 1.

    Args:
        twin: A calibrated twin, trained or not.
        path: The file.
        require_integer: Refuse a file in which an operator stays float.

    Returns:
        What the file holds: `io`, `ops`, `integer_op_share`, `float_ops`, `min_version`.

    Raises:
        UnsupportedError: The converter fails, or float operators are left and refused.
    """
    from packager.children import Child

    inputs = names.sanitise([t._keras_history.operation.name for t in twin.inputs], "input")
    source = twin_of(twin).source
    outputs = names.sanitise([t._keras_history.operation.name for t in source.outputs], "output")
    with tempfile.TemporaryDirectory() as folder, Child("packager.quantize.worker") as child:
        raw = Path(folder) / "converter.tflite"
        shapes = [(1, *t.shape[1:]) for t in twin.inputs]
        write_tflite(twin, raw, inputs, outputs, shapes)
        found: dict[str, Any] = child.call(
            "complete", "completing the int8 file", source=raw, target=Path(path).absolute(),
            inputs=inputs, outputs=outputs, mode="qat_int8",
        )  # fmt: skip
    if require_integer:
        refuse_floats(found)
    return found


@contextlib.contextmanager
def _constant(twin: Any) -> Iterator[None]:
    """Makes weights and ranges constants of the graphs that are traced meanwhile."""
    layers = [layer for layer in twin._flatten_layers() if hasattr(layer, "constants")]
    for layer in layers:
        layer.constants = True
    try:
        yield
    finally:
        for layer in layers:
            layer.constants = False


def write_tflite(
    twin: Any,
    path: Path,
    inputs: Sequence[str],
    outputs: Sequence[str],
    shapes: Sequence[Sequence[int]],
) -> None:
    """Writes the converter's file, with the ends in the order of the names given.

    Raises:
        UnsupportedError: The converter fails, and why.
    """
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    def call(*tensors: Any) -> list[Any]:
        packed = keras.tree.pack_sequence_as(twin._inputs_struct, list(tensors))
        return [tf.identity(y) for y in keras.tree.flatten(twin(packed, training=False))]

    specs = [
        tf.TensorSpec(tuple(shape), tensor.dtype, name=name)
        for shape, tensor, name in zip(shapes, twin.inputs, inputs, strict=True)
    ]
    with _constant(twin):
        function = tf.function(call, autograph=False).get_concrete_function(*specs)
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    try:
        path.write_bytes(converter.convert())
    except Exception as error:
        raise UnsupportedError(
            f"TensorFlow's TFLite converter failed on the quantized model: {brief(error)}",
            hint="run again with --verbose for its own words",
        ) from error
