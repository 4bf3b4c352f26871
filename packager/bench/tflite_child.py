"""Times a `.tflite` file on ai-edge-litert or tflite-runtime: `python tflite_child.py JSON`.

Needs NumPy and one interpreter alone, so that another environment's Python can run it. Prints one
JSON document.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).parent)
timing: Any = importlib.import_module("timing")  # found beside this file

RUNTIMES = {
    "ai-edge-litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
}


def main() -> dict[str, Any]:
    """Measures what the parent asks for."""
    given = timing.arguments()
    name, version = installed()
    if not name:
        return {"skipped": "neither ai-edge-litert nor tflite-runtime is installed there"}
    runtime = {"name": name, "version": version}
    reason = timing.why_not(name, version, given["min_version"])
    if reason:
        return {"runtime": runtime, "skipped": reason}
    module = importlib.import_module(RUNTIMES[name])
    started = time.perf_counter()
    interpreter = module.Interpreter(model_path=given["model"], num_threads=given["threads"])
    interpreter.allocate_tensors()
    load_ms = (time.perf_counter() - started) * 1000
    samples = [encoded(interpreter, row, Path(given["inputs"])) for row in range(given["samples"])]
    outputs = [detail["index"] for detail in interpreter.get_output_details()]

    def call(number: int) -> None:
        for index, value in samples[number % len(samples)]:
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        for index in outputs:
            interpreter.get_tensor(index)

    times = timing.repeat(call, given)
    memory = timing.peak_memory()
    return {"runtime": runtime, "load_ms": load_ms, "times": times, "peak_memory_bytes": memory}


def installed() -> tuple[str, str]:
    """The interpreter package that is here and its version; empty texts without one."""
    for name in RUNTIMES:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def encoded(interpreter: Any, row: int, folder: Path) -> list[tuple[int, Any]]:
    """One sample as tensor numbers and values of the tensors' types."""
    signature = interpreter.get_signature_list()
    names = next(iter(signature.values()))["inputs"] if signature else []
    details = {detail["name"]: detail for detail in interpreter.get_input_details()}
    found = []
    for name in names:
        detail = details.get(name) or next(d for n, d in details.items() if name in n)
        value = np.load(folder / f"{name}.npy", mmap_mode="r")[row : row + 1]
        scale, zero_point = detail["quantization"]
        dtype = np.dtype(detail["dtype"])
        if scale:
            limits = np.iinfo(dtype)
            value = np.rint(value / scale + zero_point).clip(limits.min, limits.max)
        found.append((detail["index"], np.ascontiguousarray(value.astype(dtype))))
    return found


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(main()))
