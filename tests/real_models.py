"""Models that others trained and published, and how the tests package them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.conftest import loaded, packager


def _split(folder, data, like):
    """Calibration and evaluation data of one set, which is sorted by class."""
    with loaded(data) as stored:
        x, y = stored["x"], stored["y"]
    order = np.random.default_rng(1).permutation(len(x))
    x = (x[order] / 255).astype(np.float32).reshape(-1, *like.shape[1:])
    return {"x": x[:100]}, {"x": x[100:], "y": y[order][100:]}


def _pixels(folder, data, like):
    """The same as images."""
    with loaded(data) as stored:
        x, y = stored["x"], stored["y"]
    order = np.random.default_rng(1).permutation(len(x))
    return {"x": x[order][:100]}, {"x": x[order][100:], "y": y[order][100:]}


def _alerts(folder, data, like):
    """Two real alerts, and copies of them with noise, each row of each cutout normalised again."""
    random = np.random.default_rng(1)
    copies = np.repeat(like, 50, axis=0)
    copies = copies + random.normal(0.0, 0.02, copies.shape)
    copies /= np.linalg.norm(copies, axis=2, keepdims=True)
    with loaded(data) as golden:
        sides = (golden["y"].ravel() >= 0.5).astype(np.int64)
    assert set(sides) == {0, 1}
    return {"x": copies.astype(np.float32)}, {"x": like, "y": sides}


def _domains(folder, data, like):
    """More domain names: the golden ones with their characters in another order."""
    random = np.random.default_rng(1)
    rows = np.repeat(like, 10, axis=0)
    for row in rows:
        used = int(np.count_nonzero(row))
        row[:used] = random.permutation(row[:used])
    return {"x": rows}, {"x": like}


def _windows(folder, data, like):
    return None, {"input_2": like}


@dataclass(frozen=True)
class Real:
    """A real model: its file, who saved it, and how it is packaged here.

    Attributes:
        file: Below `../shared/models`.
        saved_by: How the manifest begins to say who saved it.
        data: Makes calibration and evaluation data of a file below `../shared` and the golden
            inputs.
        source: That file.
        golden: The name of the golden outputs.
        tfjs: It has a TF.js layers form.
        float16: Largest difference of the float16 file.
        int8: Whether the int8 file is asked for.
        image: Pixels are declared as its input.
        labels: The file of its labels, below `../shared/models`.
    """

    file: str
    saved_by: str
    data: Callable
    source: str
    golden: str = "y"
    tfjs: bool = True
    float16: float = 5e-3
    int8: bool = True
    image: bool = False
    labels: str = ""


MNIST = "data/mnist5k/mnist5k.npz"
ALERTS = "models/braai_d6m7/golden_numpy.npz"
REAL = {
    "tensorspace": Real("tensorspace_mnist/mnist_keras2.1.6.h5", "keras 2.1.6", _split, MNIST),
    "tensorspace_tf": Real(
        "tensorspace_mnist/mnist_tfkeras2.1.6.h5", "keras 2.1.6-tf", _split, MNIST, "y_tfkeras"
    ),
    "mnist_cnn": Real("mnist_cnn_keras3/model.keras", "keras 3.8.0", _pixels, MNIST, image=True),
    "quickdraw": Real(
        "quickdraw345_sketcher/keras_model.h5",
        "keras 2.1.6",
        _pixels,
        "data/quickdraw/quickdraw900.npz",
        image=True,
        labels="quickdraw345_sketcher/class_names.txt",
    ),
    "braai": Real("braai_d6m7/d6_m7.h5", "keras 2.2.4-tf", _alerts, ALERTS),
    "dgaintel": Real(
        "dgaintel_cnn_lstm/domain_classifier_model.h5",
        "keras 2.2.4-tf",
        _domains,
        "models/dgaintel_cnn_lstm/golden_numpy.npz",
        tfjs=False,
    ),
    # A logarithm enlarges float16's rounding: 0.075 of 0..1 was measured, 3e-4 on average.
    "basic_pitch": Real(
        "basic_pitch/nmp_saved_model",
        "keras 2.4.0, tensorflow 2.4.1",
        _windows,
        "models/basic_pitch/golden_publisher.npz",
        tfjs=False,
        float16=0.1,
        int8=False,
    ),
}


@dataclass(frozen=True)
class Built:
    """A built real model: its golden inputs, and outputs where there are any."""

    name: str
    real: Real
    folder: Path
    inputs: np.ndarray
    expected: np.ndarray | None


def build(name, shared, once):
    """Builds a model of `REAL`, once per test run.

    The bundles of the two that recognise drawings take images, too, and have labels.
    """
    real = REAL[name]
    model = shared / "models" / real.file
    golden = "golden_publisher.npz" if name == "basic_pitch" else "golden_numpy.npz"
    with loaded(model.parent / golden) as stored:
        inputs = stored["x0"]
        inputs = inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs
        expected = stored.get(real.golden)

    def make(folder):
        calibration, evaluation = real.data(folder, shared / real.source, inputs)
        flags = ["--only", "saved_model", "--only", "tflite/float32", "--only", "tflite/float16"]
        flags += ["--only", "tfjs/layers"] if real.tfjs else []
        flags += ["--preprocess", "0..1"] if real.image else []
        flags += ["--labels", shared / "models" / real.labels] if real.labels else []
        np.savez(folder / "evaluation.npz", **evaluation)
        flags += ["--evaluation", folder / "evaluation.npz"]
        if calibration is not None:
            np.savez(folder / "synthetic.npz", **calibration)
            flags += ["--only", "tflite/int8", "--calibration", folder / "synthetic.npz"]
        ran = packager("build", model, "--output", folder, "--name", "m", "--json", *flags)
        assert ran.code == 0, ran.err

    folder = once(f"real-{name}", make) / "m/1"
    return Built(name, real, folder, inputs, expected)
