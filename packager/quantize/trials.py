"""Quantizes one float file in many ways and measures each: what blame, ladder and search share.

Runs in the LiteRT child process. A trial writes no file and costs milliseconds besides running
the samples. What is finally packaged is verified by the shipped runner like every artifact.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from packager import preprocess, tflite_file
from packager.bundle import OutputSpec, from_json
from packager.errors import ConversionError, UnsupportedError, brief
from packager.quantize import layer_errors, op_layers, plan
from packager.quantize.plan import Plan
from packager.quantize.trial import Trial
from packager.verify import metrics
from packager.verify.metrics import Task

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
SIGNATURE = tflite_file.SIGNATURE.decode()
_WARM_UP = 5


class Trials:
    """One float file with its samples.

    Args:
        model: The float32 file.
        ranges: Files that `worker.calibrate` wrote, by the activations' algorithm.
        inputs: Folder of `[N, ...]` arrays `<input name>.npy`.
        targets: File of the targets `[N, ...]`, or None.
        task: `kind`, `outputs` and `threshold`, as JSON values of `metrics.Task`.
        limit: Use the first so many samples.
        known: Names of the model's layers, where they are known.
    """

    def __init__(
        self,
        model: str,
        ranges: Mapping[str, str],
        inputs: str,
        targets: str | None,
        task: Json,
        limit: int | None = None,
        known: tuple[str, ...] = (),
    ) -> None:
        self.path = Path(model)
        self.model = tflite_file.read(self.path)
        self.ops = op_layers.read_ops(self.model, known)
        self.tensors = op_layers.tensors_of(self.ops)
        self.ranges = {name: read_ranges(Path(path)) for name, path in ranges.items()}
        self.inputs = {
            path.stem: np.load(path, mmap_mode="r")[:limit]
            for path in sorted(Path(inputs).glob("*.npy"))
        }
        self.targets = np.load(targets)[:limit] if targets else None
        outputs = tuple(from_json(OutputSpec, o, "task") for o in task["outputs"])
        self.task = Task(task["kind"], outputs, task["threshold"])
        self.reference = self._run(self.path.read_bytes())
        for name, array in self.reference.items():
            if not np.isfinite(array).all():
                raise UnsupportedError(f"{self.path.name}: the output {name!r} is not finite")
        self.output_ranges = {n: metrics.output_range(a) for n, a in self.reference.items()}

    def measure_reference(self) -> Json:
        """The float file's own metrics, size and layers."""
        spec = self.task.main
        found: Json = {
            "size_bytes": self.path.stat().st_size,
            "samples": len(self.reference[spec.name]),
        }
        if self.targets is not None and self.task.kind in (
            "classification",
            "binary",
            "multilabel",
        ):
            answers = self.reference[spec.name]
            found["accuracy"] = metrics.accuracy(self.task, answers, self.targets)
        elif self.targets is not None and self.task.kind == "regression":
            found["mean_abs_error"] = metrics.mean_error(self.targets, self.reference[spec.name])
        found["ops"] = [asdict(op) for op in self.ops]
        return found

    def quantize(self, wanted: Plan) -> tuple[bytes, tflite_file.Description]:
        """The file that a plan makes, and what is in it.

        Raises:
            UnsupportedError: litert-quantizer has no such combination, or the file has a bad scale.
        """
        from litert_quantizer import quantizer

        work = quantizer.Quantizer(str(self.path))
        work.load_quantization_recipe(plan.rules(wanted, self.tensors))
        try:
            result = work.quantize(
                self.ranges[wanted.activations],
                enable_progress_bar=False,
                enable_progress_report=False,
            )
        except Exception as error:
            raise UnsupportedError(f"{wanted.summary()}: {brief(error)}") from error
        model = tflite_file.completed(bytes(result.quantized_model))
        described = tflite_file.describe(model)
        if described.problems:
            raise UnsupportedError(described.problems[0])
        _check_ends(described, wanted)
        return tflite_file.to_bytes(model), described

    def run(self, wanted: Plan, *, timed: int = 0) -> Trial:
        """Quantizes by a plan, runs all samples and compares with the float file.

        Args:
            wanted: The plan.
            timed: Number of timed inferences; 0: the time is not measured.
        """
        content, described = self.quantize(wanted)
        return self.measure(content, described, wanted.summary(), timed)

    def measure(
        self, content: bytes, described: tflite_file.Description, name: str, timed: int
    ) -> Trial:
        """Runs all samples on a file and compares with the float file.

        Args:
            content: The file.
            described: What is in it.
            name: What the error calls it.
            timed: As in `run`.
        """
        try:
            outputs = self._run(content)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"{name} cannot be run: {brief(error)}") from error
        return Trial(
            metrics=self._compare(outputs),
            snr_db=self._snr(outputs),
            size_bytes=len(content),
            integer_op_share=described.integer_op_share,
            float_ops=described.float_ops,
            latency_ms=self.time(content, timed) if timed else None,
        )

    def spreads(self) -> dict[str, dict[str, float]]:
        """How much the channels of each layer differ in size.

        Returns:
            By layer, `output`: the largest magnitude of any channel of its output over that of its
            smallest quarter, on a few samples; `weights`: the same over the inputs of its weights,
            for the output channel in the middle. Either is absent where there are no channels.
        """
        values = layer_errors.tensors(self.path, self.inputs)
        found: dict[str, dict[str, float]] = {}
        for op in self.ops:
            entry = found.setdefault(op.layer, {})
            for name in op.outputs:
                if name in values and values[name].ndim > 2 and values[name].shape[-1] > 1:
                    sizes = np.abs(values[name]).reshape(-1, values[name].shape[-1]).max(axis=0)
                    entry["output"] = _spread(sizes)
            kernel = self._kernel(op)
            if kernel is not None:
                sizes = np.abs(kernel).reshape(len(kernel), -1, kernel.shape[-1]).max(axis=1)
                entry["weights"] = float(np.median([_spread(row) for row in sizes]))
        return found

    def _kernel(self, op: op_layers.OpLayer) -> Array | None:
        """Weights `[out, ..., in]` of a convolution or Dense."""
        if op.op not in ("CONV_2D", "FULLY_CONNECTED"):
            return None
        graph = self.model.subgraphs[0]
        tensor = graph.tensors[graph.operators[op.index].inputs[1]]
        data = self.model.buffers[tensor.buffer].data
        if data is None or tensor.shape[-1] < 2:
            return None
        return np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float32).reshape(tensor.shape)

    def time(self, content: bytes, runs: int) -> float:
        """Median milliseconds of one inference on one thread."""
        interpreter = _Interpreter(content)
        sample = {name: array[:1] for name, array in interpreter.encode(self.inputs).items()}
        for _ in range(_WARM_UP):
            interpreter.runner(**sample)
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            interpreter.runner(**sample)
            times.append(time.perf_counter() - start)
        return 1e3 * float(np.median(times))

    def _run(self, content: bytes) -> dict[str, Array]:
        interpreter = _Interpreter(content)
        encoded = interpreter.encode(self.inputs)
        rows: dict[str, list[Array]] = {}
        for row in range(len(next(iter(encoded.values())))):
            sample = {name: array[row : row + 1] for name, array in encoded.items()}
            for name, value in interpreter(sample).items():
                rows.setdefault(name, []).append(value)
        return {name: np.concatenate(values).astype(np.float32) for name, values in rows.items()}

    def _compare(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="packager-trial-") as name:
            theirs, ours = Path(name) / "float", Path(name) / "trial"
            for folder, arrays in ((theirs, self.reference), (ours, outputs)):
                folder.mkdir()
                for output, array in arrays.items():
                    np.save(folder / f"{output}.npy", array)
            return metrics.measure(self.task, theirs, ours, self.targets, self.output_ranges)

    def _snr(self, outputs: Mapping[str, Array]) -> float | None:
        signal = noise = 0.0
        for name, wanted in self.reference.items():
            signal += float(np.square(wanted, dtype=np.float64).sum())
            noise += float(np.square(outputs[name] - wanted, dtype=np.float64).sum())
        if not (signal > 0 and 0 < noise < np.inf):
            return None
        return 10 * float(np.log10(signal / noise))


