"""Golden samples: which are chosen, how they are stored, and the tolerances."""

import json

import numpy as np
import pytest
from PIL import Image

from packager.bundle import (
    Artifact,
    ArtifactTensor,
    ImageSpec,
    InputSpec,
    OutputSpec,
    Quantization,
    Runtime,
)
from packager.errors import PackagerError
from packager.verify import golden
from packager.verify.golden import Sample

RNG = np.random.default_rng(8)
OUTPUTS = (OutputSpec("a", "a", (None, 3), "float32"), OutputSpec("b", "b", (None, 1), "float32"))


# ------------------------------------------------------------------ choosing


def test_samples_come_in_turn_from_each_class():
    targets = np.repeat([0, 1, 2, 3], [500, 20, 3, 1])
    chosen = golden.choose(524, targets, 10, seed=0)
    assert len(set(chosen)) == 10
    assert sorted(targets[chosen[:4]]) == [0, 1, 2, 3]
    assert np.bincount(targets[chosen]).tolist() == [3, 3, 3, 1]


@pytest.mark.parametrize("targets", [None, RNG.normal(size=50), np.eye(50)])
def test_without_classes_the_choice_is_random(targets):
    chosen = golden.choose(50, targets, 16, seed=3)
    assert chosen == golden.choose(50, targets, 16, seed=3)
    assert chosen != golden.choose(50, targets, 16, seed=4)
    assert len(set(chosen)) == 16
    assert chosen != sorted(chosen)


def test_there_may_be_fewer_samples_than_wanted():
    assert sorted(golden.choose(3, None, 16, seed=0)) == [0, 1, 2]
    assert sorted(golden.choose(3, np.array([1, 1, 0]), 16, seed=0)) == [0, 1, 2]


# ------------------------------------------------------------------ synthetic inputs


def test_two_inputs_of_one_shape_differ():
    spec = InputSpec("x", "x", (None, 6), "float32")
    one, two = (golden.synthetic(spec, spec.shape, 4, (0, i)) for i in range(2))
    assert not np.any(one == two)
    np.testing.assert_array_equal(one, golden.synthetic(spec, spec.shape, 4, (0, 0)))
    assert np.abs(one).max() > 0.5


def test_two_images_of_one_size_differ():
    image = ImageSpec(width=5, height=4, channels="rgb")
    spec = InputSpec("x", "x", (None, 4, 5, 3), "float32", image)
    one, two = (golden.synthetic(spec, spec.shape, 2, (0, i)) for i in range(2))
    assert (one.shape, one.dtype) == ((2, 4, 5, 3), np.uint8)
    assert np.mean(one == two) < 0.1


def test_integers_are_ids_and_free_axes_get_a_length():
    spec = InputSpec("ids", "ids", (None, None, 40), "int32")
    values = golden.synthetic(spec, spec.shape, 3, (0, 0))
    assert (values.shape, values.dtype) == ((3, golden.FREE_AXIS, 40), np.int32)
    assert set(values.ravel().tolist()) == {0, 1}


# ------------------------------------------------------------------ raw inputs


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3)])
def test_pixels_are_stored_as_png(tmp_path, shape):
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    path = golden.write_raw(tmp_path, "003", "image", pixels, is_pixels=True)
    assert path == "golden/003.image.png"
    with Image.open(tmp_path / path) as stored:
        np.testing.assert_array_equal(np.asarray(stored).reshape(shape), pixels)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 7), (9,)])
def test_a_uint8_tensor_is_no_image(tmp_path, shape):
    values = RNG.integers(0, 256, shape, dtype=np.uint8)
    path = golden.write_raw(tmp_path, "003", "board", values, is_pixels=False)
    assert path == "golden/003.board.npy"
    stored = np.load(tmp_path / path)
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(stored, values)


# ------------------------------------------------------------------ tolerances


def artifact(mode, scales=None):
    io = [
        ArtifactTensor("output", name, "int8" if scale else "float32", (1, 3), scale)
        for name, scale in (scales or {"a": (), "b": ()}).items()
    ]
    quantization = None if mode is None else Quantization(mode)
    return Artifact("x", "x", Runtime("tflite"), io=tuple(io), quantization=quantization)


@pytest.mark.parametrize(
    ("mode", "share"),
    [(None, 1e-5), ("float32", 1e-5), ("float16", 5e-3), ("dynamic_int8", 5e-2),
     ("int8_float_io", 1.001 / 255)],
)  # fmt: skip
def test_tolerances_are_shares_of_each_range(mode, share):
    found = golden.tolerances(
        artifact(mode), OUTPUTS, {"a": 2.0, "b": 40.0}, {"a": 0.0, "b": 0.0}, {}
    )
    assert found == {"a": pytest.approx(2.0 * share), "b": pytest.approx(40.0 * share)}


def test_a_model_that_enlarges_rounding_gets_wider_tolerances():
    found = golden.tolerances(
        artifact("float32"), OUTPUTS, {"a": 2.0, "b": 40.0}, {"a": 1e-4, "b": 1e-6}, {}
    )
    assert found == {"a": pytest.approx(8e-4), "b": pytest.approx(4e-4)}


