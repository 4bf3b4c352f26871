"""Quantization-aware training beside tfmot: accuracy of the int8 files, and time of a step.

    python -m bench.qat [--seeds 3] [--epochs 2] [--samples 1500]

The same networks with the same weights in both Kerases, on the same digits, epochs, batches and
learning rate; tfmot on tf-keras. Every file is run by edge/run.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench import environments

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("digits", "mobilenet", "resnet8")
KINDS = ("float", "ours", "distill", "tfmot")


def accuracy(file: Path, name: str) -> float:
    """Share of right answers of a file on the evaluation digits."""
    with np.load(ROOT / "examples/digits/data/evaluation.npz") as stored:
        x, y = stored["x"].astype(np.float32)[..., None] / 255, stored["y"]
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder) / "in", Path(folder) / "out"
        given.mkdir(), taken.mkdir()
        np.save(given / f"{name}.npy", x)
        command = [sys.executable, ROOT / "edge/run.py", "run", file, "--inputs", given]
        subprocess.run([*command, "--outputs", taken], check=True, capture_output=True)
        (output,) = taken.glob("*.npy")
        return float(np.mean(np.load(output).reshape(len(y), -1).argmax(axis=1) == y))


def child(kind: str, folder: Path, options: argparse.Namespace) -> None:
    """Trains all networks in a process of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYTHONPATH"] = str(ROOT)
    if kind == "tfmot":
        tfmot = environments.modules("tfmot", environments.TFMOT)
        environment |= {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": f"{ROOT}:{tfmot}"}
    numbers = [options.seeds, options.epochs, options.samples, options.rate]
    command = [sys.executable, "-m", "bench.qat_child", kind, folder, *map(str, numbers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{kind}: {done.stderr[-2000:]}")


def rows(folder: Path, kinds: list[str]) -> list[str]:
    """The table, one row per network and way."""
    lines = [
        "| network | way | int8 accuracy, mean | lowest | ms per step |",
        "|---|---|---|---|---|",
    ]
    for network in (*NETWORKS, "uneven"):
        times = {}
        for kind in kinds:
            files = sorted(folder.glob(f"{network}.{kind}.*.tflite"))
            if not files:
                continue
            found = [accuracy(file, "image") for file in files]
            timed = folder / f"{network}.{kind}.json"
            ms = json.loads(timed.read_text()) if timed.exists() else None
            times[kind] = ms
            shown = "" if ms is None else f"{ms:.1f}"
            if kind == "ours" and times.get("tfmot"):
                shown += f" ({ms / times['tfmot']:.2f} of tfmot)"
            mean, low = 100 * np.mean(found), 100 * np.min(found)
            lines.append(f"| {network} | {kind} | {mean:.2f} % | {low:.2f} % | {shown} |")
    return lines


def main() -> None:
    """Trains, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=3e-4)
    options = parser.parse_args()
    kinds = ["float", "tfmot", "ours", "distill"]
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds:
            child(kind, Path(name), options)
        print("\n".join(rows(Path(name), ["float", "ptq", *kinds[1:]])))


if __name__ == "__main__":
    main()
