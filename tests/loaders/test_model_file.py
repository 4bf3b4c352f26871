"""Recognising model sources, good and bad, without TensorFlow."""

import json
import zipfile

import pytest

from packager.errors import ModelError
from packager.loaders.model_file import identify
from packager.loaders.names import sanitise

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    ("name", "expected", "saved_by"),
    [
        ("cnn.keras", "keras3", "keras 3"),
        ("renamed_h5.model", "keras_h5", "keras 3"),
        ("exported", "saved_model", "tensorflow"),
    ],
)
def test_content_decides_the_format(models, name, expected, saved_by):
    found = identify(str(models / name))
    assert found.format == expected
    assert found.saved_by.startswith(saved_by)
    assert found.size_bytes > 1000
    assert len(found.sha256) == 64


def test_a_callable_is_recognised_by_its_form():
    assert identify("package.module:function").format == "callable"


def test_the_default_name_is_the_file_name_without_extension(models):
    assert identify(str(models / "cnn.keras")).name == "cnn"


def refused(path, *texts):
    with pytest.raises(ModelError) as caught:
        identify(str(path))
    for text in texts:
        assert text in caught.value.message + caught.value.hint
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_missing_and_empty(tmp_path):
    refused(tmp_path / "no.keras", "does not exist")
    (tmp_path / "empty.keras").touch()
    refused(tmp_path / "empty.keras", "is empty", "0 bytes")


def test_text_named_keras(tmp_path):
    (tmp_path / "text.keras").write_text("this is not a model\n")
    refused(tmp_path / "text.keras", "is not a model")


@pytest.mark.parametrize("name", ["cnn.keras", "renamed_h5.model"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_files(models, tmp_path, name, share):
    content = (models / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * share)])
    refused(tmp_path / name, "damaged", "copy it again")


def test_a_flipped_byte_in_an_archive(models, tmp_path):
    content = bytearray((models / "cnn.keras").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "cnn.keras").write_bytes(content)
    refused(tmp_path / "cnn.keras", "damaged")


def test_a_lambda_layer_is_named(models):
    refused(models / "lambda.keras", "'tripled'", "Lambda", "--allow-unsafe-code")
    found = identify(str(models / "lambda.keras"), allow_unsafe_code=True)
    assert found.format == "keras3"


def test_a_folder_that_is_no_saved_model(tmp_path):
    refused(tmp_path, "without saved_model.pb")
    (tmp_path / "saved_model.pb").touch()
    refused(tmp_path, "empty")


def test_a_zip_that_is_no_model(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("config.json", json.dumps({}))
    refused(tmp_path / "a.zip", "no .keras archive", "metadata.json")


def test_a_tflite_file_is_an_artifact(tmp_path):
    (tmp_path / "a.keras").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    refused(tmp_path / "a.keras", "TFLite")


def test_an_archive_of_keras_2_is_told_from_one_of_keras_3(models, tmp_path):
    with zipfile.ZipFile(models / "cnn.keras") as source:
        members = {name: source.read(name) for name in source.namelist()}
    members["metadata.json"] = json.dumps({"keras_version": "2.15.0"}).encode()
    with zipfile.ZipFile(tmp_path / "old.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    found = identify(str(tmp_path / "old.keras"))
    assert (found.format, found.saved_by) == ("keras2_archive", "keras 2.15.0")
    assert found.is_keras2


def test_weights_need_an_architecture(models, tmp_path):
    weights = models / "only.weights.h5"
    refused(weights, "holds weights only", "--architecture")
    (tmp_path / "a.json").write_text('{"class_name": "Sequential", "config": {}}')
    found = identify(str(weights), architecture=str(tmp_path / "a.json"))
    assert (found.format, found.architecture) == ("keras_weights", str(tmp_path / "a.json"))
    by_function = identify(str(weights), architecture="package.module:function")
    assert by_function.saved_by == "keras 3 (not recorded)"
    assert by_function.sha256 != found.sha256
    for name, content in (("b.json", "{}"), ("c.json", "no json")):
        (tmp_path / name).write_text(content)
        with pytest.raises(ModelError, match="neither the JSON of a Keras model"):
            identify(str(weights), architecture=str(tmp_path / name))
    refused(tmp_path / "a.json", "without its weights", "--architecture")
    with pytest.raises(ModelError, match="holds a whole model"):
        identify(str(models / "cnn.keras"), architecture="package.module:function")


def test_code_in_an_architecture_is_named(models, tmp_path):
    layer = {"class_name": "Lambda", "config": {"name": "double", "function": "4wEA"}}
    described = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    (tmp_path / "a.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match="'double' is a Lambda"):
        identify(str(models / "only.weights.h5"), architecture=str(tmp_path / "a.json"))


def test_a_saved_model_tells_who_wrote_it(models, shared):
    assert identify(str(models / "exported")).saved_by.startswith("tensorflow 2.")
    old = identify(str(shared / "models/basic_pitch/nmp_saved_model"))
    assert old.saved_by == "keras 2.4.0, tensorflow 2.4.1"
    first = shared / "tfserving/models/saved_model_half_plus_three/00000123"
    assert identify(str(first)).saved_by == "tensorflow 1.0.0-rc2"


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_a_cut_saved_model(models, tmp_path, share):
    content = (models / "exported" / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(content[: int(len(content) * share)])
    refused(tmp_path, "saved_model.pb is damaged")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["image"], ["image"]),
        (["my input", "my-input"], ["my_input", "my_input_1"]),
        (["1x"], ["input_1x"]),
        (["입력"], ["input"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["class"], ["input_class"]),
        (["dense/BiasAdd:0"], ["dense_BiasAdd_0"]),
        (["__x__"], ["x"]),
        (["a_1", "a", "a"], ["a_1", "a", "a_2"]),
    ],
)
def test_names_become_unique_identifiers(given, expected):
    assert sanitise(given, "input") == expected
    assert all(name.isidentifier() for name in expected)
