"""Files of Keras 2: real models, one layer of every class, and what is refused."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from packager import bundle
from packager.children import Child, scratch
from packager.config import Model
from packager.console import Reporter
from packager.errors import ConversionError, ModelError
from packager.loaders.keras2 import rewrite
from packager.loaders.model_file import identify
from packager.verify import rebuilt_check
from tests.conftest import ROOT, loaded, packager

pytestmark = [pytest.mark.tf, pytest.mark.node]

# What has no exact form in Keras 3: the text that names it.
REFUSED = {
    "batch_norm_axes": "(BatchNormalization) has axis=[1, 3]",
    "local1d": "LocallyConnected1D",
    "local2d": "LocallyConnected2D",
    "lstm_stateful": "stateful=True",
    "lstm_time_major": "time_major=True",
    "random_crop": "RandomCrop",
    "random_height": "RandomHeight",
    "random_width": "RandomWidth",
    "operator_reduce": "math.reduce_mean",
    "dropout_in_use": "training=True",
}


def close(ours, theirs, limit=1e-5):
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(np.float64) - theirs).max() <= limit * max(1.0, np.abs(theirs).max())


@pytest.fixture(scope="session")
def small(once):
    """One-layer models saved by tf-keras, with inputs and outputs."""

    def make(folder):
        script = ROOT / "tests/loaders/keras2_models.py"
        done = subprocess.run(
            [sys.executable, script, folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return once("keras2-models", make)


@pytest.fixture(scope="session")
def opener():
    with Child("packager.loaders.worker") as child:
        yield child


def open_and_run(opener, path, given, folder):
    """Opens a file and runs it on the arrays `x0`, `x1`, ...; returns its outputs in order."""
    found = identify(str(path))
    opened = opener.call(
        "open", "opening", source=found.source, format=found.format, saved_by=found.saved_by
    )
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    for i, end in enumerate(opened["inputs"]):
        np.save(folder / "in" / f"{end['name']}.npy", given[f"x{i}"])
    opener.call("predict", "running", inputs=folder / "in", outputs=folder / "out")
    return opened, [np.load(folder / "out" / f"{end['name']}.npy") for end in opened["outputs"]]


def test_every_class_is_equal_or_refused_by_name(small, opener):
    different = {}
    paths = sorted(small.glob("*.h5"))
    assert len(paths) > 150
    for path in paths:
        if path.stem in REFUSED or path.stem.startswith("code_"):
            continue
        with loaded(path.with_suffix(".npz")) as stored, scratch("small") as folder:
            try:
                _, ours = open_and_run(opener, path, stored, folder)
                theirs = [stored[f"y{i}"] for i in range(len(ours))]
                for a, b in zip(ours, theirs, strict=True):
                    close(a, b)
            except (AssertionError, ModelError, ConversionError) as error:
                different[path.stem] = str(error)
    assert different == {}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_exact_form_is_refused_by_name(small, opener, name):
    found = identify(str(small / f"{name}.h5"))
    with pytest.raises(ModelError) as caught:
        opener.call(
            "open", "opening", source=found.source, format=found.format, saved_by=found.saved_by
        )
    assert REFUSED[name] in caught.value.message
    assert caught.value.hint


def test_embedded_code_is_refused_before_the_file_is_opened(small):
    with pytest.raises(ModelError, match="Python code inside"):
        identify(str(small / "code_lambda.h5"))


def test_hard_sigmoid_is_that_of_keras_2(small, opener):
    with loaded(small / "activation_hard_sigmoid.npz") as stored, scratch("small") as folder:
        _, (ours,) = open_and_run(opener, small / "activation_hard_sigmoid.h5", stored, folder)
        close(ours, np.clip(0.2 * stored["x0"] + 0.5, 0, 1), 1e-6)
        # Keras 3's own differs visibly on these inputs.
        other = np.clip(stored["x0"] / 6 + 0.5, 0, 1)
    assert np.abs(ours - other).max() > 0.05


def test_a_rebuilt_model_that_differs_is_refused(small, opener, tmp_path):
    """The comparison itself: another file of the same form stands for a wrong rebuild."""
    import h5py

    original, changed = small / "lstm.h5", tmp_path / "changed.h5"
    shutil.copyfile(original, changed)
    with h5py.File(changed, "r+") as file:
        weights = []
        file["model_weights"].visititems(
            lambda _, item: weights.append(item) if isinstance(item, h5py.Dataset) else None
        )
        weights[-1][...] *= 1.001
    with loaded(small / "lstm.npz") as stored, scratch("small") as folder:
        opened, _ = open_and_run(opener, original, stored, folder)
    manifest = _manifest(opened)
    for number, (source, equal) in enumerate(((original, True), (changed, False))):
        work = tmp_path / str(number)
        work.mkdir()
        arguments = (Model(source=str(source)), manifest, opener, work, Reporter(quiet=True))
        if equal:
            assert "8 samples" in rebuilt_check.check(*arguments)
        else:
            with pytest.raises(ConversionError, match="differs from tf-keras' by"):
                rebuilt_check.check(*arguments)


def _manifest(opened):
    class Named:
        inputs = tuple(type("End", (), {"name": end["name"]}) for end in opened["inputs"])
        outputs = tuple(type("End", (), {"name": end["name"]}) for end in opened["outputs"])

    return Named


def refused(described, *texts, custom=()):
    with pytest.raises(ModelError) as caught:
        rewrite(described, "old.h5", custom)
    for text in ("old.h5", *texts):
        assert text in caught.value.message
    assert caught.value.hint


def sequential(*layers):
    return {"class_name": "Sequential", "config": list(layers)}


def dense(**settings):
    config = {"name": "d", "batch_input_shape": [None, 4], "units": 2, **settings}
    return {"class_name": "Dense", "config": config}


def test_unknown_things_are_refused_by_name():
    refused(sequential(dense(activation="strange")), "'d' (Dense)", "activation strange")
    refused(sequential(dense(new_setting=3)), "'d' (Dense)", "new_setting=3")
    refused(sequential({**dense(), "class_name": "Merge"}), "'d' is a Merge")
    refused(sequential({"class_name": "Dense", "config": {"name": "d", "units": 2}}), "input shape")
    refused(sequential({"class_name": "Dense"}), "not as Keras 2 writes it")


def test_custom_classes_and_activations_are_left_as_they_are():
    own = {"class_name": "Own", "config": {"name": "o", "anything": 1}}
    found = rewrite(sequential(dense(activation="strange"), own), "old.h5", ["Own", "strange"])
    layers = found["config"]["layers"]
    assert [layer["class_name"] for layer in layers] == ["InputLayer", "Dense", "Own"]
    assert layers[1]["config"]["activation"]["registered_name"] == "strange"
    assert layers[2]["config"]["anything"] == 1


def test_gru_of_old_files_resets_before():
    """Keras 2.1.6 did not write `reset_after`, whose default changed later."""
    layer = {"class_name": "GRU", "config": {"name": "g", "units": 2}}
    shaped = {**layer, "config": {**layer["config"], "batch_input_shape": [None, 5, 3]}}
    found = rewrite(sequential(shaped), "old.h5", [])
    assert found["config"]["layers"][1]["config"]["reset_after"] is False


def test_weights_only_is_refused(shared):
    with pytest.raises(ModelError, match="holds weights only"):
        identify(str(shared / "models/braai_d6m7/d6_m7.weights.h5"))


def test_inspect_says_what_is_done(shared):
    ran = packager("inspect", shared / "models/tensorspace_mnist/mnist_keras2.1.6.h5")
    assert ran.code == 0, ran.err
    assert "saved by keras 2.1.6; rebuilt for Keras 3" in ran.out


# Real models: file, name of the golden outputs, data for int8.
REAL = {
    "tensorspace": ("tensorspace_mnist/mnist_keras2.1.6.h5", "y", "mnist5k/mnist5k.npz"),
    "tensorspace_tf": ("tensorspace_mnist/mnist_tfkeras2.1.6.h5", "y_tfkeras", None),
    "quickdraw": ("quickdraw345_sketcher/keras_model.h5", "y", "quickdraw/quickdraw900.npz"),
    "braai": ("braai_d6m7/d6_m7.h5", "y", None),
    "dgaintel": ("dgaintel_cnn_lstm/domain_classifier_model.h5", "y", None),
}


@pytest.fixture(scope="module", params=REAL)
def real(request, shared, once):
    """A built real model: its name, bundle, golden inputs and golden outputs."""
    file, key, data = REAL[request.param]
    model = shared / "models" / file
    with loaded(model.parent / "golden_numpy.npz") as golden:
        inputs, expected = golden["x0"], golden[key]

    def make(folder):
        flags = ["--only", "saved_model", "--only", "tflite/float32", "--only", "tflite/float16"]
        if request.param != "dgaintel":
            flags += ["--only", "tfjs"]
        else:
            np.savez(folder / "calibration.npz", x=_domains(inputs))
            flags = ["--calibration", folder / "calibration.npz"]
        if data:
            flags += ["--only", "tflite/int8", *_split(shared / "data" / data, folder, inputs)]
        else:
            np.savez(folder / "evaluation.npz", x=inputs)
            flags += ["--evaluation", folder / "evaluation.npz"]
        ran = packager("build", model, "--output", folder, "--name", "m", "--json", *flags)
        assert ran.code == 0, ran.err
        (folder / "log").write_text(ran.err)

    return request.param, once(f"keras2-{request.param}", make) / "m/1", inputs, expected


def _split(path, folder, like):
    """Calibration and evaluation data of one set, which is sorted by class."""
    with loaded(path) as stored:
        x, y = stored["x"], stored["y"]
    order = np.random.default_rng(1).permutation(len(x))
    x = (x[order] / 255).astype(np.float32).reshape(-1, *like.shape[1:])
    np.savez(folder / "calibration.npz", x=x[:100])
    np.savez(folder / "evaluation.npz", x=x[100:], y=y[order][100:])
    return ["--calibration", folder / "calibration.npz", "--evaluation", folder / "evaluation.npz"]


def _domains(golden):
    """More domain names: the golden ones with their characters in another order."""
    random = np.random.default_rng(1)
    rows = np.repeat(golden, 10, axis=0)
    for row in rows:
        used = int(np.count_nonzero(row))
        row[:used] = random.permutation(row[:used])
    return rows


def test_a_real_model_equals_numpy_code_that_never_saw_tensorflow(real, opener, tmp_path):
    """golden_numpy.npz was computed without TensorFlow."""
    name, folder, inputs, expected = real
    manifest = bundle.read_manifest(folder)
    assert manifest.source.saved_by.startswith("keras 2.")
    with scratch("golden") as work:
        opened, (ours,) = open_and_run(opener, folder, {"x0": inputs}, work)
    close(ours, expected)
    for artifact, tolerance in (("tflite/float32", 1e-5), ("tflite/float16", 5e-3)):
        outputs = tmp_path / artifact.replace("/", "-")
        given = tmp_path / f"{outputs.name}-in"
        outputs.mkdir()
        given.mkdir()
        np.save(given / f"{opened['inputs'][0]['name']}.npy", inputs)
        done = subprocess.run(
            [sys.executable, ROOT / "edge/run.py", "run", folder / manifest.artifact(artifact).path,
             "--inputs", given, "--outputs", outputs],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        got = np.load(outputs / f"{opened['outputs'][0]['name']}.npy")
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= tolerance, (name, artifact)


def test_real_models_in_tfjs_and_int8(real):
    name, folder, _, _ = real
    manifest = bundle.read_manifest(folder)
    made = {artifact.id: artifact for artifact in manifest.artifacts}
    if name != "dgaintel":
        assert made["tfjs/layers"].metrics["max_abs_diff"] <= 1e-5
    if REAL[name][2]:
        assert made["tflite/int8"].quantization.integer_op_share == 1.0
        assert made["tflite/int8"].metrics["drop"] <= 0.01


def test_a_recurrent_model_is_refused_as_int8_and_keeps_the_rest(real):
    name, folder, _, _ = real
    if name != "dgaintel":
        return
    manifest = bundle.read_manifest(folder)
    made = {artifact.id for artifact in manifest.artifacts}
    assert made == {"saved_model", "tflite/float32", "tflite/float16", "tflite/dynamic_int8"}
    refusals = {refusal.id: refusal for refusal in manifest.refused}
    assert set(refusals) == {
        "tflite/int8", "tflite/int8_float_io", "tflite/int16x8", "tfjs/layers"
    }  # fmt: skip
    assert "WHILE, the loop of a recurrent layer" in refusals["tflite/int8"].reason
    assert "LSTM" in refusals["tfjs/layers"].reason
