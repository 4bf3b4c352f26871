"""Every kind of data set, as model inputs and targets, and what is said about bad ones."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packager.datasets import open_dataset
from packager.datasets.targets import Answer
from packager.errors import DataError

IMAGE = {
    "name": "image",
    "shape": [None, 4, 4, 1],
    "dtype": "float32",
    "image": {
        "width": 4,
        "height": 4,
        "channels": "gray",
        "resize": "pillow:bilinear",
        "fit": "stretch",
        "pad_value": 0,
        "scale": [1 / 255],
        "offset": [0.0],
    },
}
FEATURES = {"name": "features", "shape": [None, 3], "dtype": "float32"}
PAIR = [{**IMAGE, "name": "left"}, {"name": "right", "shape": [None, 2], "dtype": "int32"}]
PIXELS = np.random.default_rng(3).integers(0, 256, (6, 4, 4), dtype=np.uint8)
LABELS = ["ant", "bee", "cat"]


CLASSES = Answer("classification", (3,))
ANY = Answer("none", (3,))
VALUE = Answer("regression", (1,))


def opened(source, inputs=(IMAGE,), labels=(), limit=None, answer=None):
    answer = answer or (Answer("classification", (len(labels),)) if labels else ANY)
    return open_dataset(str(source), inputs=inputs, labels=labels, limit=limit, answer=answer)


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def all_inputs(dataset, name="image"):
    return np.stack([dataset.sample(i)[name] for i in range(dataset.count)])


@pytest.fixture
def class_folders(tmp_path):
    for i, name in enumerate(["cat", "cat", "ant", "ant", "ant", "cat"]):
        save_image(tmp_path / "set" / name / f"{i}.png", PIXELS[i])
    return tmp_path / "set"


def expected(pixels):
    return (pixels[..., None].astype(np.float64) / 255).astype(np.float32)


# ------------------------------------------------------------------ folders


def test_flat_folder_has_no_targets(tmp_path):
    for i, pixels in enumerate(PIXELS):
        save_image(tmp_path / f"{i}.png", pixels)
    (tmp_path / ".hidden.png").write_bytes(b"no image")
    (tmp_path / "LICENSE").write_text("text")
    found = opened(tmp_path, labels=LABELS)
    assert (found.count, found.targets, found.source) == (6, None, tmp_path.name)
    np.testing.assert_array_equal(all_inputs(found), expected(PIXELS))
    assert [raw["image"].name for raw in found.images()] == [f"{i}.png" for i in range(6)]


def test_class_folders_are_matched_to_labels(class_folders):
    found = opened(class_folders, labels=LABELS)
    assert found.targets.tolist() == [0, 0, 0, 2, 2, 2]
    assert found.targets.dtype == np.int64
    np.testing.assert_array_equal(all_inputs(found), expected(PIXELS[[2, 3, 4, 0, 1, 5]]))


def test_class_folders_are_sorted_without_labels(class_folders):
    found = opened(class_folders)
    assert found.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.classes == ("ant", "cat")


def test_class_folders_of_a_binary_model_with_one_label(class_folders):
    found = opened(class_folders, labels=["cat"], answer=Answer("binary", (1,)))
    assert found.targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_class_folders_need_no_labels_for_calibration(class_folders):
    found = open_dataset(str(class_folders), inputs=[IMAGE], labels=["x", "y"])
    assert (found.count, found.targets) == (6, None)


def test_decomposed_korean_folder_names_match(tmp_path):
    save_image(tmp_path / unicodedata.normalize("NFD", "고양이") / "a.png", PIXELS[0])
    assert opened(tmp_path, labels=["개", "고양이"]).targets.tolist() == [1]


@pytest.mark.parametrize(
    ("names", "answer", "message"),
    [
        (["ant", "cat"], CLASSES, r"2 class folders \(ant, cat\), but 3 classes"),
        (["2", "9", "10"], CLASSES, r"sorted as texts \(10, 2, 9\) they are in another order"),
        (["ant", "cat"], VALUE, "the task is a regression"),
    ],
)
def test_class_folders_whose_order_is_not_known(tmp_path, names, answer, message):
    for name in names:
        save_image(tmp_path / name / "a.png", PIXELS[0])
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path, answer=answer)
    assert caught.value.hint


def test_class_folders_with_texts_for_numbers(tmp_path):
    for name in ("2", "9", "10"):
        save_image(tmp_path / name / "a.png", PIXELS[0])
    labels = [str(number) for number in range(11)]
    assert opened(tmp_path, labels=labels).targets.tolist() == [10, 2, 9]


def test_unknown_class_folder(class_folders):
    with pytest.raises(DataError, match="'cat' is not one of the 2 labels") as caught:
        opened(class_folders, labels=["ant", "cats"])
    assert "Did you mean 'cats'" in caught.value.hint


def test_images_beside_class_folders(class_folders):
    save_image(class_folders / "stray.png", PIXELS[0])
    with pytest.raises(DataError, match="1 images beside class folders"):
        opened(class_folders, labels=LABELS)


def test_one_unreadable_image_among_good_ones(class_folders, tmp_path):
    (class_folders / "cat" / "5.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    found = opened(class_folders, labels=LABELS)
    with pytest.raises(DataError, match=r"5\.png"):
        found.write_inputs(tmp_path)


def test_folder_without_images(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(DataError, match=r"no images here; looked for .*\.png"):
        opened(tmp_path)


def test_missing_source(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        opened(tmp_path / "none")


def test_images_need_a_declaration(tmp_path):
    save_image(tmp_path / "a.png", PIXELS[0])
    with pytest.raises(DataError, match="not declared") as caught:
        opened(tmp_path, inputs=[{**IMAGE, "image": None}])
    for preset in ("0..1", "-1..1", "0..255", "keras:resnet50"):
        assert preset in caught.value.hint


def test_pixel_arrays_need_a_declaration(tmp_path):
    np.savez(tmp_path / "a.npz", x=PIXELS)
    with pytest.raises(DataError, match="not declared"):
        opened(tmp_path / "a.npz", inputs=[{**IMAGE, "image": None}])


# ------------------------------------------------------------------ .npz and .npy


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["x", "image"])
def test_npz_of_pixels(tmp_path, save, name):
    save(tmp_path / "a.npz", **{name: PIXELS}, y=np.array([0, 2, 1, 1, 0, 2], np.uint8))
    found = opened(tmp_path / "a.npz", labels=LABELS)
    assert found.targets.tolist() == [0, 2, 1, 1, 0, 2]
    np.testing.assert_array_equal(all_inputs(found), expected(PIXELS))
    np.testing.assert_array_equal(found.raw(3)["image"], PIXELS[3])


def test_float_arrays_are_model_input(tmp_path):
    values = np.random.default_rng(0).normal(size=(5, 4, 4)) * 3
    np.save(tmp_path / "a.npy", values)
    found = opened(tmp_path / "a.npy")
    np.testing.assert_array_equal(all_inputs(found), values[..., None].astype(np.float32))
    assert found.targets is None


def test_several_inputs_by_name(tmp_path):
    right = np.arange(12, dtype=np.int64).reshape(6, 2)
    np.savez(tmp_path / "a.npz", left=PIXELS, right=right, y=np.linspace(0.5, 3, 6))
    found = opened(tmp_path / "a.npz", inputs=PAIR, answer=VALUE)
    np.testing.assert_array_equal(all_inputs(found, "left"), expected(PIXELS))
    np.testing.assert_array_equal(all_inputs(found, "right"), right)
    assert all_inputs(found, "right").dtype == np.int32
    np.testing.assert_allclose(found.targets, np.linspace(0.5, 3, 6)[:, None], rtol=1e-6)


def test_text_targets_are_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=PIXELS[:3], y=np.array(["cat", "ant", "bee"]))
    assert opened(tmp_path / "a.npz", labels=LABELS).targets.tolist() == [2, 0, 1]


def test_multilabel_targets_keep_their_shape(tmp_path):
    y = np.array([[1, 0, 1], [0, 1, 1]], np.uint8)
    np.savez(tmp_path / "a.npz", x=PIXELS[:2], y=y)
    found = opened(tmp_path / "a.npz", labels=LABELS, answer=Answer("multilabel", (3,)))
    np.testing.assert_array_equal(found.targets, y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": PIXELS}, r"expected the arrays x .*found data"),
        ({"x": PIXELS, "labels": np.zeros(6)}, r"and y for labels.*found labels"),
        ({"x": PIXELS, "y": np.arange(5) % 3}, "6 samples, but 5 targets"),
        ({"x": PIXELS, "y": np.full(6, 3)}, "class numbers from 3 to 3; .*with 3 classes"),
        ({"x": PIXELS, "y": np.full(6, -1)}, "-1 to -1; .*they must be 0 to 2"),
        ({"x": PIXELS, "y": np.full(6, 0.5)}, "expected class numbers, received fractions"),
        ({"x": PIXELS, "y": np.full(6, np.nan)}, "targets hold NaN"),
        ({"x": PIXELS, "y": np.array(["dog"] * 6)}, "'dog' is not one of the 3 labels"),
        ({"x": PIXELS[:0], "y": np.zeros(0, int)}, "no samples"),
        ({"x": np.float32(PIXELS[:, :3])}, r"expects float32 \[4, 4, 1\], received float32 \[3, 4"),
        ({"x": np.full((2, 4, 4), np.nan)}, "sample 0: the input 'image' holds NaN"),
        ({"x": np.float32(3)}, "received a single value"),
        ({"x": PIXELS + 1j}, "expected numbers or text, received complex128"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "a.npz", labels=LABELS)


def test_object_arrays_are_never_loaded(tmp_path):
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(tmp_path / "a.npz", x=objects)
    np.save(tmp_path / "a.npy", objects)
    for name in ("a.npz", "a.npy"):
        with pytest.raises(DataError, match="cannot be read") as caught:
            opened(tmp_path / name)
        assert "object arrays are never loaded" in caught.value.hint


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.csv"])
def test_empty_files(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match="the file is empty"):
        opened(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_truncated_files(tmp_path, name):
    (np.savez if name.endswith("z") else np.save)(tmp_path / name, PIXELS)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a\.np.: cannot be read"):
        opened(tmp_path / name)


def test_other_files_are_no_data_sets(tmp_path):
    save_image(tmp_path / "a.png", PIXELS[0])
    with pytest.raises(DataError, match="not a data set") as caught:
        opened(tmp_path / "a.png")
    assert "folder of the images" in caught.value.hint


def test_integers_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "a.npz", left=PIXELS, right=np.full((6, 2), 2**40))
    with pytest.raises(DataError, match="values of int64 do not fit into int32"):
        opened(tmp_path / "a.npz", inputs=PAIR)
    np.savez(tmp_path / "a.npz", left=PIXELS, right=np.full((6, 2), 0.5))
    with pytest.raises(DataError, match="'right' expects int32, received float64"):
        opened(tmp_path / "a.npz", inputs=PAIR)


# ------------------------------------------------------------------ .csv


def write_csv(folder, text):
    path = folder / "a.csv"
    path.write_bytes(text.encode())
    return path


def test_csv_of_features_with_labels(tmp_path):
    path = write_csv(tmp_path, "\ufeffa,b,label,c\r\n1,2.5,cat,-3\r\n4,5,ant,1e-3\r\n\r\n")
    found = opened(path, inputs=[FEATURES], labels=LABELS)
    np.testing.assert_allclose(all_inputs(found, "features"), [[1, 2.5, -3], [4, 5, 1e-3]])
    assert found.targets.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("values", "expected_targets", "kind"),
    [(("0.5", "2"), [0.5, 2], "f"), (("3", "1"), [3, 1], "i")],
)
def test_csv_targets_without_labels(tmp_path, values, expected_targets, kind):
    path = write_csv(tmp_path, "a,b,c,Target\n1,2,3,{}\n4,5,6,{}\n".format(*values))
    found = opened(path, inputs=[FEATURES])
    assert found.targets.tolist() == expected_targets
    assert found.targets.dtype.kind == kind


def test_csv_of_image_paths(tmp_path):
    save_image(tmp_path / "images/a.png", PIXELS[0])
    save_image(tmp_path / "images/b.png", PIXELS[1])
    path = write_csv(tmp_path, "path,label\nimages/b.png,bee\nimages/a.png,2\n")
    found = opened(path, labels=LABELS)
    np.testing.assert_array_equal(all_inputs(found), expected(PIXELS[[1, 0]]))
    assert found.targets.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,x\n", r"a\.csv:2: not a number.*'x'"),
        ("a,b,c\n1,2,3\n1,2\n", r"a\.csv:3: expected 3 columns, received 2"),
        ("a,b\n1,2\n", r"2 feature columns \(a, b\), but the input 'features'"),
        ("a,b,c,label\n1,2,3,dog\n", "'dog' is not one of the 3 labels"),
        ("a,b,c\n", "no samples"),
        ("a,b,c\n1,2,nan\n", "holds NaN"),
        ("path\nnone.png\n", r"none\.png"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        inputs = [IMAGE] if text.startswith("path") else [FEATURES]
        opened(write_csv(tmp_path, text), inputs=inputs, labels=LABELS)


def test_one_input_sources_name_the_others(tmp_path):
    with pytest.raises(DataError, match="feeds one input, but the model has left, right"):
        opened(write_csv(tmp_path, "a\n1\n"), inputs=PAIR)


# ------------------------------------------------------------------ functions

MODULE = """
import numpy as np

