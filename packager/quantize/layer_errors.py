"""How far the tensors inside a quantized file are from those of the float file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packager.tflite_names import layer_of, plain

Array = np.ndarray[Any, Any]
# A few samples show where the error arises; plain kernels are slow.
SAMPLES = 4


def measure(model: str, other: str, samples: str) -> list[dict[str, Any]]:
    """Runs both files on the first samples and compares the tensors that have one name.

    The interpreter's plain kernels are used: others fuse operators and drop what is between.

    Args:
        model: The float32 file.
        other: The quantized file.
        samples: Folder of `[N, ...]` arrays `<input name>.npy`.

    Returns:
        In the order of execution, `tensor`, `layer` and `error`: the root of the mean squared
        difference as a share of the root of the mean square of the float values.
    """
    arrays = {
        path.stem: np.load(path, mmap_mode="r") for path in sorted(Path(samples).glob("*.npy"))
    }
    theirs, ours = (tensors(Path(path), arrays) for path in (model, other))
    found = []
    for name, wanted in theirs.items():
        value = ours.get(name)
        if value is None or value.shape != wanted.shape:
            continue
        size = float(np.sqrt(np.mean(np.square(wanted))))
        error = float(np.sqrt(np.mean(np.square(value - wanted))))
        if np.isfinite(error) and size > 0:
            entry = {"tensor": plain(name), "layer": layer_of(plain(name)), "error": error / size}
            found.append(entry)
    return found


def tensors(model: Path, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Float64 values `[samples, ...]` of the activations, by tensor name in order of execution.

    Args:
        model: The file.
        arrays: The inputs `[N, ...]` by name; the first few samples are run.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        str(model),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    details = {d["name"]: d for d in interpreter.get_tensor_details()}
    made = _in_order(interpreter, details)
    found: dict[str, list[Array]] = {name: [] for name in made}
    for row in range(min(SAMPLES, len(next(iter(arrays.values()))))):
        for name, array in arrays.items():
            _feed(interpreter, details[name], np.asarray(array[row : row + 1]))
        interpreter.invoke()
        for name in made:
            found[name].append(_real(interpreter.get_tensor(details[name]["index"]), details[name]))
    return {name: np.stack(values) for name, values in found.items()}


def _in_order(interpreter: Any, details: dict[str, Any]) -> list[str]:
    """Names of what the operators of the main graph compute, numbers only."""
    names = {d["index"]: name for name, d in details.items()}
    made = [
        names[index]
        for op in interpreter._get_ops_details()
        for index in op["outputs"]
        if index in names
    ]
    kinds = "fiu"
    return [n for n in dict.fromkeys(made) if np.dtype(details[n]["dtype"]).kind in kinds]


def _feed(interpreter: Any, detail: dict[str, Any], value: Array) -> None:
    scale, zero_point = detail["quantization"]
    dtype = np.dtype(detail["dtype"])
    if scale:
        limits = np.iinfo(dtype)
        value = np.rint(value / scale + zero_point).clip(limits.min, limits.max)
    interpreter.set_tensor(detail["index"], value.astype(dtype))


def _real(value: Array, detail: dict[str, Any]) -> Array:
    scale, zero_point = detail["quantization"]
    real = np.asarray(value, np.float64)
    return (real - zero_point) * scale if scale else real
