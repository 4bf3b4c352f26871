"""Times a SavedModel or Keras model with the server's engine: `python server_child.py JSON`.

Prints one JSON document as the last line.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).parent)
timing: Any = importlib.import_module("timing")  # found beside this file


def main() -> dict[str, Any]:
    """Measures what the parent asks for."""
    given = timing.arguments()
    sys.path.insert(0, given["server"])
    from packager_server.engine import Engine, import_tensorflow

    tensorflow = import_tensorflow()
    tensorflow.config.threading.set_intra_op_parallelism_threads(given["threads"])
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    runtime = {"name": "tensorflow", "version": str(tensorflow.__version__)}
    started = time.perf_counter()
    engine = Engine.load(given["model"])
    load_ms = (time.perf_counter() - started) * 1000
    arrays = {name: np.load(Path(given["inputs"]) / f"{name}.npy") for name in engine.inputs}
    samples = [
        {name: array[row : row + 1] for name, array in arrays.items()}
        for row in range(given["samples"])
    ]
    times = timing.repeat(lambda number: engine.predict(samples[number % len(samples)]), given)
    memory = timing.peak_memory()
    return {"runtime": runtime, "load_ms": load_ms, "times": times, "peak_memory_bytes": memory}


if __name__ == "__main__":
    answer = main()
    print(json.dumps(answer))
