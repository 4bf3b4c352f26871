"""A build's samples: files of every kind of input, targets, and one pass over each data set."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from packager import samples
from packager.bundle import ImageSpec, InputSpec, Manifest, OutputSpec, Source
from packager.config import Config, DataSource, Golden
from packager.errors import DataError

RNG = np.random.default_rng(31)
PICTURE = ImageSpec(5, 4, "rgb", scale=(1 / 255,))


def manifest(*inputs, task="classification", shape=(3,)):
    return Manifest(
        name="m", version=1, created="", source=Source("m", "", "keras3", ""), task=task,
        threshold=None, inputs=inputs, labels=(), artifacts=(),
        outputs=(OutputSpec("y", "y", (None, *shape), "float32"),),
    )  # fmt: skip


def prepared(tmp_path, described, evaluation=None, calibration=None, count=6):
    config = Config(golden=Golden(count=count))
    for name, arrays in (("evaluation", evaluation), ("calibration", calibration)):
        if arrays is not None:
            np.savez(tmp_path / f"{name}.npz", **arrays)
            source = DataSource(str(tmp_path / f"{name}.npz"))
            config = dataclasses.replace(config, **{name: source})
    for folder in ("bundle", "work"):
        (tmp_path / folder).mkdir()
    warnings = []
    found = samples.prepare(
        config, described, tmp_path / "bundle", tmp_path / "work", warnings.append
    )
    return found, warnings


def golden_input(found, name):
    return np.load(found.golden_inputs / f"{name}.npy")


def test_two_synthetic_inputs_of_one_shape_differ(tmp_path):
    inputs = [InputSpec(name, name, (None, 7), "float32") for name in ("left", "right")]
    found, _ = prepared(tmp_path, manifest(*inputs))
    assert found.synthetic
    left, right = golden_input(found, "left"), golden_input(found, "right")
    assert left.shape == right.shape == (6, 7)
    assert not np.any(left == right)


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5), (4, 5, 7)])
def test_a_uint8_input_without_preprocessing(tmp_path, shape):
    spec = InputSpec("board", "board", (None, *shape), "uint8")
    x = RNG.integers(0, 256, (20, *shape), dtype=np.uint8)
    found, _ = prepared(tmp_path, manifest(spec), {"x": x, "y": np.arange(20) % 3})
    assert {path.suffix for path in (tmp_path / "bundle/golden").iterdir()} == {".npy"}
    chosen = golden_input(found, "board")
    assert chosen.dtype == np.uint8
    assert all(any(np.array_equal(row, one) for one in x) for row in chosen)


def test_a_synthetic_uint8_input_without_preprocessing(tmp_path):
    spec = InputSpec("board", "board", (None, 4, 5, 3), "uint8")
    found, _ = prepared(tmp_path, manifest(spec))
    assert {path.suffix for path in (tmp_path / "bundle/golden").iterdir()} == {".npy"}
    assert golden_input(found, "board").shape == (6, 4, 5, 3)


def test_pixels_of_an_image_input_are_png_and_floats_are_npy(tmp_path):
    spec = InputSpec("image", "image", (None, 4, 5, 3), "float32", PICTURE)
    pixels = RNG.integers(0, 256, (20, 4, 5, 3), dtype=np.uint8)
    found, _ = prepared(tmp_path, manifest(spec), {"x": pixels, "y": np.arange(20) % 3})
    for row, sample in zip(golden_input(found, "image"), found.golden, strict=True):
        with Image.open(tmp_path / "bundle" / sample.files["image"]) as stored:
            np.testing.assert_allclose(row, np.asarray(stored) / 255, rtol=1e-6)
    (tmp_path / "floats").mkdir()
    values = {"x": pixels / 255, "y": np.arange(20) % 3}
    prepared(tmp_path / "floats", manifest(spec), values)
    assert {p.suffix for p in (tmp_path / "floats/bundle/golden").iterdir()} == {".npy"}


def test_pixels_with_alpha_are_stored_as_decoded(tmp_path):
    spec = InputSpec("image", "image", (None, 4, 5, 3), "float32", PICTURE)
    pixels = RNG.integers(0, 256, (8, 4, 5, 4), dtype=np.uint8)
    found, _ = prepared(tmp_path, manifest(spec), {"x": pixels, "y": np.arange(8) % 3}, count=8)
    evaluation = np.load(found.evaluation_inputs / "image.npy")
    for row, sample in zip(golden_input(found, "image"), found.golden, strict=True):
        with Image.open(tmp_path / "bundle" / sample.files["image"]) as stored:
            assert stored.mode == "RGB"
        assert any(np.array_equal(row, one) for one in evaluation)


@pytest.mark.parametrize(
    ("task", "shape", "y", "targets", "labelled"),
    [
        ("classification", (3,), np.eye(3)[[2, 0, 1]], [2, 0, 1], True),
        ("binary", (1,), np.array([True, False, True]), [1, 0, 1], True),
        ("multilabel", (3,), np.eye(3, dtype=int), np.eye(3).tolist(), False),
        ("regression", (1,), np.array([4, 5, 6]), [[4], [5], [6]], False),
        ("none", (3,), np.array([4, 5, 6]), [4, 5, 6], False),
    ],
)
def test_targets_have_the_form_of_the_task(tmp_path, task, shape, y, targets, labelled):
    spec = InputSpec("x", "x", (None, 2), "float32")
    described = manifest(spec, task=task, shape=shape)
    x = RNG.normal(size=(3, 2)).astype(np.float32)
    found, _ = prepared(tmp_path, described, {"x": x, "y": y}, count=3)
    assert found.targets.tolist() == targets
    labels = [sample.label for sample in found.golden]
    if not labelled:
        assert labels == [None] * 3
        return
    order = [int(np.flatnonzero((x == row).all(axis=1))[0]) for row in golden_input(found, "x")]
    assert labels == [targets[i] for i in order]


def test_class_numbers_from_1_are_refused_before_anything_is_converted(tmp_path):
    spec = InputSpec("x", "x", (None, 2), "float32")
    x = RNG.normal(size=(30, 2))
    with pytest.raises(DataError, match="class numbers from 1 to 10") as caught:
        prepared(tmp_path, manifest(spec, shape=(10,)), {"x": x, "y": np.arange(30) % 10 + 1})
    assert "start at 0" in caught.value.hint


def test_calibration_and_evaluation_are_checked_and_written(tmp_path):
    spec = InputSpec("image", "image", (None, 4, 5, 3), "float32", PICTURE)
    pixels = RNG.integers(0, 256, (30, 4, 5, 3), dtype=np.uint8)
    found, warnings = prepared(
        tmp_path, manifest(spec), {"x": pixels[:20], "y": np.arange(20) % 3}, {"x": pixels[20:]}
    )
    assert found.summary() == "6 golden, 20 evaluation, 10 calibration"
    written = np.load(found.calibration_inputs / "image.npy")
    np.testing.assert_allclose(written, pixels[20:] / 255, rtol=1e-6)
    assert len(warnings) == 1
    assert "10 calibration samples" in warnings[0]
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match="1 of 20 evaluation samples are calibration samples"):
        prepared(
            tmp_path / "again", manifest(spec),
            {"x": pixels[:20], "y": np.arange(20) % 3}, {"x": pixels[19:]},
        )  # fmt: skip