def alone():
    for i in range(5):
        yield np.full((4, 4, 1), i / 4, np.float32)

def labelled():
    return [(sample, i % 3) for i, sample in enumerate(alone())]

def pairs():
    for i in range(3):
        yield {"left": np.full((4, 4), 50 * i, np.uint8), "right": [i, -i]}, float(i)

def endless():
    while True:
        yield np.ones((4, 4, 1), np.float32)

def failing():
    yield np.ones((4, 4, 1), np.float32)
    raise RuntimeError("camera unplugged")

def ragged():
    yield np.ones((4, 4, 1), np.float32)
    yield np.ones((4, 5, 1), np.float32)

def half_labelled():
    yield np.ones((4, 4, 1), np.float32), 1
    yield np.ones((4, 4, 1), np.float32)

def objects():
    yield np.array([object()])

def nothing():
    return []

not_a_function = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"samples_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_function_without_targets(module):
    found = opened(f"{module}:alone")
    assert (found.source, found.count, found.targets) == (f"{module}:alone", 5, None)
    np.testing.assert_array_equal(all_inputs(found)[:, 0, 0, 0], [0, 0.25, 0.5, 0.75, 1])


def test_function_with_targets(module):
    assert opened(f"{module}:labelled", labels=LABELS).targets.tolist() == [0, 1, 2, 0, 1]


