"""SavedModels of several origins: their ends' names, their values, and clear refusals."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from packager import bundle
from packager.children import Child
from packager.errors import ModelError, UnsupportedError
from packager.loaders import saved_model_ops
from packager.loaders.model_file import identify
from tests.conftest import ROOT, loaded, packager

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def made(once):
    def make(folder):
        done = subprocess.run(
            [sys.executable, ROOT / "tests/loaders/saved_models.py", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return once("saved-models", make)


@pytest.fixture(scope="module")
def child():
    with Child("packager.loaders.worker") as worker:
        yield worker


def open_model(child, path, **options):
    found = identify(str(path))
    return child.call(
        "open", "opening", source=path, format=found.format, saved_by=found.saved_by, **options
    )


def run(child, opened, given, folder):
    for name in ("in", "out"):
        (folder / name).mkdir()
    for end in opened["inputs"]:
        np.save(folder / "in" / f"{end['name']}.npy", given[end["name"]])
    child.call("predict", "running", inputs=folder / "in", outputs=folder / "out")
    return {e["name"]: np.load(folder / "out" / f"{e['name']}.npy") for e in opened["outputs"]}


def test_what_tensorflow_saved_of_a_keras_3_model_gets_its_layers_names(made, child, tmp_path):
    opened = open_model(child, made / "keras3")
    assert [e["name"] for e in opened["outputs"]] == ["zeta", "alpha"]
    assert [e["activation"] for e in opened["outputs"]] == ["none", "softmax"]
    with loaded(made / "keras3.npz") as stored:
        # Only their shapes are left of the inputs.
        by_width = {3: stored["size"], 4: stored["age"]}
        given = {e["name"]: by_width[e["shape"][1]] for e in opened["inputs"]}
        found = run(child, opened, given, tmp_path)
        for name, values in found.items():
            np.testing.assert_allclose(values, stored[name], atol=1e-6)


def test_variables_of_tensorflow_1_and_tables_are_kept(made, child, tmp_path):
    opened = open_model(child, made / "tf1", signature="predict")
    assert {e["name"]: e["dtype"] for e in opened["inputs"]} == {
        "size": "float32", "word": "string"
    }  # fmt: skip
    with loaded(made / "tf1.npz") as stored:
        for name, values in run(child, opened, stored, tmp_path).items():
            np.testing.assert_allclose(values, stored[name], atol=1e-6)
    with pytest.raises(UnsupportedError, match=r"'word' is text.*LookupTableFindV2"):
        child.call("convert_tflite", "converting", path=tmp_path / "x.tflite", input_shapes={})


def test_an_input_that_no_output_reads_stays_an_input(made, child):
    opened = open_model(child, made / "tf1", signature="unused")
    assert [e["name"] for e in opened["inputs"]] == ["size", "unused", "word"]


def test_a_bundle_of_an_estimator(made, tmp_path):
    """Served from text that only evaluation data can give; its text output is left out."""
    with loaded(made / "tf1.npz") as stored:
        np.savez(tmp_path / "data.npz", x=stored["examples"])
        expected = stored["probabilities"]
    ran = packager("build", made / "tf1", "--output", tmp_path, "--json", "--quiet")
    assert ran.code == 1
    assert "Could not parse example" in ran.err
    assert "--evaluation" in ran.err
    ran = packager(
        "build", made / "tf1", "--output", tmp_path, "--evaluation", tmp_path / "data.npz", "--json"
    )
    assert ran.code == 0, ran.err
    assert "'classes' is text and is left out" in ran.err
    manifest = bundle.read_manifest(tmp_path / "tf1/1")
    assert [a.id for a in manifest.artifacts] == ["saved_model"]
    assert manifest.artifacts[0].gate.status == "passed"
    refused = {r.id: r.reason for r in manifest.refused}
    assert "ParseExampleV2" in refused["tflite/float32"]
    program = [sys.executable, "-m", "packager_server.engine", "run", tmp_path / "tf1/1"]
    (tmp_path / "in").mkdir()
    with loaded(made / "tf1.npz") as stored:
        np.save(tmp_path / "in" / f"{manifest.inputs[0].name}.npy", stored["examples"])
    subprocess.run(
        [*program, "--inputs", tmp_path / "in", "--outputs", tmp_path / "out"],
        check=True,
        capture_output=True,
        cwd=ROOT / "server",
    )
    np.testing.assert_allclose(np.load(tmp_path / "out/scores.npy"), expected, atol=1e-6)
    ran = packager("verify", tmp_path / "tf1/1")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("version", ["saved_model_half_plus_two_cpu/00000123",
                                     "saved_model_half_plus_two_2_versions/00000124",
                                     "saved_model_half_plus_two_tf2_cpu/00000123"])  # fmt: skip
def test_models_of_tensorflow_serving(shared, child, tmp_path, version):
    opened = open_model(child, shared / "tfserving/models" / version)
    x = np.linspace(-2, 5, 7, dtype=np.float32).reshape(-1, 1)
    (found,) = run(child, opened, {opened["inputs"][0]["name"]: x}, tmp_path).values()
    np.testing.assert_allclose(found, x / 2 + 2, atol=1e-6)
    assert child.call("convert_tflite", "converting", path=tmp_path / "x.tflite", input_shapes={})


def refused(child, path, *texts, **options):
    with pytest.raises(ModelError) as caught:
        open_model(child, path, **options)
    for text in texts:
        assert text in caught.value.message + caught.value.hint
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_a_signature_that_counts_its_calls_is_refused(shared, child):
    counter = shared / "tfserving/models/saved_model_counter/00000123"
    refused(child, counter, "changes the variable 'counter'", signature="incr_counter")


def test_signatures(made, child):
    refused(child, made / "tf1", "no signature 'predcit'", "predict", signature="predcit")


def test_a_single_value_as_input(made, child):
    refused(child, made / "tf1", "'rate' is a single value", signature="scalar")


@pytest.mark.parametrize("name", ["keras3", "tf1"])
def test_missing_variables(made, child, tmp_path, name):
    shutil.copytree(made / name, tmp_path / name)
    for path in (tmp_path / name / "variables").glob("*data*"):
        path.unlink()
    refused(child, tmp_path / name, str(tmp_path / name), "variables")
    shutil.rmtree(tmp_path / name / "variables")
    refused(child, tmp_path / name, str(tmp_path / name), "variables")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        *((op, op) for op in ("ReadFile", "WriteFile", "MatchingFiles", "PrintV2", "EagerPyFunc")),
        ("SaveV2", "SaveV2"),
        ("RestoreV2", "RestoreV2"),
        ("in_a_branch", "WriteFile"),
        ("foreign_file", "InitializeTableFromTextFileV2"),
    ],
)
def test_operations_that_do_more_than_compute_are_refused(made, name, op):
    ran = packager("inspect", made / name)
    assert ran.code == 2
    assert f"{op} (in the function" in ran.err
    assert f"add --allow-op {op}" in ran.err
    assert not (made / "trace").exists()
    with pytest.raises(ModelError):
        identify(str(made / name), allow_ops=["NoOp"])
    assert identify(str(made / name), allow_ops=[op]).format == "saved_model"


def test_a_trusted_operation_can_be_allowed(made, child):
    ran = packager("inspect", made / "ReadFile", "--allow-op", "ReadFile", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["inputs"][0]["name"] == "x"


def test_a_vocabulary_of_the_model_s_own_is_read(made):
    assert identify(str(made / "own_file")).format == "saved_model"
    assert identify(str(made / "tf1")).format == "saved_model"


def test_the_list_of_safe_operations_is_of_tensorflow_s(child):
    code = (
        "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
        "import json, sys, tensorflow as tf\n"
        "names = json.load(sys.stdin)\n"
        "print(json.dumps([n for n in names if not hasattr(tf.raw_ops, n)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(sorted(saved_model_ops.safe_ops())),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []
