"""Models of Keras 2: one layer of every class, weights without a model, and what is refused."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from packager import opening
from packager.children import scratch
from packager.config import Model
from packager.console import Reporter
from packager.errors import ConversionError, ModelError
from packager.loaders.keras2 import rewrite
from packager.loaders.model_file import identify
from packager.verify import rebuilt_check
from tests.conftest import ROOT, loaded, packager
from tests.loaders.keras2_verdicts import (
    NOT_ALONE,
    SUFFIXES,
    TABLE,
    Judge,
    classes_of,
    close,
    documented,
    row,
)

pytestmark = [pytest.mark.tf, pytest.mark.node]

# Saving a SavedModel takes tf-keras a second or more: the soak test has all of them.
EXPORTED = ("two_ends", "lstm_masked", "dropout_in_use", "lstm_stateful", "string_lookup", "nested")
# So does opening both files of each: here every ninth archive, and what is not simply rebuilt.
ARCHIVES = 9


@pytest.fixture(scope="session")
def small(once):
    """One-layer models saved by tf-keras, with inputs and outputs."""

    def make(folder):
        script = ROOT / "tests/loaders/keras2_models.py"
        done = subprocess.run(
            [sys.executable, script, folder, *EXPORTED], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return once("keras2-models", make)


@pytest.fixture(scope="session")
def judges():
    with Judge() as found:
        yield found


def test_every_class_is_as_documented(small, judges):
    """Equal to tf-keras, or refused by name; `Judge` raises where it is neither."""
    rows = documented()
    classes = classes_of(small)
    assert set(rows) == set(classes)
    different = {}
    for number, (name, cells) in enumerate(sorted(rows.items())):
        for suffix, cell in zip(SUFFIXES, cells, strict=True):
            plain = suffix == ".keras" and cell == "rebuilt" and number % ARCHIVES
            if plain or not (small / f"{name}{suffix}").exists():
                continue
            found = judges.instead(small / f"{name}{suffix}", cell)
            if found:
                different[name, suffix] = found
    assert different == {}


def test_the_table_has_every_class_of_tf_keras(small):
    import json

    public = json.loads((small / "classes.json").read_text())["public"]
    seen = {name for classes in classes_of(small).values() for name in classes}
    assert set(public) - seen - set(NOT_ALONE) == set()
    for name, classes in classes_of(small).items():
        assert row(name, classes, {".h5": "x", ".keras": "y", "": "z"})[:-13] in TABLE.read_text()


def test_embedded_code_is_refused_before_the_file_is_opened(small):
    with pytest.raises(ModelError, match="Python code inside"):
        identify(str(small / "code_lambda.h5"))


@pytest.fixture(scope="session")
def opener(judges):
    return judges.source


def open_and_run(opener, path, given, folder):
    """Opens a file in Keras 3 and runs it on `x0`, `x1`, ...; returns its outputs in order."""
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


def test_an_unknown_class_is_named_with_the_way_out(small, judges, tmp_path):
    """Neither Keras opens it; the first error says what to do."""
    import h5py

    shutil.copyfile(small / "dense.h5", tmp_path / "own.h5")
    with h5py.File(tmp_path / "own.h5", "r+") as file:
        text = file.attrs["model_config"]
        file.attrs["model_config"] = text.replace('"class_name": "Dense"', '"class_name": "Own"')
    model = Model(source=str(tmp_path / "own.h5"))
    with scratch("own") as work, pytest.raises(ModelError, match="is a Own, which") as caught:
        opening.open_keras2(
            model, identify(model.source), judges.source, judges.old, work, Reporter(quiet=True)
        )
    assert "--custom-objects" in caught.value.hint


def test_an_embedding_inside_a_nested_model_gets_indices(small, judges):
    found = judges.verdict(small / "nested_embedding.h5")
    assert found == "rebuilt"


def test_hard_sigmoid_is_that_of_keras_2(small, opener):
    with loaded(small / "activation_hard_sigmoid.npz") as stored, scratch("small") as folder:
        _, (ours,) = open_and_run(opener, small / "activation_hard_sigmoid.h5", stored, folder)
        close(ours, np.clip(0.2 * stored["x0"] + 0.5, 0, 1), 1e-6)
        # Keras 3's own differs visibly on these inputs.
        other = np.clip(stored["x0"] / 6 + 0.5, 0, 1)
    assert np.abs(ours - other).max() > 0.05


def test_a_rebuilt_model_that_differs_is_refused(small, judges, tmp_path):
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
        opened, _ = open_and_run(judges.source, original, stored, folder)
    for number, (source, equal) in enumerate(((original, True), (changed, False))):
        work = tmp_path / str(number)
        work.mkdir()
        judges.old.call(
            "open", "opening", source=source, format="keras_h5", architecture="",
            custom_objects=[], unsafe=False,
        )  # fmt: skip
        arguments = (str(source), opened, judges.source, judges.old, work, Reporter(quiet=True))
        if equal:
            assert "8 samples" in rebuilt_check.check(*arguments)
        else:
            with pytest.raises(ConversionError, match="differs from tf-keras' by"):
                rebuilt_check.check(*arguments)


def open_weights(judges, weights, architecture, work, **options):
    model = Model(source=str(weights), architecture=str(architecture), **options)
    found = identify(model.source, architecture=model.architecture)
    reporter = Reporter(quiet=True)
    if found.is_keras2:
        opened = opening.open_keras2(model, found, judges.source, judges.old, work, reporter)
    else:
        opened = opening.open_source(model, found, judges.source, work, reporter)
    return found, opened, reporter.warnings


@pytest.fixture
def function(tmp_path, monkeypatch):
    """Makes functions that the child processes can import as `NAME:build`."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    def make(name, keras, units=2):
        (tmp_path / f"{name}.py").write_text(
            f"{keras}\n\n\ndef build():\n"
            "    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3),"
            f" keras.layers.Dense({units}, activation='tanh')])\n"
        )
        return f"{name}:build"

    return make


