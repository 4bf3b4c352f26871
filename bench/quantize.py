"""Our int8 against TensorFlow's, and how long the search for a good one takes.

    python -m bench.quantize [--only digits]

The same model, calibration and evaluation samples for both. Accuracy is measured by `edge/run.py`
on both files. Time: ours is the stage of one variant in a build (calibration, which all integer
variants share, beside it); TensorFlow's is `convert()`, which calibrates each time. `bad` is the
digits model with one layer made bad on purpose, by a factor of 1000; `mobile` a small MobileNetV2
trained here on the digits example.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager import bundle
from packager.verify import metrics, runners
from packager.verify.metrics import Task
from tests.conftest import DIGITS, SHARED
from tests.quantize import bad_layer
from tests.real_models import REAL

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(__file__).parent / ".work" / "quantize"
CONVERTER = Path(__file__).parent / "peers" / "tflite_converter.py"

TRAIN = """
import keras, numpy as np, sys
from keras import layers
keras.utils.set_random_seed(0)
stored = np.load(sys.argv[1])
x, y = (stored["x"] / 255).astype("float32")[..., None], stored["y"]
inputs = h = keras.Input((28, 28, 1), name="image")
def conv(h, n, s=1, k=3, act=True):
    h = layers.Conv2D(n, k, s, "same", use_bias=False)(h)
    h = layers.BatchNormalization(momentum=0.9)(h)
    return layers.ReLU(6.0)(h) if act else h
h = conv(h, 16, 2)
for filters, stride, repeats in ((16, 1, 1), (24, 2, 2), (32, 2, 2)):
    for i in range(repeats):
        skip, s = h, stride if i == 0 else 1
        h = conv(h, h.shape[-1] * 6, k=1)
        h = layers.DepthwiseConv2D(3, s, "same", use_bias=False)(h)
        h = layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.9)(h))
        h = conv(h, filters, k=1, act=False)
        h = layers.Add()([skip, h]) if skip.shape == h.shape else h
h = layers.GlobalAveragePooling2D()(conv(h, 128, k=1))
model = keras.Model(inputs, layers.Dense(10, "softmax", name="digit")(h), name="mobile")
model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=64, epochs=12, verbose=0)
model.save(sys.argv[2])
"""


@dataclass(frozen=True)
class Case:
    """A model with its data, as flags of `packager build`."""

    model: Path
    calibration: Path
    evaluation: Path
    flags: tuple[str, ...]


def digits(folder: Path) -> Case:
    return _like_digits(DIGITS / "model.keras")


def mobile(folder: Path) -> Case:
    path = folder / "mobile.keras"
    command = [sys.executable, "-c", TRAIN, DIGITS / "data/train.npz", path]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return _like_digits(path)


def bad(folder: Path) -> Case:
    path = folder / "bad.keras"
    bad_layer.in_keras_file(
        DIGITS / "model.keras", path, "batch_normalization_5", "conv2d_4", 1000.0
    )
    return _like_digits(path)


def _like_digits(model: Path) -> Case:
    flags = ("--preprocess", "0..1", "--labels", str(DIGITS / "labels.txt"))
    data = DIGITS / "data"
    return Case(model, data / "calibration.npz", data / "evaluation.npz", flags)


def _real(name: str) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        real = REAL[name]
        calibration, evaluation = real.data(folder, SHARED / real.source, None)
        np.savez(folder / "calibration.npz", **calibration)
        np.savez(folder / "evaluation.npz", **evaluation)
        flags = ["--preprocess", "0..1"]
        flags += ["--labels", str(SHARED / "models" / real.labels)] if real.labels else []
        model = SHARED / "models" / real.file
        return Case(model, folder / "calibration.npz", folder / "evaluation.npz", tuple(flags))

    return make


CASES: dict[str, Callable[[Path], Case]] = {
    "digits": digits,
    "quickdraw345": _real("quickdraw"),
    "mnist_cnn_keras3": _real("mnist_cnn"),
    "mobile": mobile,
    "bad": bad,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES, action="append")
    arguments = parser.parse_args()
    print("| model | float32 | ours | TensorFlow | kB ours | kB TF | ours s | calibrate s | TF s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.only or CASES:
        folder = WORK / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(row(name, CASES[name](folder), folder), flush=True)
    if arguments.only is None or "bad" in arguments.only:
        automatic(WORK / "bad")


def row(name: str, case: Case, folder: Path) -> str:
    """One line of the table: a build of ours, TensorFlow's conversion, both accuracies."""
    only = ("--only", "saved_model", "--only", "tflite/float32", "--only", "tflite/int8")
    built = build(case, folder / "ours", *only)
    manifest = bundle.read_manifest(built)
    report = json.loads((built / "report/report.json").read_text(encoding="utf-8"))
    stages = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    ours = manifest.artifact("tflite/int8")
    peer = folder / "tensorflow.tflite"
    inputs = dump_inputs(case, manifest, folder)
    command = [sys.executable, CONVERTER, built, inputs["calibration"], peer]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    theirs = accuracy(peer, inputs["evaluation"], case, manifest, folder)
    whole = manifest.artifact("tflite/float32").metrics["accuracy"]
    return (
        f"| {name} | {whole:.2%} | {ours.metrics['accuracy']:.2%} | {theirs:.2%}"
        f" | {ours.size_bytes / 1000:.1f} | {peer.stat().st_size / 1000:.1f}"
        f" | {stages['tflite/int8']:.2f} | {stages['calibrate']:.2f}"
        f" | {float(done.stdout.split()[-1]):.2f} |"
    )


