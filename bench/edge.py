"""The edge runner against a bare script: inference, start, memory, preprocessing.

    python -m bench.edge dist/digits [--rounds 5]

Each figure is the ratio of run.py to a straight script that does only the same work; medians of
rounds that take turns, because a machine at work drifts.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "edge" / "run.py"
LIMITS = {"inference": 1.03, "start to first answer": 1.25, "peak memory": 1.15, "12 MP JPEG": 1.0}

# What run.py does at least: the same imports of others, one picture, one invoke().
BARE = """
import argparse, contextlib, ctypes, hashlib, importlib.metadata, io, json, mmap, os, platform
import re, signal, sys, threading, time, zipfile
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from PIL import Image
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(model_path=sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
(source,), (target,) = interpreter.get_input_details(), interpreter.get_output_details()
image = Image.open(sys.argv[2]).convert("L").resize((28, 28), Image.BILINEAR)
x = np.asarray(image)[None, :, :, None]
scale, zero = source["quantization"]
x = np.clip(np.round(x / 255 / scale) + zero, -128, 127).astype(np.int8) if scale else (
    (x / 255).astype(np.float32))
interpreter.set_tensor(source["index"], x)
interpreter.invoke()
print(interpreter.get_tensor(target["index"]).tolist())
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
RUN = """
import re, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def runner() -> Any:
    """edge/run.py as a module."""
    spec = importlib.util.spec_from_file_location("edge_run", RUNNER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["edge_run"] = module
    spec.loader.exec_module(module)
    return module


def started(*command: object) -> tuple[float, float]:
    """Runs a process; returns its seconds and its peak memory in kB."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - begin
    return seconds, float(done.stderr.split()[-1])


def turns(rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Measures both, taking turns."""
    return [(ours(), theirs()) for _ in range(rounds)]


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """The ratio of the medians."""
    mine, theirs = zip(*pairs, strict=True)
    return statistics.median(mine) / statistics.median(theirs)


def inference(edge: Any, bundle: Any, rounds: int) -> float:
    """p50 of one model call on a tensor against set_tensor, invoke, get_tensor."""
    args = edge.parse(["info", str(bundle.root)])
    model = edge.Model(bundle, bundle.artifact("tflite/float32"), args)
    (name, tensor), *_ = model.inputs.items()
    (output,) = model.outputs.values()
    x = np.random.default_rng(0).uniform(size=tensor.shape).astype(np.float32)
    sample = {name: x[0]}
    interpreter = model.interpreter

    def ours() -> float:
        model(sample)
        before, after = model.invoked
        return after - before

    def bare() -> float:
        interpreter.set_tensor(tensor.index, x)
        begin = time.perf_counter()
        interpreter.invoke()
        seconds = time.perf_counter() - begin
        interpreter.get_tensor(output.index)
        return seconds

    return ratio(turns(rounds * 400, ours, bare))


def large_photo(edge: Any, rounds: int) -> float:
    """Preprocessing of a 12-megapixel JPEG to 224 x 224 against a straight Pillow script."""
    from PIL import Image

    coarse = np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    content = io.BytesIO()
    picture = Image.fromarray(coarse).resize((4000, 3000), Image.Resampling.BICUBIC)
    picture.save(content, "JPEG", quality=92)
    image = {"width": 224, "height": 224, "channels": "rgb", "resize": "pillow:bilinear",
             "fit": "stretch", "scale": [1 / 127.5], "offset": [-1.0]}  # fmt: skip
    tables = edge.pixel_tables(image, "float32")

    def ours() -> float:
        begin = time.perf_counter()
        pixels = edge.prepare_pixels(io.BytesIO(content.getvalue()), image)
        edge.apply_tables(pixels, tables)[None]
        return time.perf_counter() - begin

    def straight() -> float:
        begin = time.perf_counter()
        small = Image.open(io.BytesIO(content.getvalue())).convert("RGB")
        pixels = np.asarray(small.resize((224, 224), Image.Resampling.BILINEAR))
        (pixels.astype(np.float32) / 127.5 - 1.0)[None]
        return time.perf_counter() - begin

    return ratio(turns(rounds * 3, ours, straight))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    edge = runner()
    bundle = edge.open_target(given.bundle)
    photo = next(bundle.root.glob("golden/*.png"))
    model = bundle.file(bundle.artifact("tflite/int8")["path"])
    ours = (RUNNER, "predict", bundle.root, photo, "--artifact", "tflite/int8")
    with tempfile.TemporaryDirectory() as folder:
        bare, wrapped = Path(folder, "bare.py"), Path(folder, "wrapped.py")
        bare.write_text(BARE)
        wrapped.write_text(RUN)
        processes = turns(
            given.rounds * 2, lambda: started(wrapped, *ours), lambda: started(bare, model, photo)
        )
    measured = {
        "inference": inference(edge, bundle, given.rounds),
        "start to first answer": ratio([(a[0], b[0]) for a, b in processes]),
        "peak memory": ratio([(a[1], b[1]) for a, b in processes]),
        "12 MP JPEG": large_photo(edge, given.rounds),
    }
    print("| | of a bare script | wanted |\n|---|---|---|")
    for name, value in measured.items():
        print(f"| {name} | {value:.3f} | {LIMITS[name]} |")


if __name__ == "__main__":
    main()