def weights_of_two_layers(path):
    """Weights as `model.save_weights('w.h5')` of Keras 2 lays them out, and the outputs for x."""
    import h5py

    random = np.random.default_rng(2)
    shapes = {"dense": (5, 3), "dense_1": (3, 2)}
    x = random.normal(size=(4, 5)).astype(np.float32)
    value = x
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in shapes]
        file.attrs["backend"] = b"tensorflow"
        file.attrs["keras_version"] = b"2.3.1"
        for name, shape in shapes.items():
            group = file.create_group(name)
            kernel, bias = random.normal(size=shape), random.normal(size=shape[1])
            names = [f"{name}/kernel:0", f"{name}/bias:0"]
            group.attrs["weight_names"] = [n.encode() for n in names]
            for entry, array in zip(names, (kernel, bias), strict=True):
                group.create_dataset(entry, data=array.astype(np.float32))
            value = value @ kernel + bias
    return x, np.tanh(value)


def test_weights_without_a_model(shared, function, tmp_path):
    """An architecture file, and functions for either Keras; each child imports them anew."""
    braai = shared / "models/braai_d6m7"
    x, y = weights_of_two_layers(tmp_path / "w.h5")
    tf = function("of_tensorflow", "from tensorflow import keras")
    three = function("of_keras", "import keras")
    other = function("of_another", "from tensorflow import keras", units=7)
    with Judge() as judges:
        with scratch("w") as work, loaded(braai / "golden_numpy.npz") as golden:
            architecture = braai / "d6_m7.architecture.json"
            found, opened, _ = open_weights(judges, braai / "d6_m7.weights.h5", architecture, work)
            assert found.saved_by == "keras 2.2.4-tf"
            close(judges.run(opened, [golden["x0"]], work)[0], golden["y"])
        for name, compared in ((tf, True), (three, False)):
            with scratch("w") as work:
                _, opened, warnings = open_weights(judges, tmp_path / "w.h5", name, work)
                close(judges.run(opened, [x], work)[0], y)
                assert any("nothing compares the two" in w for w in warnings) != compared
        with scratch("w") as work, pytest.raises(ModelError, match=r"w\.h5") as caught:
            open_weights(judges, tmp_path / "w.h5", other, work)
        assert caught.value.hint
        with scratch("w") as work, pytest.raises(ModelError, match="has no function 'nothing'"):
            open_weights(judges, tmp_path / "w.h5", "of_keras:nothing", work)


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


def test_inspect_says_what_is_done(shared):
    ran = packager("inspect", shared / "models/tensorspace_mnist/mnist_keras2.1.6.h5")
    assert ran.code == 0, ran.err
    assert "saved by keras 2.1.6; rebuilt for Keras 3" in ran.out
