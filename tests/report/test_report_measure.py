"""What the report shows beyond the metrics: histograms, confusions, pictures."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from packager.bundle import ImageSpec, InputSpec, OutputSpec
from packager.report import measure
from packager.tflite_names import layer_of, plain
from packager.verify.metrics import Task

SCORES = OutputSpec("y", "y", (None, 3), "float32", "softmax")
TASK = Task("classification", (SCORES,))


def one_hot(*classes, size=3):
    return np.eye(size, dtype=np.float32)[list(classes)]


def test_a_confusion_matrix_counts_labels_by_answers():
    outputs = one_hot(0, 1, 2, 2, 1)
    found = measure.confusion(TASK, outputs, np.array([0, 1, 2, 1, 1]))
    assert found["matrix"] == [[1, 0, 0], [0, 2, 1], [0, 0, 1]]
    assert found["most"] == [{"target": 1, "answer": 2, "count": 1}]


def test_many_classes_have_a_list_in_place_of_a_matrix():
    outputs = one_hot(5, 5, 7, size=4000)
    found = measure.confusion(TASK, outputs, np.array([6, 6, 7]))
    assert "matrix" not in found
    assert found["classes"] == 4000
    assert found["most"] == [{"target": 6, "answer": 5, "count": 2}]


def test_differences_fall_into_the_right_bins():
    theirs = np.zeros((4, 1), np.float32)
    ours = {"exact": theirs, "off": np.float32([[0.0], [2e-3], [2e-3], [0.5]])}
    found = measure.differences(theirs, ours)
    edges, shares = np.array(found["edges"]), found["shares"]
    assert shares["exact"][0] == 1.0
    for value, share in ((2e-3, 0.5), (0.5, 0.25)):
        bin_ = int(np.searchsorted(edges, value)) - 1
        assert shares["off"][bin_] == share
        assert edges[bin_] <= value <= edges[bin_ + 1]
    assert all(sum(s) == pytest.approx(1.0) for s in shares.values())


def test_large_differences_are_inside_the_edges():
    theirs = np.zeros((1, 1), np.float32)
    found = measure.differences(theirs, {"a": np.float32([[750.0]])})
    assert found["edges"][-1] >= 750.0
    assert found["shares"]["a"][-1] == 1.0


def test_other_answers_come_before_larger_differences():
    theirs = np.float32([[0.51, 0.49, 0], [0.9, 0.1, 0], [1, 0, 0]])
    ours = np.float32([[0.49, 0.51, 0], [0.6, 0.4, 0], [1, 0, 0]])
    assert measure._worst_rows(TASK, theirs, ours) == [0, 1]


@pytest.mark.parametrize("channels", ["gray", "rgb", "bgr"])
def test_a_picture_shows_the_pixels_that_went_in(channels):
    count = 1 if channels == "gray" else 3
    image = ImageSpec(5, 4, channels, scale=(1 / 127.5,), offset=(-1.0,))
    spec = InputSpec("x", "x", (None, 4, 5, count), "float32", image)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, count), dtype=np.uint8)
    address = measure.picture((pixels / 127.5 - 1).astype(np.float32), spec)
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))).reshape(pixels.shape)
    np.testing.assert_array_equal(shown, pixels[..., ::-1] if channels == "bgr" else pixels)


def test_a_large_picture_is_made_small():
    image = ImageSpec(640, 480, "rgb")
    spec = InputSpec("x", "x", (None, 480, 640, 3), "float32", image)
    address = measure.picture(np.full((480, 640, 3), 200, np.float32), spec)
    shown = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert shown.size == (96, 72)
    assert np.abs(np.asarray(shown, int) - 200).max() <= 2


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("digits_1/stem_1/convolution", "stem"),
        ("m_1/relu_1/Relu;m_1/norm_1/add_1;m_1/conv_1/convolution", "conv"),
        ("m_1/block_1/conv2d_3_1/convolution", "block/conv2d_3"),
        ("digit", "digit"),
        ("", ""),
    ],
)
def test_layers_are_read_from_tensor_names(name, layer):
    assert layer_of(plain(name)) == layer
