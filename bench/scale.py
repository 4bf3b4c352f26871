"""What a build takes as models and evaluation sets grow: time, and the peak memory of each process.

    python -m bench.scale [--only models|limit|labels|samples]

`models`: networks of 5, 50 and 500 MB of random weights to a SavedModel, TFLite float16 and int8,
and TF.js with uint8 weights. `limit`: a model above TFLite's 2 GB, which is refused for TFLite
before the work and whose TF.js weights the stock reader decodes. `labels`: 1,000 classes.
`samples`: the digits model with 5,000 and with 50,000 evaluation samples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.build import WORK

ROOT = Path(__file__).resolve().parents[1]
FOLDER = WORK / "scale"
DIGITS = ROOT / "examples" / "digits"
READER = ROOT / ".venv-tfjs-reader"
LAYERS = 8
# What is the same at every size: interpreters and libraries.
KINDS = {
    "packager.loaders.worker": "TensorFlow",
    "packager.quantize.worker": "LiteRT",
    "edge/run.py": "run.py",
    "packager_server/engine.py": "server",
    "node/run.mjs": "Node.js",
    "-m packager build": "packager",
}

MAKE = """
import keras, numpy as np, sys
path, width, layers, classes = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
x = inputs = keras.Input((width,), name="features")
for i in range(layers):
    x = keras.layers.Dense(width, "relu", name=f"dense_{i}")(x)
model = keras.Model(inputs, keras.layers.Dense(classes, name="scores")(x))
for layer in model.layers[1:]:
    rows, columns = layer.kernel.shape
    kernel = rng.standard_normal((rows, columns), np.float32) * np.sqrt(2 / rows)
    layer.kernel.assign(kernel.astype(np.float32))
model.save(path)
"""


@dataclass
class Peaks:
    """A finished command: its time, and peak memory by kind of process.

    `mb` is resident memory, with the parts of mapped files that the system may drop at any time;
    `own_mb` is without them, as it was seen every 50 ms.
    """

    code: int
    seconds: float
    output: str
    mb: dict[str, float] = field(default_factory=dict)
    own_mb: dict[str, float] = field(default_factory=dict)


def watched(*command: object) -> Peaks:
    """Runs packager, and looks at all its processes meanwhile."""
    start = time.perf_counter()
    log = FOLDER / "log"
    with log.open("w") as file:
        arguments = [sys.executable, "-m", "packager", *map(str, command)]
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=file, stderr=file)
        found: dict[str, float] = {}
        own: dict[str, float] = {}
        while process.poll() is None:
            for pid in descendants(process.pid):
                kind, resident, anonymous = look(pid)
                found[kind] = max(found.get(kind, 0.0), resident)
                own[kind] = max(own.get(kind, 0.0), anonymous)
            time.sleep(0.05)
    seconds = time.perf_counter() - start
    return Peaks(process.returncode, seconds, log.read_text(), found, own)


def descendants(pid: int) -> list[int]:
    """A process and what it has started."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in descendants(child))]


