"""Runs .tflite files: python run_plans.py INPUTS.npy FILE...; any interpreter, any Python.

Prints JSON: the outputs as real numbers `[N, ...]` flattened, by file name; or the error text.
"""

import json
import sys
from pathlib import Path

import numpy as np


class Lite:
    """ai-edge-litert or tflite-runtime."""

    def __init__(self, path):
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            from tflite_runtime.interpreter import Interpreter
        self._interpreter = Interpreter(str(path))
        self._interpreter.allocate_tensors()
        ends = (self._interpreter.get_input_details()[0], self._interpreter.get_output_details()[0])
        self.source, self.target = ((d["dtype"], *d["quantization"]) for d in ends)
        self._places = [d["index"] for d in ends]

    def __call__(self, x):
        self._interpreter.set_tensor(self._places[0], x)
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self._places[1])


class Micro:
    """tflite-micro."""

    def __init__(self, path):
        from tflite_micro import runtime

        content = Path(path).read_bytes()
        self._interpreter = runtime.Interpreter.from_bytes(content, arena_size=2_000_000)
        self.source = self._end(self._interpreter.get_input_details(0))
        self.target = self._end(self._interpreter.get_output_details(0))

    @staticmethod
    def _end(detail):
        found = detail["quantization_parameters"]
        scales, zeros = np.ravel(found["scales"]), np.ravel(found["zero_points"])
        return detail["dtype"], float(scales[0]) if len(scales) else 0.0, int(zeros[:1].sum())

    def __call__(self, x):
        self._interpreter.set_input(x, 0)
        self._interpreter.invoke()
        return self._interpreter.get_output(0)


def run(model, inputs):
    rows = []
    for x in inputs:
        dtype, scale, zero = model.source
        x = x[None]
        if scale:
            limits = np.iinfo(dtype)
            x = np.clip(np.round(x / scale) + zero, limits.min, limits.max)
        y = model(x.astype(dtype)).astype(np.float64)
        dtype, scale, zero = model.target
        rows.append(((y - zero) * scale if scale else y).ravel())
    return np.array(rows)


def main(inputs, *files):
    try:
        import tflite_micro  # noqa: F401

        kind = Micro
    except ImportError:
        kind = Lite
    found = {}
    for file in files:
        try:
            found[Path(file).name] = run(kind(file), np.load(inputs)).tolist()
        except (ValueError, RuntimeError) as error:
            found[Path(file).name] = str(error).splitlines()[0]
    json.dump(found, sys.stdout)


main(*sys.argv[1:])
