"""`packager diff` on bundles, `.tflite` files and TF.js models."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from packager import diff
from packager.bundle import read_json, write_json
from packager.diff import variables
from tests.conftest import DIGITS, packager

pytestmark = pytest.mark.tf

ONLY_LAYERS = ("--only", "tfjs/layers", "--no-verify", "--quiet", "--name", "digits")


def build_layers(model: Path, output: Path, *flags: object) -> Path:
    """A bundle of a TF.js layers model alone, which takes no TensorFlow to write."""
    ran = packager("build", model, *ONLY_LAYERS, "--output", output, *flags)
    assert ran.code == 0, ran.err
    return output / "digits" / "1"


@pytest.fixture(scope="module")
def layers_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    return build_layers(DIGITS / "model.keras", folder, "--preprocess", "0..1")


@pytest.fixture(scope="module")
def retrained(tmp_path_factory):
    """The digits model with other weights in `widen2_conv`."""
    folder = tmp_path_factory.mktemp("retrained")
    with zipfile.ZipFile(DIGITS / "model.keras") as archive:
        archive.extractall(folder)
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        changed = []
        file.visititems(lambda name, item: changed.append(name) if is_widest(item) else None)
        (name,) = changed
        file[name][...] = file[name][...] * 1.01
    with zipfile.ZipFile(folder / "retrained.keras", "w") as archive:
        for part in ("metadata.json", "config.json", "model.weights.h5"):
            archive.write(folder / part, part)
    return folder / "retrained.keras"


def is_widest(item):
    return isinstance(item, h5py.Dataset) and item.shape == (3, 3, 32, 64)


def test_two_builds_from_the_same_inputs_are_the_same_model(digits_bundle, tmp_path):
    ran = packager("build", "--config", DIGITS / "package.yaml", "--output", tmp_path, "--quiet")
    assert ran.code == 0, ran.err
    ran = packager("diff", digits_bundle, tmp_path / "digits")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "same model"), ran.out
    found = packager("diff", digits_bundle, tmp_path / "digits", "--json").json
    assert (found["same"], found["exit_code"], found["schema"]) == (True, 0, diff.SCHEMA)
    # Something was read, of every kind.
    side = diff.read(digits_bundle)
    assert len(side.files) == 8
    assert all(
        sum(t.values is not None for t in f.tensors.values()) > 10 for f in side.files.values()
    )


def test_a_retrained_layer_is_named(layers_bundle, retrained, tmp_path):
    other = build_layers(retrained, tmp_path, "--preprocess", "0..1")
    ran = packager("diff", layers_bundle, other, "--json")
    assert (ran.code, ran.json["changed_layers"]) == (1, ["widen2_conv"])
    assert [d["section"] for d in ran.json["differences"]] == ["weights"]
    assert ran.json["differences"][0]["changed"] == 3 * 3 * 32 * 64
    text = packager("diff", layers_bundle, other)
    assert "layers: widen2_conv" in text.out
    lone = packager("diff", *(b / "tfjs/layers/model.json" for b in (layers_bundle, other)))
    assert (lone.code, "layers: widen2_conv" in lone.out) == (1, True)


def test_another_preprocessing_is_said_first(layers_bundle, retrained, tmp_path):
    other = build_layers(retrained, tmp_path, "--preprocess", "-1..1")
    ran = packager("diff", layers_bundle, other)
    assert ran.code == 1
    assert ran.out.startswith("preprocessing: 2 differences\n  image: offset [0] -> [-1]\n")
    assert "layers: widen2_conv" in ran.out


def test_labels_and_metrics_and_missing_artifacts(digits_bundle, tmp_path):
    other = tmp_path / "digits"
    shutil.copytree(digits_bundle, other)
    manifest = read_json(other / "manifest.json")
    manifest["labels"][3] = "three"
    manifest["artifacts"] = [a for a in manifest["artifacts"] if a["id"] != "tflite/int8"]
    manifest["artifacts"][0]["metrics"]["accuracy"] = 0.5
    write_json(manifest, other / "manifest.json")
    ran = packager("diff", digits_bundle, other)
    assert ran.code == 1
    for line in (
        "class 3: name 3 -> three",
        "tflite/int8: only in A",
        "saved_model: accuracy 0.988 -> 0.5",
    ):
        assert line in ran.out


def test_rounding_alone_is_no_other_model(digits_bundle, tmp_path):
    other = tmp_path / "digits"
    shutil.copytree(digits_bundle, other)
    manifest = read_json(other / "manifest.json")
    manifest["artifacts"][0]["metrics"]["max_abs_diff"] *= 1.5
    write_json(manifest, other / "manifest.json")
    ran = packager("diff", digits_bundle, other)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "same model")
    assert "max_abs_diff" in ran.out


def test_an_integer_file_against_a_float_one(digits_bundle):
    folder = digits_bundle / "tflite"
    ran = packager("diff", folder / "digits.int8.tflite", folder / "digits.int8_float_io.tflite")
    assert ran.code == 1
    assert "kind nothing -> QUANTIZE" in ran.out
    assert "image: dtype int8 -> float32" in ran.out
    assert "scale [0.00392157] zero_point [-128] -> nothing" in ran.out


def test_variables_are_read_by_name(digits_bundle):
    found = variables.read(digits_bundle).tensors
    assert found["digit/kernel"].shape == (64, 10)
    with zipfile.ZipFile(DIGITS / "model.keras") as archive:
        archive_bytes = archive.read("model.weights.h5")
    path = digits_bundle.parent / "weights.h5"
    path.write_bytes(archive_bytes)
    with h5py.File(path) as file:
        stored = []
        file.visititems(lambda name, item: stored.append(item[...]) if is_widest(item) else None)
    path.unlink()
    np.testing.assert_array_equal(found["widen2_conv/kernel"].values, stored[0].reshape(-1))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.tflite", b"abc", "not a .tflite file"),
        ("x.tflite", b"\x1c\0\0\0TFL3" + b"\xff" * 40, "is damaged"),
        ("model.json", b"{}", "has no modelTopology"),
        ("model.json", b"{", "cannot be read"),
        ("model.json", b'{"modelTopology": {"config": 3}}', "not a TF.js model"),
        ("nothing.txt", b"", "is not a bundle"),
    ],
)
def test_what_cannot_be_compared_is_refused(digits_bundle, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    for sides in ((tmp_path / name, digits_bundle), (digits_bundle, tmp_path / name)):
        ran = packager("diff", *sides, "--json")
        assert ran.code == 2, ran.err
        assert said in ran.json["error"] or "different kinds" in ran.json["error"]
        assert "Traceback" not in ran.err


def test_two_kinds_are_refused(digits_bundle):
    tflite = digits_bundle / "tflite/digits.int8.tflite"
    assert packager("diff", tflite, digits_bundle).code == 2
    assert packager("diff", tflite, digits_bundle / "tfjs/layers/model.json").code == 2


def test_without_a_reader_of_tflite_files(digits_bundle, tmp_path):
    blocked = tmp_path / "ai_edge_litert"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ImportError('no', name='ai_edge_litert')\n")
    tflite = digits_bundle / "tflite/digits.int8.tflite"
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    ran = packager("diff", tflite, tflite, "--json", PYTHONPATH=path)
    assert ran.code == 4
    assert "ai_edge_litert is missing" in ran.json["error"]


def test_tensorflow_is_not_imported(digits_bundle):
    import subprocess

    code = (
        "import sys; from pathlib import Path; from packager import diff;"
        f"side = diff.read(Path({str(digits_bundle)!r})); diff.compare(side, side);"
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert json.loads(done.stdout) == []
