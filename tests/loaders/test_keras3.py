"""What the TensorFlow child makes of a Keras model equals what Keras answers."""

import subprocess
import sys

import numpy as np
import pytest

from packager import tflite_file
from packager.children import Child
from packager.errors import ConversionError, ModelError, UnsupportedError
from packager.loaders import layer_graph
from tests.conftest import ROOT, loaded
from tests.loaders.odd_models import EQUAL

pytestmark = pytest.mark.tf
MODULE = "tests.loaders.odd_models"


@pytest.fixture(scope="module")
def expected(once):
    def make(folder):
        done = subprocess.run(
            [sys.executable, "-m", MODULE, folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return once("odd-models", make)


@pytest.fixture(scope="module")
def child():
    with Child("packager.loaders.worker") as worker:
        yield worker


def open_model(child, name):
    return child.call(
        "open", "opening", source=f"{MODULE}:{name}", format="callable", saved_by="python"
    )


@pytest.mark.parametrize("name", EQUAL)
def test_the_opened_model_answers_what_keras_does(child, expected, tmp_path, name):
    opened = open_model(child, name)
    assert len(opened["inputs"]) == 1
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    inputs = np.load(expected / "inputs.npy")
    np.save(tmp_path / "in" / f"{opened['inputs'][0]['name']}.npy", inputs)
    count = child.call(
        "predict", "running", inputs=tmp_path / "in", outputs=tmp_path / "out", batch=2
    )
    assert count == 5
    # Half precision itself is 2**11 times coarser than what the targets compute in.
    tolerance = 5e-3 if name == "half" else 1e-5
    with loaded(expected / f"{name}.npz") as answers:
        wanted = list(answers.values())
    assert len(wanted) == len(opened["outputs"])
    for end, answer in zip(opened["outputs"], wanted, strict=True):
        got = np.load(tmp_path / "out" / f"{end['name']}.npy")
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, answer, rtol=0, atol=tolerance * np.ptp(answer))


def test_names_and_activations(child):
    assert [e["name"] for e in open_model(child, "unsorted_outputs")["outputs"]] == [
        "zeta", "alpha",
    ]  # fmt: skip
    assert open_model(child, "reshaped_softmax")["outputs"][0]["activation"] == "softmax"
    assert [e["name"] for e in open_model(child, "called")["outputs"]] == ["output_1", "output_2"]


@pytest.mark.parametrize("name", ["called", "scaled", "scaled_sequence"])
def test_a_model_with_a_call_of_its_own_has_no_layer_graph(child, tmp_path, name):
    open_model(child, name)
    with pytest.raises(UnsupportedError, match="subclassed"):
        child.call("write_layer_graph", "describing", folder=tmp_path)


def test_channels_first_is_refused_by_name(child):
    with pytest.raises(ModelError, match=r"'nchw' .*channels_first"):
        open_model(child, "channels_first")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("cut_when_traced", ConversionError, "'bins' of the model's TensorFlow graph differs"),
        ("another_graph", ConversionError, "'y' of the model's TensorFlow graph differs"),
        ("random_answers", ModelError, "'y' differs from call to call"),
        ("samples_elsewhere", ModelError, "first axis of every input and output"),
    ],
)
def test_a_graph_that_cannot_be_trusted_is_refused(child, tmp_path, name, kind, text):
    opened = open_model(child, name)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    x = np.random.default_rng(4).normal(size=(5, 6)).astype(np.float32)
    np.save(tmp_path / "in" / f"{opened['inputs'][0]['name']}.npy", x)
    with pytest.raises(kind, match=text) as caught:
        child.call("predict", "running", inputs=tmp_path / "in", outputs=tmp_path / "out")
    assert caught.value.hint


def test_nudging_moves_real_numbers_and_leaves_whole_ones(child, tmp_path):
    """A whole number may be an index; a step of the model is no rounding."""
    opened = open_model(child, "floored")
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.save(tmp_path / "in" / f"{opened['inputs'][0]['name']}.npy", x)
    child.call("predict_nudged", "nudging", inputs=tmp_path / "in", outputs=tmp_path / "out")
    name = opened["outputs"][0]["name"]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), x)


