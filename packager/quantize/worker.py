"""The LiteRT child process: completes, quantizes and describes `.tflite` files.

Run as `python -m packager.quantize.worker`; see `packager.children`. TensorFlow and LiteRT do not
share a process: their copies of abseil and protobuf can deadlock.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packager import tflite_file
from packager.bundle import to_json
from packager.children import serve
from packager.errors import ConversionError
from packager.quantize.recipes import RECIPES

SIGNATURE = tflite_file.SIGNATURE.decode()

Calibration = dict[str, dict[str, Any]]


class Worker:
    """Holds the calibration between the requests that need it."""

    def __init__(self) -> None:
        self._ranges: Calibration = {}

    def complete(
        self, source: str, target: str, inputs: list[str], outputs: list[str]
    ) -> dict[str, Any]:
        """Turns the converter's file into the float32 artifact: names, signature, check."""
        model = tflite_file.read(Path(source))
        tflite_file.name_ends(model, inputs, outputs)
        _fix_shapes(model)
        tflite_file.write(model, Path(target))
        return _checked(model, "float32")

    def calibrate(self, model: str, samples: str) -> dict[str, list[float]]:
        """Records the true minimum and maximum of every tensor over all samples.

        Args:
            model: The float32 file.
            samples: Folder with one `[N, ...]` array `<input name>.npy` per input.

        Returns:
            Minimum and maximum by tensor name.
        """
        from litert_quantizer import calibrator, recipe_manager
        from litert_quantizer.utils import qsv_utils

        recipe = recipe_manager.RecipeManager()
        recipe.load_quantization_recipe(RECIPES["int8"])
        work = calibrator.Calibrator(
            model,
            num_threads=1,
            mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
            # The default is a moving average, which depends on the order of the samples.
            qsv_update_func=qsv_utils.min_max_update,
        )
        for sample in _samples(Path(samples)):
            work.calibrate({SIGNATURE: [sample]}, recipe)
        self._ranges = work.get_model_qsvs()
        return _check_ranges(self._ranges)

    def quantize(self, model: str, target: str, mode: str) -> dict[str, Any]:
        """Writes one quantized variant of the float32 file and describes it."""
        from litert_quantizer import quantizer

        work = quantizer.Quantizer(model)
        work.load_quantization_recipe(RECIPES[mode])
        ranges = self._ranges if work.need_calibration else None
        result = work.quantize(ranges, enable_progress_bar=False, enable_progress_report=False)
        Path(target).write_bytes(result.quantized_model)
        quantized = tflite_file.read(Path(target))
        tflite_file.raise_versions(quantized)
        tflite_file.write(quantized, Path(target))
        return _checked(quantized, mode)

    def embed_card(self, paths: list[str], card: dict[str, Any]) -> None:
        """Stores the card in finished files."""
        for path in paths:
            model = tflite_file.read(Path(path))
            tflite_file.embed_card(model, card)
            tflite_file.write(model, Path(path))


def _samples(folder: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    for i in range(len(next(iter(arrays.values())))):
        yield {name: np.ascontiguousarray(array[i : i + 1]) for name, array in arrays.items()}


def _check_ranges(ranges: Calibration) -> dict[str, list[float]]:
    """Refuses ranges from which no scale can be made."""
    found = {}
    for name, values in ranges.items():
        low, high = float(np.min(values["min"])), float(np.max(values["max"]))
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ConversionError(
                f"calibration: the tensor {name} takes values that are not finite",
                hint="look for NaN or infinity in the calibration samples or the weights",
            )
        found[name] = [low, high]
    return found


def _fix_shapes(model: Any) -> None:  # noqa: ANN401
    """Drops shape signatures that only repeat the fixed shape."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            signature = tensor.shapeSignature
            if signature is not None and list(signature) == list(tensor.shape):
                tensor.shapeSignature = None


def _checked(model: Any, mode: str) -> dict[str, Any]:  # noqa: ANN401
    description = tflite_file.describe(model)
    problems = list(description.problems)
    if description.flex_ops:
        problems.append(f"operators that need another runtime: {', '.join(description.flex_ops)}")
    expected = {"int8": "int8", "int16x8": "int16"}.get(mode)
    for end in description.io:
        if expected and end.dtype not in (expected, "int32", "int64", "bool"):
            problems.append(f"{end.role} {end.name} is {end.dtype}, not {expected}")
    if problems:
        raise ConversionError(f"tflite/{mode}: {'; '.join(problems[:3])}")
    answer: dict[str, Any] = to_json(description)
    return answer


if __name__ == "__main__":
    worker = Worker()
    with contextlib.suppress(BrokenPipeError):
        serve(
            {
                "complete": worker.complete,
                "calibrate": worker.calibrate,
                "quantize": worker.quantize,
                "embed_card": worker.embed_card,
            }
        )
