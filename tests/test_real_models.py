"""Models that others trained and published, of five generations of Keras and TensorFlow."""

import subprocess
import sys

import numpy as np
import pytest

from packager import bundle
from packager.children import Child
from tests.conftest import ROOT, loaded
from tests.real_models import REAL, build

pytestmark = [pytest.mark.tf, pytest.mark.node]


@pytest.fixture(scope="module", params=REAL)
def built(request, shared, once):
    return build(request.param, shared, once)


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