def test_a_stateful_layer_is_refused_by_name(child):
    with pytest.raises(ModelError, match=r"'y' \(LSTM\) is stateful"):
        open_model(child, "stateful")


def float_file(child, litert, method, path):
    ends = child.call(method, "converting", path=path, input_shapes={})
    litert.call("complete", "completing", source=path, target=path, **ends)
    return path


def test_unrolled_layers_compute_the_same(child, tmp_path):
    """Both ways, LSTM and GRU; the model itself is unchanged afterwards."""
    (tmp_path / "in").mkdir()
    words = np.random.default_rng(4).integers(1, 11, (5, 6)).astype(np.int32)
    words[::2, 4:] = 0
    np.save(tmp_path / "in/words.npy", words)
    with Child("packager.quantize.worker") as litert:
        open_model(child, "recurrent")
        loop, unrolled, again = (
            float_file(child, litert, method, tmp_path / f"{i}.tflite")
            for i, method in enumerate(("convert_tflite", "convert_unrolled", "convert_tflite"))
        )
        loops = [tflite_file.describe(tflite_file.read(f)).ops.get("WHILE", 0) for f in
                 (loop, unrolled, again)]  # fmt: skip
        assert loops == [3, 0, 3]
        compare = {"model": loop, "samples": tmp_path / "in"}
        litert.call("compare", "comparing", other=unrolled, **compare)
        open_model(child, "recurrent_with_other_weights")
        other = float_file(child, litert, "convert_tflite", tmp_path / "other.tflite")
        with pytest.raises(UnsupportedError, match="unrolled, the recurrent layers give another"):
            litert.call("compare", "comparing", other=other, **compare)


def test_what_keras_unrolls_wrong_gets_no_integers(child, tmp_path):
    (tmp_path / "in").mkdir()
    words = np.array([[3, 1, 4, 1, 0, 0]], np.int32)
    np.save(tmp_path / "in/words.npy", words)
    open_model(child, "recurrent_masked")
    with Child("packager.quantize.worker") as litert:
        loop, unrolled = (
            float_file(child, litert, method, tmp_path / f"{method}.tflite")
            for method in ("convert_tflite", "convert_unrolled")
        )
        with pytest.raises(UnsupportedError, match="give another output 'y'"):
            litert.call("compare", "comparing", model=loop, other=unrolled, samples=tmp_path / "in")


def test_too_many_steps_are_not_unrolled(child, tmp_path):
    open_model(child, "long")
    with pytest.raises(UnsupportedError, match=r"take 4000 steps.*'forward_slow'"):
        child.call("convert_unrolled", "unrolling", path=tmp_path / "x.tflite", input_shapes={})


def test_a_layer_graph_survives_the_way_through_a_file(child, tmp_path):
    open_model(child, "unsorted_outputs")
    assert child.call("write_layer_graph", "describing", folder=tmp_path)
    graph = layer_graph.load(tmp_path)
    assert [ref.layer for ref in graph.inputs] == ["x"]
    assert [ref.layer for ref in graph.outputs] == ["zeta", "alpha"]
    assert graph.layer("zeta").weights["kernel"].shape == (6, 3)
    layer_graph.save(graph, tmp_path / "again")
    again = layer_graph.load(tmp_path / "again")
    assert again.layer("alpha").config == graph.layer("alpha").config
    np.testing.assert_array_equal(
        again.layer("alpha").weights["kernel"], graph.layer("alpha").weights["kernel"]
    )


def test_a_class_of_ones_own_with_another_signature(models, tmp_path, monkeypatch):
    (tmp_path / "other_signature.py").write_text(
        "import keras\n\n\n@keras.saving.register_keras_serializable('tests')\n"
        "class Doubling(keras.layers.Layer):\n"
        "    def __init__(self, factor, *, depth):\n        super().__init__()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    with Child("packager.loaders.worker") as child, pytest.raises(ModelError) as caught:
        child.call(
            "open", "opening", source=models / "custom.keras", format="keras3",
            saved_by="keras 3", custom_objects=["other_signature"],
        )  # fmt: skip
    assert "the class 'Doubling' does not take" in caught.value.message
    assert "other arguments than the file holds" in caught.value.hint