def _spread(sizes: Array) -> float:
    used = sizes[sizes > 0]
    return float(used.max() / np.quantile(used, 0.25)) if used.size else 1.0


class _Interpreter:
    """One file on one thread; real numbers in and out."""

    def __init__(self, content: bytes) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(model_content=content, num_threads=1)
        self.runner = self._interpreter.get_signature_runner(SIGNATURE)
        self.ends = {
            "inputs": self.runner.get_input_details(),
            "outputs": self.runner.get_output_details(),
        }

    def encode(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Real inputs `[N, ...]` in the file's types."""
        found = {}
        for name, detail in self.ends["inputs"].items():
            scale, zero_point = detail["quantization"]
            value, dtype = np.asarray(arrays[name]), np.dtype(detail["dtype"])
            found[name] = (
                preprocess.quantize(value, scale, zero_point, dtype.name)
                if scale
                else value.astype(dtype)
            )
        return found

    def __call__(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        found = {}
        for name, value in self.runner(**sample).items():
            scale, zero_point = self.ends["outputs"][name]["quantization"]
            found[name] = preprocess.dequantize(value, scale, zero_point) if scale else value
        return found


def _check_ends(described: tflite_file.Description, wanted: Plan) -> None:
    """Refuses a plan whose last layer gives another type than the artifact's ends must have."""
    if wanted.float_io or wanted.base == "float":
        return
    for end in described.io:
        if end.dtype in ("float32", "int8", "int16") and end.dtype != wanted.base:
            raise UnsupportedError(
                f"{wanted.summary()}: the {end.role} {end.name} would be {end.dtype}",
                hint="only a file with float ends (int8_float_io) can have a last layer in float",
            )


def read_ranges(path: Path) -> dict[str, dict[str, Any]]:
    """Reads what `worker.calibrate` wrote, as litert-quantizer takes it."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: {"min": np.array([low]), "max": np.array([high])}
        for name, (low, high) in stored.items()
    }


class Handlers:
    """The child's handlers; one set of trials is open at a time."""

    def __init__(self) -> None:
        self._open: Trials | None = None

    def open(self, **arguments: Any) -> Json:
        """Opens trials (the arguments of `Trials`); answers `measure_reference`."""
        self._open = Trials(**arguments)
        return self._open.measure_reference()

    def run(self, wanted: Json, timed: int = 0) -> Json:
        """Runs one plan; answers a `Trial` as JSON values."""
        return asdict(self._trials().run(Plan.from_json(wanted), timed=timed))

    def file(self, path: str, timed: int) -> Json:
        """As `run`, of a finished file."""
        described = tflite_file.describe(tflite_file.read(Path(path)))
        content = Path(path).read_bytes()
        return asdict(self._trials().measure(content, described, Path(path).name, timed))

    def spreads(self) -> Json:
        """As `Trials.spreads`."""
        return self._trials().spreads()

    def time(self, wanted: Json, runs: int) -> float:
        """Median milliseconds of what a plan makes."""
        trials = self._trials()
        content, _ = trials.quantize(Plan.from_json(wanted))
        return trials.time(content, runs)

    def _trials(self) -> Trials:
        if self._open is None:
            raise ConversionError("no trials are open in this process")
        return self._open
