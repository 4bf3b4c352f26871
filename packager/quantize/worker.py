"""The LiteRT child process: completes, quantizes and describes `.tflite` files.

Run as `python -m packager.quantize.worker`; see `packager.handlers`. TensorFlow and LiteRT do not
share a process: their copies of abseil and protobuf can deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packager import tflite_file
from packager.bundle import to_json
from packager.errors import ConfigError, ConversionError, UnsupportedError, brief
from packager.handlers import serve
from packager.quantize import filled, layer_errors, op_layers, trials
from packager.quantize.plan import Plan, rules
from packager.quantize.recipes import RECIPES, Rule

SIGNATURE = tflite_file.SIGNATURE.decode()

# Two float graphs of the same sums in another order, as a share of the magnitude.
_SAME = 1e-4

Calibration = dict[str, dict[str, Any]]


def complete(
    source: str,
    target: str,
    inputs: list[str],
    outputs: list[str],
    mode: str = "float32",
    weights: list[dict[str, Any]] | None = None,
    values: str = "",
) -> dict[str, Any]:
    """Turns the converter's file into the artifact: weights, names, signature, check.

    Args:
        source: The converter's file.
        target: The file to write.
        inputs: Names of its inputs, in order.
        outputs: Names of its outputs, in order.
        mode: What it promises.
        weights: Those that stayed outside; see `filled.fill`.
        values: The folder of their values.

    Returns:
        The description; or `missing`, the weights that the converter must see.
    """
    model = tflite_file.read(Path(source))
    missing = filled.fill(model, weights, Path(values)) if weights else []
    if missing:
        return {"missing": missing}
    tflite_file.name_ends(model, inputs, outputs)
    _fix_shapes(model)
    tflite_file.write(model, Path(target))
    return _checked(model, mode)


def calibrate(model: str, samples: str, ranges: str, algorithm: str = "min_max") -> list[str]:
    """Records the range of every tensor over the samples, whatever their order.

    Args:
        model: The float32 file.
        samples: Folder with one `[N, ...]` array `<input name>.npy` per input.
        ranges: File for the result: JSON, `[minimum, maximum]` by tensor name.
        algorithm: `min_max`: the smallest minimum and the largest maximum; `average`: the means
            of all samples' minima and maxima, which leave outliers out.

    Returns:
        Names of the tensors that were constant: the samples do not show their range.

    Raises:
        UnsupportedError: The file has a loop, whose body the quantizer does not calibrate.
    """
    _refuse_loops(tflite_file.read(Path(model)))
    from litert_quantizer import calibrator, recipe_manager
    from litert_quantizer.utils import qsv_utils

    recipe = recipe_manager.RecipeManager()
    recipe.load_quantization_recipe(RECIPES["int8"])
    work = calibrator.Calibrator(
        model,
        num_threads=1,
        mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        # The default is a moving average, which depends on the order of the samples.
        qsv_update_func=qsv_utils.min_max_update if algorithm == "min_max" else _add,
    )
    count = 0
    for sample in _samples(Path(samples)):
        work.calibrate({SIGNATURE: [sample]}, recipe)
        count += 1
    found = _check_ranges(work.get_model_qsvs())
    if algorithm == "average":
        found = {name: [low / count, high / count] for name, (low, high) in found.items()}
    Path(ranges).write_text(json.dumps(found), encoding="utf-8")
    return [name for name, (low, high) in found.items() if low == high]


def quantize(
    model: str,
    target: str,
    mode: str,
    ranges: str | None = None,
    plan: dict[str, Any] | None = None,
    layers: list[str] | None = None,
) -> dict[str, Any]:
    """Writes one quantized variant of the float32 file and describes it.

    Args:
        model: The float32 file.
        target: The file to write.
        mode: A key of `RECIPES`.
        ranges: What `calibrate` wrote, for the modes that need it.
        plan: A `Plan` in place of the mode's recipe.
        layers: Names of the Keras layers, which the plan's names refer to.
    """
    from litert_quantizer import quantizer

    work = quantizer.Quantizer(model)
    recipe = RECIPES.get(mode)
    if plan is not None:
        recipe = _planned(Path(model), Plan.from_json(plan), layers or [])
    work.load_quantization_recipe(recipe)
    known = trials.read_ranges(Path(ranges)) if ranges else None
    result = work.quantize(known, enable_progress_bar=False, enable_progress_report=False)
    quantized = tflite_file.completed(bytes(result.quantized_model))
    uint8 = plan is not None and plan.get("uint8_io")
    if uint8:
        tflite_file.make_ends_uint8(quantized)
    tflite_file.write(quantized, Path(target))
    return _checked(quantized, mode, "uint8" if uint8 else None)


def _planned(model: Path, plan: Plan, layers: list[str]) -> list[Rule]:
    tensors = op_layers.tensors_of(op_layers.read_ops(tflite_file.read(model), layers))
    unknown = [name for name in plan.layers if name not in tensors]
    if unknown:
        raise ConfigError(
            f"int8.layers: no operator of the TFLite file is of the layer {unknown[0]!r}",
            hint=f"layers with operators: {', '.join(tensors)}",
        )
    return rules(plan, tensors)


def embed_card(path: str, card: dict[str, Any]) -> None:
    """Stores the card in a finished file."""
    model = tflite_file.read(Path(path))
    tflite_file.embed_card(model, card)
    tflite_file.write(model, Path(path))


def layers(model: str, other: str, samples: str) -> list[dict[str, Any]]:
    """The error of each tensor inside a quantized file; see `layer_errors.measure`.

    Raises:
        UnsupportedError: The interpreter's plain kernels cannot run a file.
    """
    try:
        return layer_errors.measure(model, other, samples)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UnsupportedError(f"the layers cannot be compared: {brief(error)}") from error


def compare(model: str, other: str, samples: str) -> None:
    """Runs two float files on the samples.

    Raises:
        UnsupportedError: An output differs by more than 1e-4 of its magnitude.
    """
    for sample in _samples(Path(samples)):
        theirs, ours = (_run(path, sample) for path in (model, other))
        for name, value in theirs.items():
            largest = float(np.abs(value).max(initial=0.0))
            difference = float(np.abs(value - ours[name]).max(initial=0.0))
            if not difference <= _SAME * largest:
                raise UnsupportedError(
                    f"unrolled, the recurrent layers give another output {name!r}: off by"
                    f" {difference:.2g}, magnitude {largest:.2g}",
                    hint="use tflite/dynamic_int8 or tflite/float16, which keep the loop",
                )


def _run(path: str, sample: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    from ai_edge_litert.interpreter import Interpreter

    found: dict[str, np.ndarray[Any, Any]] = Interpreter(path).get_signature_runner(SIGNATURE)(
        **sample
    )
    return found


def _refuse_loops(model: Any) -> None:
    loops = [name for name in ("WHILE", "IF") if name in tflite_file.describe(model).ops]
    if loops:
        raise UnsupportedError(
            f"the file has the operator {loops[0]}, the loop of a recurrent layer such as LSTM:"
            " what it repeats cannot be calibrated, so it has no integer form",
            hint="use tflite/dynamic_int8 or tflite/float16; both keep the loop in float",
        )


def _samples(folder: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    for i in range(len(next(iter(arrays.values())))):
        yield {name: np.ascontiguousarray(array[i : i + 1]) for name, array in arrays.items()}


def _add(sums: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """Sums of the samples' minima and maxima: their means do not depend on the order."""
    if not sums:
        return sample
    return {key: sums[key] + sample[key] for key in ("min", "max")}


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