def look(pid: int) -> tuple[str, float, float]:
    """What a process is, its peak resident memory, and its own memory now, in MB."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "other", 0.0, 0.0
    kind = next((name for text, name in KINDS.items() if text in command), "other")
    kilobytes = {
        line.split(":")[0]: int(line.split()[1]) for line in status if line.endswith(" kB")
    }
    resident, own = (kilobytes.get(name, 0) * 1024 / 1e6 for name in ("VmHWM", "RssAnon"))
    return kind, resident, own


def make(name: str, megabytes: float, classes: int = 10) -> tuple[Path, int]:
    """A network of dense layers of that size in float32; also returns the width."""
    width = round((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    path = FOLDER / f"{name}.keras"
    if not path.exists():
        numbers = map(str, (width, LAYERS, classes))
        subprocess.run([sys.executable, "-c", MAKE, path, *numbers], check=True, cwd=ROOT)
    return path, width


def samples(name: str, count: int, width: int) -> Path:
    """Random inputs."""
    path = FOLDER / f"{name}.npz"
    rng = np.random.default_rng(len(name))
    np.savez(path, x=rng.standard_normal((count, width)).astype(np.float32))
    return path


def models() -> None:
    """Builds networks of three sizes."""
    kinds = list(dict.fromkeys(KINDS.values()))
    print(f"\n| model MB | s | {' | '.join(kinds)} | largest, of the model's size |")
    print("|---" * (len(kinds) + 3) + "|")
    for megabytes in (5, 50, 500):
        model, width = make(f"dense{megabytes}", megabytes)
        data = samples("calibration", 20, width)
        only = ["saved_model", "tflite/float16", "tflite/int8", "tfjs/layers"]
        flags = [flag for name in only for flag in ("--only", name)]
        ran = watched(
            "build", model, *flags, "--calibration", data, "--tfjs-weights", "uint8",
            "--min-agreement", "0", "-o", FOLDER / "dist", "--version", "1", "--force",
        )  # fmt: skip
        check(ran)
        peak = max(ran.mb.values())
        shown = " | ".join(f"{ran.mb.get(kind, 0):.0f}" for kind in kinds)
        print(f"| {megabytes} | {ran.seconds:.0f} | {shown} | {peak / megabytes:.1f} |", flush=True)


def check(ran: Peaks, code: int = 0) -> None:
    """Ends the benchmark where a command did not end as it should."""
    if ran.code != code:
        sys.exit(f"exit code {ran.code}: {ran.output[-2000:]}")


def limit() -> None:
    """A model that no TFLite file holds."""
    model, _ = make("dense2200", 2200)
    to = ("-o", FOLDER / "dist", "--version", "1", "--force")
    refused = watched("build", model, "--only", "tflite/float16", *to)
    check(refused, 1)
    reason = next(line for line in refused.output.splitlines() if "2.15 GB" in line)
    print(f"\n2,200 MB, TFLite: refused after {refused.seconds:.0f} s: {reason.strip()}")
    ran = watched("build", model, "--only", "tfjs/layers", "--no-verify", *to)
    check(ran)
    decoded = subprocess.run(
        [sys.executable, "-c", DECODE, READER, FOLDER / "dist/dense2200/1/tfjs/layers", model],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if decoded.returncode:
        sys.exit(decoded.stderr[-2000:])
    peaks = ", ".join(f"{kind} {mb:.0f} MB" for kind, mb in ran.mb.items())
    print(f"2,200 MB, TF.js: {ran.seconds:.0f} s, {peaks}; stock reader: {decoded.stdout.strip()}")


# The package's own __init__ imports converters, with JAX and another TensorFlow.
DECODE = """
import json, sys, types, zipfile
from pathlib import Path
package = types.ModuleType("tensorflowjs")
package.__path__ = [sys.argv[1] + "/tensorflowjs"]
sys.modules["tensorflowjs"] = package
sys.path.insert(0, sys.argv[1])
import h5py, numpy as np
from tensorflowjs import read_weights
folder = Path(sys.argv[2])
manifest = json.loads((folder / "model.json").read_text())["weightsManifest"]
read = read_weights.read_weights(manifest, str(folder), flatten=True)
found = {entry["name"]: entry["data"] for entry in read}
with zipfile.ZipFile(sys.argv[3]) as archive, archive.open("model.weights.h5") as stored:
    with h5py.File(stored, "r") as h5:
        values = [v[()] for path in h5["layers"].values() for v in path["vars"].values()]
equal = sum(any(np.array_equal(f, v) for v in values if v.shape == f.shape) for f in found.values())
print(f"{equal} of {len(found)} weights equal")
"""


def labels() -> None:
    """A thousand classes."""
    model, width = make("classes", 5, 1000)
    names = FOLDER / "labels.txt"
    names.write_text("".join(f"class {i}\n" for i in range(1000)))
    data = samples("evaluation", 100, width)
    ran = watched(
        "build", model, "--labels", names, "--evaluation", data, "--min-agreement", "0.9",
        "-o", FOLDER / "dist",
        "--version", "1", "--force",
    )  # fmt: skip
    check(ran)
    bundle = FOLDER / "dist/classes/1"
    kept = len(json.loads((bundle / "manifest.json").read_text())["labels"])
    size = (bundle / "report/index.html").stat().st_size
    print(
        f"\n1,000 labels: {ran.seconds:.0f} s, {kept} in the manifest, report {size / 1e6:.2f} MB"
    )


def many_samples() -> None:
    """Evaluation sets of two sizes."""
    kinds = list(dict.fromkeys(KINDS.values()))
    print(f"\n| evaluation samples, own MB | s | {' | '.join(kinds)} |")
    print("|---" * (len(kinds) + 2) + "|")
    with np.load(DIGITS / "data/evaluation.npz") as stored:
        x, y = stored["x"], stored["y"]
    # int16x8 has no fast kernels here.
    kept = ["saved_model", "tflite/float32", "tflite/int8", "tfjs/layers"]
    only = [flag for name in kept for flag in ("--only", name)]
    for times in (5, 50):
        path = FOLDER / "many.npz"
        np.savez(path, x=np.tile(x, (times, 1, 1)), y=np.tile(y, times))
        ran = watched(
            "build", "--config", DIGITS / "package.yaml", "--evaluation", path, *only,
            "-o", FOLDER / "dist", "--force",
        )  # fmt: skip
        check(ran)
        shown = " | ".join(f"{ran.own_mb.get(kind, 0):.0f}" for kind in kinds)
        print(f"| {times * len(x)} | {ran.seconds:.0f} | {shown} |", flush=True)


PARTS: dict[str, Callable[[], None]] = {
    "models": models,
    "limit": limit,
    "labels": labels,
    "samples": many_samples,
}


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    only = parser.parse_args().only
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if not only or name in only:
            part()


if __name__ == "__main__":
    main()