def test_integer_outputs_may_differ_by_one_step():
    one = artifact("int8", {"a": (0.25,), "b": (0.5, 2.0)})
    found = golden.tolerances(one, OUTPUTS, {"a": 2.0, "b": 40.0}, {"a": 0.0, "b": 0.0}, {})
    assert 0.25 < found["a"] < 0.2505
    assert 2.0 < found["b"] < 2.004


@pytest.mark.parametrize(("mode", "step"), [("int8", 0.25), ("int8_float_io", 2 / 255)])
def test_integer_files_may_differ_as_much_as_kernels_do(mode, step):
    scales = {"a": (0.25,), "b": ()} if mode == "int8" else None
    ranges, rounding = {"a": 2.0, "b": 40.0}, {"a": 0.0, "b": 0.0}
    found = golden.tolerances(artifact(mode, scales), OUTPUTS, ranges, rounding, {"a": 0.5})
    assert found["a"] == pytest.approx((step + 0.5) * 1.001)


# ------------------------------------------------------------------ recorded values


SAMPLES = (Sample("000", {"x": "golden/000.x.npy"}, 2), Sample("001", {"x": "golden/001.x.npy"}))
SOURCE = {
    "a": np.array([[0.5, 1.5, -2.5], [3.5, 4.25, 5.75]], np.float32),
    "b": np.array([[7.0], [8.5]], np.float32),
}


def recorded():
    return {
        s.id: {n: a[row].ravel().tolist() for n, a in SOURCE.items()}
        for row, s in enumerate(SAMPLES)
    }


def test_recorded_values_get_the_shape_of_the_source():
    found = golden.arrays(recorded(), SAMPLES, SOURCE)
    assert list(found) == ["a", "b"]
    for name, array in SOURCE.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


def test_null_is_not_finite():
    values = recorded()
    values["001"]["a"][1] = None
    found = golden.arrays(values, SAMPLES, SOURCE)
    assert np.argwhere(np.isnan(found["a"])).tolist() == [[1, 1]]
    assert not golden.is_finite(found)


@pytest.mark.parametrize("change", ["sample", "output", "size"])
def test_a_record_with_gaps_is_an_error(change):
    values = recorded()
    if change == "sample":
        del values["001"]
    elif change == "output":
        del values["001"]["b"]
    else:
        values["001"]["b"].append(1.0)
    with pytest.raises(PackagerError, match=r"expected \d values for each of 2 samples"):
        golden.arrays(values, SAMPLES, SOURCE)


# ------------------------------------------------------------------ samples.json


def written(folder, source=SOURCE, found=None, synthetic=False):
    found = found or {}
    tolerance = {name: dict.fromkeys(source, 0.125) for name in [*found, "not/run"]}
    golden.write(folder, SAMPLES, source, found, tolerance, is_synthetic=synthetic)
    return json.loads((folder / "golden/samples.json").read_text())


def test_small_outputs_are_inline(tmp_path):
    found = {name: array + 0.5 for name, array in SOURCE.items()}
    document = written(tmp_path, found={"tflite/int8": found})
    first, second = document["samples"]
    assert (document["schema"], document["synthetic"]) == (1, False)
    assert document["tolerances"] == {"tflite/int8": {"a": 0.125, "b": 0.125}}
    assert first == {
        "id": "000",
        "label": 2,
        "inputs": {"x": "golden/000.x.npy"},
        "outputs": {"a": [0.5, 1.5, -2.5], "b": [7.0]},
        "artifacts": {"tflite/int8": {"a": [1.0, 2.0, -2.0], "b": [7.5]}},
    }
    assert "label" not in second
    assert second["artifacts"]["tflite/int8"]["b"] == [9.0]


@pytest.mark.parametrize(("size", "inline"), [(4096, True), (4097, False)])
def test_large_outputs_are_arrays_beside_it(tmp_path, size, inline):
    source = {"a": RNG.normal(size=(2, 1, size)).astype(np.float32)}
    found = {"tflite/int8": {"a": source["a"] * 2}}
    document = written(tmp_path, source, found, synthetic=True)
    assert document["synthetic"] is True
    for row, entry in enumerate(document["samples"]):
        for stored, values in (
            (entry["outputs"]["a"], source["a"]),
            (entry["artifacts"]["tflite/int8"]["a"], source["a"] * 2),
        ):
            assert isinstance(stored, list) is inline
            if not inline:
                stored = np.load(tmp_path / stored["npy"])[stored["index"]]
            np.testing.assert_array_equal(np.float32(stored), values[row].ravel())
    assert (tmp_path / "golden/outputs").exists() is not inline


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_artifact_that_is_not_finite_is_left_out(tmp_path, value):
    bad = {name: array.copy() for name, array in SOURCE.items()}
    bad["b"][1, 0] = value
    document = written(tmp_path, found={"tflite/int8": SOURCE, "tflite/float16": bad})
    assert list(document["tolerances"]) == ["tflite/int8"]
    assert [list(s["artifacts"]) for s in document["samples"]] == [["tflite/int8"]] * 2
