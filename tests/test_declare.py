"""From an opened model to the task and the preprocessing declaration."""

import numpy as np
import pytest

from packager.bundle import InputSpec, to_json
from packager.declare import declare, image_spec
from packager.errors import ConfigError
from packager.preprocess import FITS, RESIZE_METHODS, preprocess

IMAGE = InputSpec("image", "image", (None, 28, 20, 3), "float32")
GRAY = InputSpec("image", "image", (None, 28, 20, 1), "float32")


def declared(shape, activation="none", task=None, labels=(), threshold=None, preprocess=None):
    opened = {
        "inputs": [
            {"name": "x", "source_name": "x", "shape": [None, 8, 8, 1], "dtype": "float32"},
            {"name": "extra", "source_name": "Extra!", "shape": [None, 3], "dtype": "float32"},
        ],
        "outputs": [
            {"name": "y", "source_name": "y", "shape": shape, "dtype": "float32",
             "activation": activation},
        ],
    }  # fmt: skip
    return declare(opened, task=task, threshold=threshold, labels=labels, preprocess=preprocess)


# ------------------------------------------------------------------ the task


@pytest.mark.parametrize(
    ("shape", "activation", "labels", "task", "shown"),
    [
        ([None, 10], "softmax", (), "classification", "softmax"),
        ([None, 1], "sigmoid", (), "binary", "sigmoid"),
        ([None], "sigmoid", (), "binary", "sigmoid"),
        ([None, 4], "sigmoid", (), "multilabel", "sigmoid"),
        ([None, 2], "none", ("no", "yes"), "classification", "logits"),
        ([None, 1], "none", ("no", "yes"), "binary", "logits"),
        ([None, 4], "none", (), "none", "none"),
        ([None, 1], "softmax", (), "none", "softmax"),
        # Scores per pixel or per step.
        ([None, 32, 32, 5], "softmax", (), "none", "softmax"),
        ([None, 32, 32, 1], "sigmoid", (), "none", "sigmoid"),
        ([None, 7, 5], "softmax", (), "none", "softmax"),
        ([None, None, None, 4], "sigmoid", ("a", "b", "c", "d"), "none", "sigmoid"),
    ],
)
def test_the_task_is_recognised(shape, activation, labels, task, shown):
    found = declared(shape, activation, labels=labels)
    assert found.task == task
    assert found.outputs[0].activation == shown
    assert found.threshold == (0.5 if task in ("binary", "multilabel") else None)


@pytest.mark.parametrize(
    ("shape", "task"),
    [
        ([None, 1, 1, 10], "classification"),
        ([None, None], "classification"),
        ([None, 1, 1], "binary"),
        ([None, None], "binary"),
        ([None, 1, 6], "multilabel"),
        ([None, 1], "multilabel"),
        ([None, 32, 32, 2], "regression"),
        ([None, 32, 32, 2], "none"),
    ],
)
def test_a_task_that_fits(shape, task):
    assert declared(shape, task=task).task == task


@pytest.mark.parametrize(
    ("shape", "activation", "task", "message", "hint"),
    [
        ([None, 2], "softmax", "binary", "has 2 values, 'binary' takes the one", "two labels"),
        ([None, 10], "none", "binary", "has 10 values", "task: classification"),
        ([None, 1], "sigmoid", "classification", "has 1 value", "task: binary"),
        ([None], "none", "classification", "has 1 value", "task: binary"),
        ([None, 8, 8, 5], "softmax", "classification", "has several axes", "leave the task out"),
        ([None, 8, 8, 1], "sigmoid", "binary", "has several axes", "leave the task out"),
        ([None, None, 5], "sigmoid", "multilabel", "has several axes", "leave the task out"),
    ],
)
def test_a_task_that_the_output_cannot_answer(shape, activation, task, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        declared(shape, activation, task=task)
    assert "'y'" in caught.value.message
    assert str(shape) in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_the_threshold_is_kept(threshold):
    assert declared([None, 1], "sigmoid", threshold=threshold).threshold == threshold


# ------------------------------------------------------------------ preprocessing by input


@pytest.mark.parametrize("value", ["0..1", {"preset": "0..1"}, {"x": "0..1"}])
def test_the_only_image_input_is_found(value):
    x, extra = declared([None, 10], preprocess=value).inputs
    assert extra.image is None
    assert (x.image.width, x.image.height, x.image.channels) == (8, 8, "gray")
    assert x.image.scale == (1 / 255,)


def test_an_input_that_is_no_image():
    with pytest.raises(ConfigError, match=r"shape \[None, 3\] of the input 'extra' is no image"):
        declared([None, 10], preprocess={"Extra!": "0..1"})


# ------------------------------------------------------------------ the declaration


def test_presets_and_what_overrides_them():
    found = image_spec(IMAGE, {"preset": "keras:resnet50", "channels": "rgb", "offset": -1})
    assert (found.width, found.height, found.channels) == (20, 28, "rgb")
    assert (found.scale, found.offset) == ((1.0,), (-1.0,))
    assert image_spec(IMAGE, "keras:resnet50").channels == "bgr"


@pytest.mark.parametrize("resize", RESIZE_METHODS)
@pytest.mark.parametrize("fit", FITS)
def test_what_is_accepted_can_be_run(resize, fit):
    found = image_spec(IMAGE, {"preset": "0..1", "resize": resize, "fit": fit, "pad_value": 255})
    pixels = np.random.default_rng(0).integers(0, 256, (40, 31, 3), dtype=np.uint8)
    tensor = preprocess(pixels, {**to_json(IMAGE), "image": to_json(found)})
    assert tensor.shape == (28, 20, 3)
    assert 0.2 < tensor.mean() < 0.9


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ((None, 28, 20), {"channels": "gray"}),
        ((None, 560), {"width": 20, "height": 28, "channels": "gray"}),
        ((None, 1680), {"width": 20, "height": 28, "channels": "rgb"}),
        ((None, 1, 28, 20), {"width": 20, "height": 28, "channels": "gray"}),
        ((None, None, 20, 3), {"width": 20, "height": 28, "channels": "rgb"}),
        ((None, 1, 28, 20, 1), {"width": 20, "height": 28, "channels": "gray"}),
    ],
)
def test_shapes_that_take_the_pixels(shape, value):
    spec = InputSpec("image", "image", shape, "float32")
    found = image_spec(spec, {"preset": "0..1", **value})
    pixels = np.random.default_rng(0).integers(0, 256, (28, 20, 3), dtype=np.uint8)
    tensor = preprocess(pixels, {**to_json(spec), "image": to_json(found)})
    wanted = [28 if size is None else size for size in shape[1:]]
    assert list(tensor.shape) == wanted


