"""Calibration sets that must be refused, warned about, or taken."""

import numpy as np
import pytest
from PIL import Image

from packager.datasets import open_dataset
from packager.datasets.checks import check_calibration, declared_range
from packager.errors import DataError

RNG = np.random.default_rng(11)
PIXELS = RNG.integers(0, 256, (120, 4, 4, 3), dtype=np.uint8)


def image_input(scale=(1 / 255,), offset=(0.0,), declared=True):
    image = {
        "width": 4,
        "height": 4,
        "channels": "rgb",
        "resize": "pillow:bilinear",
        "fit": "stretch",
        "pad_value": 0,
        "scale": list(scale),
        "offset": list(offset),
    }
    spec = {"name": "image", "shape": [None, 4, 4, 3], "dtype": "float32"}
    return {**spec, "image": image if declared else None}


def dataset(folder, values, spec, name="data.npz"):
    np.savez(folder / name, x=values)
    return open_dataset(str(folder / name), inputs=[spec], labels=[])


def check(folder, values, spec, evaluation=None):
    found = dataset(folder, values, spec)
    found.write_inputs(folder)
    return check_calibration(found, evaluation, [spec], folder)


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        (PIXELS, image_input()),
        (PIXELS / 255, image_input()),
        (PIXELS / 127.5 - 1, image_input([1 / 127.5], [-1.0])),
        (PIXELS * 1.0, image_input([1.0])),
        (PIXELS / 255 * 1.05 - 0.02, image_input()),
        (RNG.normal(size=(150, 4, 4, 3)) * 40, image_input(declared=False)),
    ],
)
def test_good_sets_pass_without_warnings(tmp_path, values, spec):
    assert check(tmp_path, values, spec) == []


def test_few_samples_are_a_warning(tmp_path):
    (warning,) = check(tmp_path, PIXELS[:99], image_input())
    assert "99 calibration samples" in warning


def test_unscaled_pixels_are_caught(tmp_path):
    with pytest.raises(DataError, match="holds 0 to 255, but pixels become 0 to 1") as caught:
        check(tmp_path, PIXELS * 1.0, image_input())
    assert "scale them" in caught.value.hint


def test_scaled_data_for_a_pixel_model_are_caught(tmp_path):
    with pytest.raises(DataError, match=r"become 0 to 255 .* fill almost none of it"):
        check(tmp_path, PIXELS / 255, image_input([1.0]))


def test_zero_to_one_is_not_minus_one_to_one(tmp_path):
    with pytest.raises(DataError, match="holds -1 to 1, but pixels become 0 to 1"):
        check(tmp_path, PIXELS / 127.5 - 1, image_input())


def test_undeclared_pixels_are_a_warning(tmp_path):
    (warning,) = check(tmp_path, PIXELS * 1.0, image_input(declared=False))
    assert "never scaled" in warning
    assert "--preprocess 0..1" in warning


@pytest.mark.parametrize("count", [1, 5])
def test_constant_values_are_refused(tmp_path, count):
    with pytest.raises(DataError, match=r"every value of the input 'image' is 0\.5"):
        check(tmp_path, np.full((count, 4, 4, 3), 0.5), image_input())


def test_equal_samples_are_refused(tmp_path):
    with pytest.raises(DataError, match="all 5 samples are equal"):
        check(tmp_path, np.repeat(PIXELS[:1], 5, axis=0), image_input())


def test_values_that_are_not_finite_are_refused(tmp_path):
    values = PIXELS / 255
    values[70, 1, 2, 0] = np.inf
    with pytest.raises(DataError, match="sample 70: the input 'image' holds NaN or infinities"):
        check(tmp_path, values, image_input())


def test_calibration_samples_in_the_evaluation_set(tmp_path):
    evaluation = dataset(tmp_path, PIXELS[100:], image_input(), "evaluation.npz")
    with pytest.raises(DataError, match=r"10 of 20 evaluation samples .* sample 100"):
        check(tmp_path, PIXELS[:110], image_input(), evaluation)
    assert check(tmp_path, PIXELS[:100], image_input(), evaluation) == []


def test_overlap_is_found_between_files_and_arrays(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(PIXELS[7]).save(tmp_path / "images/only.png")
    spec = image_input()
    evaluation = open_dataset(str(tmp_path / "images"), inputs=[spec], labels=[])
    with pytest.raises(DataError, match=r"images: 1 of 1 evaluation samples .* sample 7"):
        check(tmp_path, PIXELS, spec, evaluation)


def test_integer_inputs_may_be_constant(tmp_path):
    spec = {"name": "image", "shape": [None, 4, 4, 3], "dtype": "float32", "image": None}
    switch = {"name": "switch", "shape": [None, 1], "dtype": "int32", "image": None}
    np.savez(tmp_path / "a.npz", image=PIXELS / 255, switch=np.ones((120, 1), np.int32))
    found = open_dataset(str(tmp_path / "a.npz"), inputs=[spec, switch], labels=[])
    found.write_inputs(tmp_path)
    assert check_calibration(found, None, [spec, switch], tmp_path) == []


def test_each_sample_is_preprocessed_once(tmp_path, monkeypatch):
    from packager.datasets import dataset as module

    calls = []

    def counted(raw, spec, where):
        calls.append(where)
        return original(raw, spec, where)

    original = module.to_input
    monkeypatch.setattr(module, "to_input", counted)
    calibration = dataset(tmp_path, PIXELS[:100], image_input())
    evaluation = dataset(tmp_path, PIXELS[100:], image_input(), "evaluation.npz")
    calls.clear()
    for found in (calibration, evaluation):
        (tmp_path / found.source[:4]).mkdir()
        found.write_inputs(tmp_path / found.source[:4])
    check_calibration(calibration, evaluation, [image_input()], tmp_path / "data")
    assert len(calls) == len(set(calls)) == 120


def test_declared_range_spans_all_channels():
    image = {"scale": [1.0, 2.0, -1.0], "offset": [-100.0, 5.0, 0.0]}
    assert declared_range(image) == (-255.0, 515.0)


def test_each_input_is_checked_by_its_own_values(tmp_path):
    spec = {"name": "image", "shape": [None, 4, 4, 3], "dtype": "float32", "image": None}
    gain = {"name": "gain", "shape": [None, 1], "dtype": "float32", "image": None}
    np.savez(tmp_path / "a.npz", image=PIXELS / 255, gain=np.full((120, 1), 0.25))
    found = open_dataset(str(tmp_path / "a.npz"), inputs=[spec, gain], labels=[])
    found.write_inputs(tmp_path)
    with pytest.raises(DataError, match=r"every value of the input 'gain' is 0\.25"):
        check_calibration(found, None, [spec, gain], tmp_path)
