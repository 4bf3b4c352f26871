"""Models that others trained and published, of five generations of Keras and TensorFlow."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from packager import bundle
from packager.children import Child
from tests.conftest import ROOT, loaded, packager

pytestmark = [pytest.mark.tf, pytest.mark.node]


def _split(folder, data, like):
    """Calibration and evaluation data of one set, which is sorted by class."""
    with loaded(data) as stored:
        x, y = stored["x"], stored["y"]
    order = np.random.default_rng(1).permutation(len(x))
    x = (x[order] / 255).astype(np.float32).reshape(-1, *like.shape[1:])
    return {"x": x[:100]}, {"x": x[100:], "y": y[order][100:]}


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
    """

    file: str
    saved_by: str
    data: Callable
    source: str
    golden: str = "y"
    tfjs: bool = True
    float16: float = 5e-3
    int8: bool = True


MNIST = "data/mnist5k/mnist5k.npz"
ALERTS = "models/braai_d6m7/golden_numpy.npz"
REAL = {
    "tensorspace": Real("tensorspace_mnist/mnist_keras2.1.6.h5", "keras 2.1.6", _split, MNIST),
    "tensorspace_tf": Real(
        "tensorspace_mnist/mnist_tfkeras2.1.6.h5", "keras 2.1.6-tf", _split, MNIST, "y_tfkeras"
    ),
    "mnist_cnn": Real("mnist_cnn_keras3/model.keras", "keras 3.8.0", _split, MNIST),
    "quickdraw": Real(
        "quickdraw345_sketcher/keras_model.h5",
        "keras 2.1.6",
        _split,
        "data/quickdraw/quickdraw900.npz",
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


@pytest.fixture(scope="module", params=REAL)
def built(request, shared, once):
    real = REAL[request.param]
    model = shared / "models" / real.file
    golden = "golden_publisher.npz" if request.param == "basic_pitch" else "golden_numpy.npz"
    with loaded(model.parent / golden) as stored:
        inputs = stored["x0"]
        inputs = inputs.astype(np.float32) if inputs.dtype.kind == "f" else inputs
        expected = stored.get(real.golden)

    def make(folder):
        calibration, evaluation = real.data(folder, shared / real.source, inputs)
        flags = ["--only", "saved_model", "--only", "tflite/float32", "--only", "tflite/float16"]
        flags += ["--only", "tfjs/layers"] if real.tfjs else []
        np.savez(folder / "evaluation.npz", **evaluation)
        flags += ["--evaluation", folder / "evaluation.npz"]
        if calibration is not None:
            np.savez(folder / "synthetic.npz", **calibration)
            flags += ["--only", "tflite/int8", "--calibration", folder / "synthetic.npz"]
        ran = packager("build", model, "--output", folder, "--name", "m", "--json", *flags)
        assert ran.code == 0, ran.err

    folder = once(f"real-{request.param}", make) / "m/1"
    return Built(request.param, real, folder, inputs, expected)


def run_tflite(file, inputs, folder):
    """Runs a file with the shipped edge runner; returns its outputs by name."""
    given = folder / "in"
    given.mkdir(parents=True)
    for name, value in inputs.items():
        np.save(given / f"{name}.npy", value)
    program = [sys.executable, ROOT / "edge/run.py", "run", file]
    done = subprocess.run(
        [*program, "--inputs", given, "--outputs", folder / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {path.stem: np.load(path) for path in (folder / "out").iterdir()}


@pytest.fixture(scope="module")
def tensorflow():
    """One process for all SavedModels; each build has run its own in the server's engine."""
    with Child("packager.loaders.worker") as child:
        yield child


def run_saved_model(tensorflow, folder, inputs, work):
    opened = tensorflow.call(
        "open", "opening", source=folder, format="saved_model", saved_by="packager"
    )
    for name in ("in", "out"):
        (work / name).mkdir(parents=True)
    for end, value in zip(opened["inputs"], inputs.values(), strict=True):
        np.save(work / "in" / f"{end['name']}.npy", value)
    tensorflow.call("predict", "running", inputs=work / "in", outputs=work / "out")
    return {path.stem: np.load(path) for path in (work / "out").iterdir()}


def test_a_real_model_equals_numpy_code_that_never_saw_tensorflow(built, tensorflow, tmp_path):
    """golden_numpy.npz was computed without TensorFlow."""
    manifest = bundle.read_manifest(built.folder)
    assert manifest.source.saved_by == built.real.saved_by
    assert all(a.gate.status == "passed" for a in manifest.artifacts)
    if built.expected is None:
        return
    inputs = {manifest.inputs[0].name: built.inputs}
    main = manifest.outputs[0].name
    served = run_saved_model(tensorflow, built.folder, inputs, tmp_path / "server")[main]
    assert served.shape == built.expected.shape
    assert np.abs(served - built.expected).max() <= 1e-5
    for artifact, limit in (("tflite/float32", 1e-5), ("tflite/float16", built.real.float16)):
        file = built.folder / manifest.artifact(artifact).path
        found = run_tflite(file, inputs, tmp_path / artifact)[main]
        assert found.shape == built.expected.shape
        assert np.abs(found - built.expected).max() <= limit


def test_tfjs_and_int8_of_a_real_model(built):
    manifest = bundle.read_manifest(built.folder)
    made = {artifact.id: artifact for artifact in manifest.artifacts}
    assert ("tfjs/layers" in made) == built.real.tfjs
    if built.real.tfjs:
        assert made["tfjs/layers"].metrics["max_abs_diff"] <= 1e-5
    assert ("tflite/int8" in made) == built.real.int8
    if built.real.int8:
        assert made["tflite/int8"].quantization.integer_op_share == 1.0
        assert made["tflite/int8"].metrics.get("drop", 0.0) <= 0.01


def test_both_alerts_keep_their_side_as_int8(built, tmp_path):
    if built.name != "braai":
        return
    manifest = bundle.read_manifest(built.folder)
    assert (manifest.task, manifest.calibration.source) == ("binary", "synthetic.npz")
    file = built.folder / manifest.artifact("tflite/int8").path
    found = run_tflite(file, {manifest.inputs[0].name: built.inputs}, tmp_path)
    scores = found[manifest.outputs[0].name]
    assert np.abs(scores - built.expected).max() <= 0.02
    np.testing.assert_array_equal(scores >= 0.5, built.expected >= 0.5)


def test_the_order_of_samples_changes_nothing_in_a_recurrent_model(built, tmp_path):
    if built.name != "dgaintel":
        return
    manifest = bundle.read_manifest(built.folder)
    name = manifest.inputs[0].name
    for mode in ("float32", "int8"):
        file = built.folder / manifest.artifact(f"tflite/{mode}").path
        forwards = run_tflite(file, {name: built.inputs}, tmp_path / mode)
        backwards = run_tflite(file, {name: built.inputs[::-1]}, tmp_path / f"{mode}-backwards")
        for output, values in forwards.items():
            np.testing.assert_array_equal(backwards[output][::-1], values)


def test_real_audio_gives_what_its_publisher_says(built, shared, tensorflow, tmp_path):
    if built.name != "basic_pitch":
        return
    manifest = bundle.read_manifest(built.folder)
    assert [o.name for o in manifest.outputs] == ["contour", "note", "onset"]
    inputs = {manifest.inputs[0].name: built.inputs}
    served = run_saved_model(tensorflow, built.folder, inputs, tmp_path / "server")
    with loaded(shared / "models/basic_pitch/golden_publisher.npz") as stored:
        rows = stored["rows"]
    with loaded(shared / "data/vocadito/vocadito_10_model_output.npz") as expected:
        for name, values in served.items():
            for window, (start, stop) in zip(values, rows, strict=True):
                found = window[15:157][: stop - start]
                assert np.abs(found - expected[name][start:stop]).max() <= 1e-3
    file = built.folder / manifest.artifact("tflite/float32").path
    ours = run_tflite(file, inputs, tmp_path / "ours")
    publishers = run_tflite(
        shared / "models/basic_pitch/nmp.tflite", {"input_2": built.inputs}, tmp_path / "theirs"
    )
    for name, values in ours.items():
        assert np.abs(values - publishers[name]).max() <= 1e-5
        assert np.ptp(values) > 0.1
    file = built.folder / manifest.artifact("tflite/float16").path
    for name, values in run_tflite(file, inputs, tmp_path / "float16").items():
        assert np.abs(values - served[name]).max() <= built.real.float16