@pytest.mark.parametrize(
    ("spec", "value", "message", "hint"),
    [
        (IMAGE, {"resize": "bilinear"}, "resize 'bilinear' is not known", "'pillow:bilinear'"),
        (IMAGE, {"resize": "area"}, "resize 'area' is not known", "tf:nearest"),
        (IMAGE, {"resize": ["tf:nearest"]}, "resize .* is not known", "known:"),
        (IMAGE, {"fit": "cover"}, "fit 'cover' is not known", "stretch, crop, pad"),
        (IMAGE, {"channels": "RGB"}, "channels 'RGB' is not known", "gray, rgb, bgr"),
        (IMAGE, {"pad_value": 256}, "pad_value needs a whole number, 0 to 255", ""),
        (IMAGE, {"pad_value": -1}, "pad_value needs", ""),
        (IMAGE, {"pad_value": 0.5}, r"pad_value needs .*received 0\.5", ""),
        (IMAGE, {"pad_value": True}, "pad_value needs .*received True", ""),
        (IMAGE, {"width": 99}, r"images of 99 x 28 .*shape \[None, 28, 20, 3\]", "leave width"),
        (IMAGE, {"width": 28, "height": 20}, "images of 28 x 20", "leave width"),
        (IMAGE, {"width": 0}, "width needs a positive whole number, received 0", ""),
        (IMAGE, {"height": "28"}, "height needs a positive whole number, received '28'", ""),
        (IMAGE, {"channels": "gray"}, r"gray images .* have 1 channel", "leave width"),
        (GRAY, {"channels": "rgb"}, r"rgb images .* have 3 channel", "leave width"),
        (GRAY, "keras:vgg16", r"bgr images .* have 3 channel", "leave width"),
        (IMAGE, {"scale": [1.0, 2.0]}, r"scale needs 1 number or 3 \(rgb\), received 2", ""),
        (IMAGE, {"offset": []}, "offset needs 1 number or 3", ""),
        (IMAGE, {"scale": float("nan")}, "scale needs a finite number", ""),
        (IMAGE, {"offset": [0, float("inf"), 0]}, "offset needs a finite number", ""),
        (IMAGE, {"scale": "wide"}, "scale needs a finite number.*'wide'", ""),
        (IMAGE, {"scale": True}, "scale needs a finite number", ""),
        (IMAGE, {"scale": None}, "scale needs a finite number", ""),
        (IMAGE, {"colour": "rgb"}, "unknown key 'colour'", "known:"),
        (IMAGE, "0..2", "preset '0..2' is not known", "Presets"),
    ],
)
def test_declarations_that_are_refused(spec, value, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        image_spec(spec, value)
    assert caught.value.message.startswith("preprocess: ")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 3, 28, 20), r"\[28, 20, 3\]; the input 'image' has the shape \[None, 3, 28, 20\]"),
        ((None, 560), "images of 20 x 28"),
        ((None, None, None, 3), "several free axes"),
        ((None, 28, 20), "images of 20 x 28"),
    ],
)
def test_shapes_that_cannot_take_the_pixels(shape, message):
    spec = InputSpec("image", "image", shape, "float32")
    with pytest.raises(ConfigError, match=message):
        image_spec(spec, {"width": 20, "height": 28, "channels": "rgb"})


def test_numbers_may_be_texts():
    """YAML reads 1e-3, without a point, as text."""
    assert image_spec(IMAGE, {"scale": "1e-3"}).scale == (0.001,)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("0..255", True),
        ({"scale": [1, 1, 1]}, True),
        ("0..1", False),
        ({"scale": [1, 1, 2]}, False),
        ({"offset": -1}, False),
    ],
)
def test_a_uint8_input_takes_pixels(value, good):
    spec = InputSpec("image", "image", (None, 28, 20, 3), "uint8")
    if good:
        assert image_spec(spec, value).channels == "rgb"
        return
    with pytest.raises(ConfigError, match="is uint8: it takes pixels") as caught:
        image_spec(spec, value)
    assert "0..255" in caught.value.hint
