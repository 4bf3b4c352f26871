"""TensorFlow's side of the TFLite artifacts: the converter's float file of an opened model."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from packager.console import human_size
from packager.errors import UnsupportedError, brief
from packager.loaders import graph
from packager.loaders.opened import End, OpenedModel
from packager.targets import saved_model, tflite_weights

_LARGEST_BYTES = 2**31 - 2**20
_FLEX_OP = re.compile(r"'tf\.([A-Za-z0-9]+)' op is neither|Flex ops: Flex(\w+)")
# TFLite's kernels compute in float32 and in integers.
_NO_KERNELS = ("float16", "bfloat16", "float64", "complex64", "complex128")
_RESHAPING = ("Identity", "Reshape", "ExpandDims", "Squeeze", "PlaceholderWithDefault")
_LOCATION = re.compile(r'loc\((?:fused\[)?"?([^"\]]+)"')


def fixed_shape(end: End, given: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The static shape of a device artifact's input.

    Args:
        end: The input.
        given: Shapes from `--input-shape`, by input name, with the batch axis; under the empty
            name, the shape of the only input.

    Raises:
        UnsupportedError: A free axis other than the batch was not given.
    """
    wanted = tuple(given.get(end.name) or given.get(end.source_name) or given.get("") or ())
    shape: tuple[int | None, ...] = wanted or ((1, *end.shape[1:]) if end.shape else ())
    fits = len(shape) == len(end.shape) and all(
        n is None or i == 0 or n == m for i, (n, m) in enumerate(zip(end.shape, shape, strict=True))
    )
    if not fits:
        raise UnsupportedError(
            f"--input-shape {end.name}={','.join(map(str, shape))} does not fit the model's"
            f" {list(end.shape)}"
        )
    if shape and shape[0] != 1:
        raise UnsupportedError(
            f"--input-shape {end.name}: the batch of a device file is 1, received {shape[0]}"
            if wanted
            else f"the input {end.name!r} has a fixed batch of {shape[0]}; a device file has 1"
        )
    free = [n for n in shape if n is None]
    if free:
        raise UnsupportedError(
            f"the input {end.name!r} has free axes: {list(end.shape)}; a device file has none",
            hint=f"give them: --input-shape {end.name}=1,"
            + ",".join("N" if n is None else str(n) for n in end.shape[1:]),
        )
    return tuple(n for n in shape if n is not None)


def convert(
    opened: OpenedModel,
    path: Path,
    input_shapes: dict[str, list[int]],
    values: Path | None = None,
    inside: Collection[int] = (),
) -> dict[str, Any]:
    """Writes the converter's float file.

    The variables are frozen into the graph first. That path is three times as fast as through
    a SavedModel on disk (1.6 s against 5.0 s for MobileNetV2), and cannot lose them as
    `from_concrete_functions` on a Keras 3 model does.

    Args:
        opened: The model.
        path: The file.
        input_shapes: Shapes of the inputs; see `fixed_shape`.
        values: A folder for large weights, which then stay out of the file.
        inside: Of these, by their place, those that the converter must see.

    Returns:
        `inputs` and `outputs`: the names of the graph's ends in the order of the file; `weights`:
        those that are outside.

    Raises:
        UnsupportedError: An operator has no builtin form; names it and its layer.
    """
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    if "" in input_shapes and len(opened.inputs) > 1:
        raise UnsupportedError(
            f"--input-shape: which of the inputs {', '.join(e.name for e in opened.inputs)}?",
            hint="name it: --input-shape NAME=1,60,36",
        )
    _refuse_dtypes(opened)
    _refuse_size(opened)
    shapes = {end.name: fixed_shape(end, input_shapes) for end in opened.inputs}
    function = saved_model.concrete_function(opened, dict(shapes))
    split = None if values is None else tflite_weights.outside(function, opened, inside)
    if split is None:
        split = convert_to_constants.convert_variables_to_constants_v2(function), []
    frozen, weights = split
    converter = tf.lite.TFLiteConverter.from_concrete_functions([frozen])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter._experimental_unfold_large_splat_constant = bool(weights)
    try:
        path.write_bytes(converter.convert())
    except Exception as error:
        raise _explain(error) from error
    return {
        "inputs": [tensor.name.partition(":")[0] for tensor in frozen.inputs],
        # A dictionary's values leave a traced function in the order of its sorted keys.
        "outputs": sorted(end.name for end in opened.outputs),
        "weights": tflite_weights.save(weights, values) if weights and values else [],
    }


def _refuse_size(opened: OpenedModel) -> None:
    """A FlatBuffer's offsets have 31 bits; every variant is made from the float32 file."""
    size = sum(math.prod(v.shape) for v in opened.variables) * 4
    if size >= _LARGEST_BYTES:
        raise UnsupportedError(
            f"the weights take {human_size(size)} in float32, and a TFLite file holds less than"
            " 2.15 GB",
            hint="serve the SavedModel, or use the TF.js artifacts, which have no such limit",
        )


def _refuse_dtypes(opened: OpenedModel) -> None:
    for end in (*opened.inputs, *opened.outputs):
        if end.dtype == "string":
            ops = _operators_on(opened, end)
            raise UnsupportedError(
                f"the input {end.name!r} is text; TFLite has no builtin form of the TensorFlow"
                f" operators that read it: {', '.join(ops)}",
                hint="export a signature that starts after the text has become numbers; the"
                " SavedModel keeps it all",
            )
        if end.dtype in _NO_KERNELS:
            raise UnsupportedError(
                f"the tensor {end.name!r} is {end.dtype}; TFLite computes in float32",
                hint="build the model with keras.config.set_dtype_policy('float32') and load the"
                " weights into it",
            )


def _operators_on(opened: OpenedModel, end: End) -> list[str]:
    """Types of the TensorFlow operators that read an input, those that only reshape it aside."""
    shapes = {e.name: saved_model.free_batch(e) for e in opened.inputs}
    function = saved_model.concrete_function(opened, shapes)
    tensor = function.graph.get_tensor_by_name(f"{end.name}:0")
    return sorted(graph.readers(tensor, function.graph, _RESHAPING))


def _explain(error: Exception) -> UnsupportedError:
    text = str(error)
    ops = sorted({name for pair in _FLEX_OP.findall(text) for name in pair if name})
    locations = [place for place in _LOCATION.findall(text) if "/" in place]
    where = f" (at {locations[0]})" if locations else ""
    if ops:
        return UnsupportedError(
            f"TFLite has no builtin form of the TensorFlow operators {', '.join(ops)}{where}",
            hint="replace the layer that uses them; the SavedModel keeps them: --only saved_model",
        )
    return UnsupportedError(f"TensorFlow's TFLite converter failed: {brief(error)}")