def test_function_with_dicts(module):
    found = opened(f"{module}:pairs", inputs=PAIR)
    np.testing.assert_array_equal(all_inputs(found, "right"), [[0, 0], [1, -1], [2, -2]])
    np.testing.assert_allclose(all_inputs(found, "left")[2], 100 / 255, rtol=1e-6)
    assert found.targets.tolist() == [0.0, 1.0, 2.0]


def test_limit_ends_an_endless_function(module):
    assert opened(f"{module}:endless", limit=7).count == 7


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        ("failing", [IMAGE], "failed: RuntimeError: camera unplugged"),
        ("ragged", [IMAGE], r"sample 1: expected float32 \(4, 4, 1\) as in sample 0"),
        ("half_labelled", [IMAGE], "1 of 2 samples have a target"),
        ("objects", [IMAGE], "expected numbers or text, received object"),
        ("nothing", [IMAGE], "no samples"),
        ("none", [IMAGE], "has no function 'none'"),
        ("not_a_function", [IMAGE], "has no function"),
        ("alone", PAIR, r"expected a dict with \['left', 'right'\], received a ndarray"),
    ],
)
def test_bad_functions(module, function, inputs, message):
    with pytest.raises(DataError, match=message):
        opened(f"{module}:{function}", inputs=inputs)


