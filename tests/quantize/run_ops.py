"""Runs .tflite files on the first 8 inputs: python run_ops.py FOLDER FILE... (any interpreter).

Prints JSON: the largest difference from the float model as a share of its range, by file; or
the error text.
"""

import json
import sys
from pathlib import Path

import numpy as np

try:
    from ai_edge_litert.interpreter import Interpreter
except ImportError:
    from tflite_runtime.interpreter import Interpreter


def run(path, inputs):
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    source, target = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    outputs = []
    for x in inputs:
        if source["dtype"] != np.float32:
            scale, zero = source["quantization"]
            limits = np.iinfo(source["dtype"])
            x = np.clip(np.round(x / scale) + zero, limits.min, limits.max)
        interpreter.set_tensor(source["index"], x[None].astype(source["dtype"]))
        interpreter.invoke()
        y = interpreter.get_tensor(target["index"])[0].astype(np.float64)
        if target["dtype"] != np.float32:
            scale, zero = target["quantization"]
            y = (y - zero) * scale
        outputs.append(y)
    return np.array(outputs)


def main(folder, files):
    inputs = np.load(folder / "inputs" / "x.npy")[:8]
    found = {}
    for file in files:
        expected = np.load(folder / f"{Path(file).name.partition('.')[0]}.expected.npy")
        try:
            gap = np.abs(run(folder / file, inputs) - expected).max()
            found[file] = float(gap / np.ptp(expected))
        except (ValueError, RuntimeError) as error:
            found[file] = str(error).splitlines()[0]
    json.dump(found, sys.stdout)


main(Path(sys.argv[1]), sys.argv[2:])