def _fix_shapes(model: Any) -> None:
    """Drops shape signatures that only repeat the fixed shape."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            signature = tensor.shapeSignature
            if signature is not None and list(signature) == list(tensor.shape):
                tensor.shapeSignature = None


def _checked(model: Any, mode: str, dtype: str | None = None) -> dict[str, Any]:
    description = tflite_file.describe(model)
    problems = list(description.problems)
    if description.flex_ops:
        problems.append(f"operators that need another runtime: {', '.join(description.flex_ops)}")
    integers = {"int8": "int8", "edgetpu": "int8", "qat_int8": "int8", "int16x8": "int16"}
    expected = dtype or integers.get(mode)
    for end in description.io:
        if expected and end.dtype not in (expected, "int32", "int64", "bool"):
            problems.append(f"{end.role} {end.name} is {end.dtype}, not {expected}")
    if mode == "float16" and tflite_file.has_infinite_weights(model):
        raise UnsupportedError(
            "tflite/float16: a weight is larger than 65504, the largest float16 number",
            hint="scale the layer, or leave this artifact out with --only",
        )
    if problems:
        raise ConversionError(f"tflite/{mode}: {'; '.join(problems[:3])}")
    if not _kept_its_promise(description, mode):
        raise UnsupportedError(
            f"tflite/{mode}: none of the operators {', '.join(description.ops)} has a {mode} form",
            hint="use tflite/float32 for this model",
        )
    answer: dict[str, Any] = to_json(description)
    return answer


def _kept_its_promise(description: tflite_file.Description, mode: str) -> bool:
    """Whether quantization changed anything: a recipe without a matching rule says nothing."""
    if mode == "float16":
        return description.ops.get("DEQUANTIZE", 0) > 0
    if mode == "dynamic_int8":
        return bool(description.hybrid_ops)
    return mode == "float32" or description.integer_op_share > 0


if __name__ == "__main__":
    tried = trials.Handlers()
    serve(
        {
            "open_trials": tried.open,
            "run_trial": tried.run,
            "file_trial": tried.file,
            "spreads": tried.spreads,
            "time_trial": tried.time,
            "complete": complete,
            "compare": compare,
            "layers": layers,
            "calibrate": calibrate,
            "quantize": quantize,
            "embed_card": embed_card,
        }
    )