def test_module_that_cannot_be_imported():
    with pytest.raises(DataError, match="'no_such_module_here' cannot be imported: ModuleNotFound"):
        opened("no_such_module_here:f")


def test_code_that_leaves_does_not_end_the_build(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "leaves_later.py").write_text("import sys\n\n\ndef f():\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match="'leaving' cannot be imported: SystemExit"):
        opened("leaving:f")
    with pytest.raises(DataError, match="failed: SystemExit"):
        opened("leaves_later:f")


def test_a_flipped_byte_in_a_compressed_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(50, 28, 28, 1)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz"):
        opened(path)


def test_classes_that_a_module_imports_from_keras_are_not_its_own(tmp_path, monkeypatch):
    from packager.user_code import load_objects

    (tmp_path / "own_layers.py").write_text(
        "Dense = type('Dense', (), {'__module__': 'keras.src.layers.core.dense'})\n\n\n"
        "class Own(Dense):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert set(load_objects(["own_layers"], DataError)) == {"Own"}


def text_input(shape=(None,)):
    return [{"name": "word", "shape": list(shape), "dtype": "string"}]


@pytest.mark.parametrize("kind", ["U", "S"])
def test_texts_become_bytes(tmp_path, kind):
    words = np.array(["red", "größer", ""]) if kind == "U" else np.array([b"red", b"\xff\x01", b""])
    np.savez(tmp_path / "x.npz", x=words)
    data = opened(tmp_path / "x.npz", inputs=text_input())
    wanted = [w.encode() if isinstance(w, str) else w for w in words.tolist()]
    assert [data.sample(i)["word"].item() for i in range(3)] == wanted
    assert data.sample(0)["word"].shape == ()
    data.write_inputs(tmp_path)
    assert np.load(tmp_path / "word.npy").tolist() == wanted


def test_texts_of_a_function_may_differ_in_length(tmp_path, monkeypatch):
    (tmp_path / "several_words.py").write_text(
        "import numpy as np\n\n\ndef words():\n"
        "    yield np.array('a')\n    yield np.array('longer')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = opened("several_words:words", inputs=text_input())
    assert [data.sample(i)["word"].item() for i in range(2)] == [b"a", b"longer"]


def test_bad_texts(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array(["x" * 4097]))
    with pytest.raises(DataError, match="more than 4096 bytes"):
        opened(tmp_path / "x.npz", inputs=text_input()).sample(0)
    np.savez(tmp_path / "y.npz", x=np.array([1.0]))
    with pytest.raises(DataError, match="expects text, received float64"):
        opened(tmp_path / "y.npz", inputs=text_input()).sample(0)
    np.savez(tmp_path / "z.npz", x=np.array([["a"]], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cannot be read|object"):
        opened(tmp_path / "z.npz", inputs=text_input()).sample(0)


def test_a_single_number_stays_one(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(3, dtype=np.float32))
    data = opened(tmp_path / "x.npz", inputs=[{"name": "x", "shape": [None], "dtype": "float32"}])
    assert data.sample(1)["x"].shape == ()
    data.write_inputs(tmp_path)
    assert np.load(tmp_path / "x.npy").shape == (3,)


# ------------------------------------------------------------------ the data set


def test_limit_chooses_from_all_classes(tmp_path):
    x = np.random.default_rng(1).integers(0, 256, (300, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.repeat([0, 1, 2], 100))
    found = opened(tmp_path / "a.npz", labels=LABELS, limit=60)
    assert found.count == 60
    assert np.bincount(found.targets).min() >= 10
    where = [np.flatnonzero((x == raw["image"]).all(axis=(1, 2)))[0] for raw in found.images()]
    assert [number // 100 for number in where] == found.targets.tolist()
    assert len(set(where)) == 60


def test_write_inputs(tmp_path):
    np.savez(tmp_path / "a.npz", left=PIXELS, right=np.arange(12).reshape(6, 2))
    found = opened(tmp_path / "a.npz", inputs=PAIR)
    paths = found.write_inputs(tmp_path)
    left, right = (np.load(paths[name], mmap_mode="r") for name in ("left", "right"))
    assert (left.dtype, right.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(left, expected(PIXELS))
    np.testing.assert_array_equal(right, np.arange(12).reshape(6, 2))
    found.write_inputs(tmp_path, [4, 1])
    np.testing.assert_array_equal(np.load(tmp_path / "left.npy"), expected(PIXELS[[4, 1]]))


def test_sha256_is_of_the_content(tmp_path):
    for folder, order in (("one", [0, 1, 2]), ("two", [2, 0, 1])):
        for name, i in zip("abc", order, strict=True):
            save_image(tmp_path / folder / f"{name}.png", PIXELS[i])
    one, two = (opened(tmp_path / name) for name in ("one", "two"))
    assert one.sha256 == two.sha256
    assert len(one.sha256) == 64
    save_image(tmp_path / "two" / "a.png", PIXELS[5])
    assert opened(tmp_path / "two").sha256 != one.sha256


def test_equal_inputs_of_different_sources_have_equal_digests(tmp_path):
    save_image(tmp_path / "set/a.png", PIXELS[2])
    np.savez(tmp_path / "a.npz", x=PIXELS)
    images, arrays = opened(tmp_path / "set"), opened(tmp_path / "a.npz")
    assert images.digest(0) == arrays.digest(2)
    assert images.digest(0) != arrays.digest(3)


def test_the_digits_example():
    data = Path(__file__).resolve().parents[2] / "examples" / "digits" / "data"
    spec = {**IMAGE, "shape": [None, 28, 28, 1], "image": {**IMAGE["image"], "width": 28}}
    spec["image"]["height"] = 28
    found = opened(data / "evaluation.npz", inputs=[spec], labels=[str(i) for i in range(10)])
    assert found.count == 1000
    assert np.bincount(found.targets).min() >= 80
    assert found.sample(0)["image"].max() == 1.0
