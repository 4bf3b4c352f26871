"""Build time: packager against a script that calls TFLiteConverter once per variant.

    python -m bench.build [--runs 3]

MobileNetV2 at 224 x 224 with 100 calibration samples, five variants, no evaluation. Both are
whole processes, in turn, on the same machine; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

WORK = Path(__file__).parent / ".work"
MODES = ("float32", "float16", "dynamic_int8", "int8", "int16x8")

MAKE = """
import keras, numpy as np, sys
rng = np.random.default_rng(0)
model = keras.applications.MobileNetV2(weights=None, input_shape=(224, 224, 3))
# Coarse random pictures; pixel noise would look the same to every filter.
coarse = rng.uniform(-1, 1, (100, 7, 7, 3)).astype(np.float32)
x = np.clip(np.asarray(keras.ops.image.resize(coarse, (224, 224))), -1, 1)
# Statistics of the data itself, layer by layer: random weights alone make constant features.
for layer in model.layers:
    if isinstance(layer, keras.layers.BatchNormalization):
        before = keras.Model(model.inputs, layer.input)
        y = before.predict(x[:8], verbose=0)
        axes = tuple(range(y.ndim - 1))
        layer.moving_mean.assign(y.mean(axes))
        layer.moving_variance.assign(y.var(axes) + 1e-3)
head = model.layers[-1]
features = keras.Model(model.inputs, head.input).predict(x, verbose=0)
kernel = rng.normal(size=head.kernel.shape) / np.sqrt(features.shape[1])
scale = 4 / np.std((features - features.mean(0)) @ kernel)  # answers, not a flat softmax
head.kernel.assign(kernel * scale)
head.bias.assign(-features.mean(0) @ kernel * scale)
answers = model.predict(x, verbose=0).argmax(1)
assert len(set(answers.tolist())) > 10, "the weights collapse"
model.save(sys.argv[1] + "/mobilenet_v2.keras")
np.savez(sys.argv[1] + "/calibration.npz", x=x)
"""

PLAIN = """
import sys, numpy as np, keras, tensorflow as tf
folder = sys.argv[1]
model = keras.saving.load_model(folder + "/mobilenet_v2.keras")
samples = np.load(folder + "/calibration.npz")["x"]
def data():
    for x in samples:
        yield [x[None]]
for mode in sys.argv[2:]:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if mode != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if mode == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if mode == "int8":
        converter.representative_dataset = data
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    if mode == "int16x8":
        converter.representative_dataset = data
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
    open(f"{folder}/plain.{mode}.tflite", "wb").write(converter.convert())
"""


@dataclass(frozen=True)
class Run:
    """Wall time of a process, and the peak memory of that process alone, without children."""

    seconds: float
    peak_mb: float


def timed(command: list[str]) -> Run:
    """Runs a command to its end."""
    start = time.perf_counter()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    peak_kb = 0
    while process.poll() is None:
        peak_kb = max(peak_kb, _peak_kb(process.pid))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {' '.join(command)}")
    return Run(time.perf_counter() - start, peak_kb / 1024)


def _peak_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    WORK.mkdir(exist_ok=True)
    if not (WORK / "calibration.npz").exists():
        timed([sys.executable, "-c", MAKE, str(WORK)])
    only = [flag for mode in MODES for flag in ("--only", f"tflite/{mode}")]
    ours = [
        sys.executable, "-m", "packager", "build", str(WORK / "mobilenet_v2.keras"), *only,
        "--preprocess", "-1..1",
        "--calibration", str(WORK / "calibration.npz"), "--output", str(WORK / "dist"), "--force",
    ]  # fmt: skip
    plain = [sys.executable, "-c", PLAIN, str(WORK), *MODES]
    results = [(timed(ours), timed(plain)) for _ in range(runs)]
    ratios = [a.seconds / b.seconds for a, b in results]
    print("| | median s | parent's peak MB |\n|---|---|---|")
    for name, column in (("packager", 0), ("TFLiteConverter per variant", 1)):
        seconds = statistics.median(pair[column].seconds for pair in results)
        peak = max(pair[column].peak_mb for pair in results)
        print(f"| {name} | {seconds:.1f} | {peak:.0f} |")
    print(f"\nratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