def build(case: Case, output: Path, *flags: str) -> Path:
    """Builds a bundle, also one that fails its gates; returns its folder."""
    command = [sys.executable, "-m", "packager", "build", case.model, "--name", "m"]
    command += ["--output", output, "--calibration", case.calibration, "--quiet"]
    command += ["--evaluation", case.evaluation, *case.flags, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return next((output / "m").glob("1*"))


def dump_inputs(case: Case, manifest: Any, folder: Path) -> dict[str, Path]:
    """The model's inputs of both data sets, as the build sees them."""
    from packager.datasets import open_dataset

    found = {}
    for name in ("calibration", "evaluation"):
        found[name] = folder / f"{name}-inputs"
        found[name].mkdir()
        specs = [bundle.to_json(spec) for spec in manifest.inputs]
        source = str(getattr(case, name))
        open_dataset(source, inputs=specs, labels=()).write_inputs(found[name])
    return found


def accuracy(file: Path, inputs: Path, case: Case, manifest: Any, folder: Path) -> float:
    """Accuracy of a file, run by the device runner."""
    outputs = folder / "tensorflow-outputs"
    outputs.mkdir()
    runners.edge().run(file, inputs, outputs)
    with np.load(case.evaluation) as stored:
        targets = stored["y"]
    (produced,) = outputs.glob("*.npy")
    return metrics.accuracy(Task(manifest.task, manifest.outputs), np.load(produced), targets)


def automatic(folder: Path) -> None:
    """The bad net: --auto, the search, and the ladder's time on digits."""
    case = bad(folder)
    start = time.perf_counter()
    built = build(
        case, folder / "auto", "--only", "tflite/float32", "--only", "tflite/int8", "--auto"
    )
    seconds = time.perf_counter() - start
    report = json.loads((built / "report/report.json").read_text(encoding="utf-8"))
    ladder = next(s["seconds"] for s in report["stages"] if "keeps the gates" in s["name"])
    climb = report["measured"]["auto"]["tflite/int8"]
    step = climb["steps"][climb["chosen"]]
    print(
        f"\n--auto on bad: {step['summary']}: drop {step['metrics']['drop']:.2%},"
        f" {step['size_bytes'] / 1000:.1f} kB; ladder {ladder:.1f} s of {seconds:.1f} s"
    )
    command = [sys.executable, "-m", "packager", "search", built, "--trials", "30", "--json"]
    command += ["--calibration", case.calibration, "--evaluation", case.evaluation, "--quiet"]
    start = time.perf_counter()
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    best = next(t for t in found["trials"] if t["number"] == found["best"])
    share = best["size_bytes"] / found["float32"]["size_bytes"]
    print(
        f"search on bad: {best['summary']}: loss {best['loss']:.2%}, {share:.2f} of float32;"
        f" 30 trials in {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
