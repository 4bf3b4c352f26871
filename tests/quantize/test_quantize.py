"""Post-training quantization: every recipe, operator by operator, on both runtimes."""

import contextlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from packager.children import Child
from packager.errors import ConversionError, UnsupportedError
from packager.quantize.recipes import CALIBRATED, RECIPES
from tests.conftest import ROOT
from tests.quantize.build_ops import LAYERS

pytestmark = pytest.mark.tf

LEGACY = ROOT / ".venv-edge-legacy" / "bin" / "python"
# Largest difference from the float model, as a share of the output's range.
LIMITS = {
    "float32": 1e-5,
    "float16": 2e-3,
    "dynamic_int8": 0.03,
    "int8": 0.03,
    "int8_float_io": 0.03,
    "int16x8": 0.01,
}
WITH_WEIGHTS = {
    "conv", "pointwise", "strided", "dilated", "depthwise", "dense", "transposed", "separable",
    "flat_dense",
}  # fmt: skip
# A mode that would change nothing is refused: no weights, or no operator with an integer form.
REFUSED = {
    *(f"{n}.{m}" for n in LAYERS for m in ("float16", "dynamic_int8") if n not in WITH_WEIGHTS),
    "transposed.dynamic_int8",
    *(f"leaky.{mode}" for mode in CALIBRATED),
    "hard_silu.int16x8",
}
FILES = sorted({f"{name}.{mode}" for name in LAYERS for mode in LIMITS} - REFUSED)


@pytest.fixture(scope="session")
def worker():
    with Child("packager.quantize.worker") as child:
        yield child


@pytest.fixture(scope="session")
def ops(once):
    """A folder with every operator in every mode, described in ops.json."""

    def make(folder):
        script = ROOT / "tests" / "quantize" / "build_ops.py"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, script, folder],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        described = {}
        with Child("packager.quantize.worker") as child:
            for name in LAYERS:
                described |= quantize_all(child, folder, name)
        (folder / "ops.json").write_text(json.dumps(described))

    return once("ops", make)


def quantize_all(child, folder, name):
    base = folder / f"{name}.float32"
    output = (folder / f"{name}.output").read_text()
    found = {
        f"{name}.float32": child.call(
            "complete", "x", source=folder / f"{name}.raw", target=base, inputs=["x"],
            outputs=[output],
        )
    }  # fmt: skip
    ranges = folder / f"{name}.ranges"
    child.call("calibrate", "x", model=base, samples=folder / "inputs", ranges=ranges)
    for mode in RECIPES:
        with contextlib.suppress(UnsupportedError):
            found[f"{name}.{mode}"] = child.call(
                "quantize", "x", model=base, target=folder / f"{name}.{mode}", mode=mode,
                ranges=ranges if mode in CALIBRATED else None,
            )  # fmt: skip
    return found


def test_a_mode_that_changes_nothing_is_refused(described):
    everything = {f"{name}.{mode}" for name in LAYERS for mode in LIMITS}
    assert everything - set(described) == REFUSED


@pytest.fixture(scope="session")
def described(ops):
    return json.loads((ops / "ops.json").read_text())


def run(python, ops):
    script = ROOT / "tests" / "quantize" / "run_ops.py"
    done = subprocess.run(
        [python, script, ops, *FILES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def on_litert(ops):
    return run(sys.executable, ops)


@pytest.fixture(scope="session")
def on_legacy(ops):
    if not LEGACY.exists():
        if sys.version_info >= (3, 12):
            pytest.skip("tflite-runtime has no wheel for Python 3.12 and newer")
        pytest.skip("the tflite-runtime environment is missing: make setup-legacy")
    return run(LEGACY, ops)


def check(found, file, described, package):
    """A file is right, or the manifest keeps that package away from it."""
    if package not in described[file]["min_version"]:
        assert isinstance(found[file], str) or found[file] > LIMITS[file.partition(".")[2]]
        return
    assert isinstance(found[file], float), found[file]
    assert found[file] <= LIMITS[file.partition(".")[2]]


@pytest.mark.parametrize("file", FILES)
def test_right_on_litert(on_litert, described, file):
    check(on_litert, file, described, "ai-edge-litert")


@pytest.mark.legacy
@pytest.mark.parametrize("file", FILES)
def test_right_on_tflite_runtime_2_14(on_legacy, described, file):
    check(on_legacy, file, described, "tflite-runtime")


def test_only_what_is_known_to_fail_is_kept_from_a_runtime(described):
    def without(package):
        return {file for file, d in described.items() if package not in d["min_version"]}

    matmuls = {"matmul.int8", "matmul.int8_float_io"}
    assert without("tflite-runtime") == {"gelu.int16x8", "normalised.int16x8"}
    assert without("tensorflow") == matmuls
    assert without("ai-edge-litert") == set()
    newer = {f for f, d in described.items() if d["min_version"]["ai-edge-litert"] != "2.0.3"}
    assert newer == matmuls


@pytest.mark.parametrize("mode", RECIPES)
def test_quantization_changes_the_numbers(on_litert, mode):
    """A recipe that does nothing would pass every tolerance."""
    assert on_litert[f"conv.{mode}"] > on_litert["conv.float32"]
    assert on_litert["conv.float32"] < 1e-5


@pytest.mark.parametrize("name", sorted({file.partition(".")[0] for file in FILES}))
def test_what_has_a_recipe_is_fully_integer(described, name):
    if f"{name}.int8" in REFUSED:
        assert f"{name}.int8" not in described
        return
    answer = described[f"{name}.int8"]
    without_rule = {"normalised": ["NEG"], "upsampled": ["TILE"]}
    assert answer["float_ops"] == without_rule.get(name, [])
    assert (answer["integer_op_share"] == 1.0) == (name not in without_rule)


@pytest.mark.parametrize("mode", LIMITS)
def test_the_ends_have_names_shapes_and_types(described, mode):
    source, target = described[f"conv.{mode}"]["io"]
    dtype = {"int8": "int8", "int16x8": "int16"}.get(mode, "float32")
    assert (source["name"], source["shape"], source["dtype"]) == ("x", [1, 12, 12, 8], dtype)
    assert target["shape"] == [1, 12, 12, 32]
    assert target["dtype"] == dtype


def versions(path):
    from packager import tflite_file

    model = tflite_file.read(path)
    return {(tflite_file.operator_name(code), code.version) for code in model.operatorCodes} - {
        ("QUANTIZE", 1)
    }


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("conv.float32", {("CONV_2D", 1)}),
        ("conv.float16", {("CONV_2D", 1), ("DEQUANTIZE", 3)}),
        ("conv.dynamic_int8", {("CONV_2D", 5)}),
        ("depthwise.dynamic_int8", {("DEPTHWISE_CONV_2D", 6)}),
        ("dense.dynamic_int8", {("FULLY_CONNECTED", 5)}),
        ("conv.int8", {("CONV_2D", 3)}),
        ("conv.int8_float_io", {("CONV_2D", 3), ("DEQUANTIZE", 2)}),
        ("depthwise.int8", {("DEPTHWISE_CONV_2D", 3)}),
        ("pooled.int8", {("AVERAGE_POOL_2D", 2)}),
        ("tanh.int8", {("TANH", 2)}),
        ("softmax.int16x8", {("SOFTMAX", 3)}),
        ("padded.int16x8", {("PAD", 3)}),
        ("pooled.int16x8", {("AVERAGE_POOL_2D", 3)}),
    ],
)
def test_operator_versions_are_those_of_tensorflow(ops, file, expected):
    assert versions(ops / file) == expected


def calibrate(worker, folder, samples, ranges):
    worker.call(
        "calibrate", "calibrating", model=folder / "conv.float32", samples=samples, ranges=ranges
    )
    return json.loads(ranges.read_text())


def test_calibration_does_not_depend_on_the_order(worker, ops, tmp_path):
    inputs = np.load(ops / "inputs" / "x.npy")
    inputs[3] *= 5.0  # one sample that decides the range
    found = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        np.save(folder / "x.npy", np.random.default_rng(seed).permutation(inputs))
        found.append(calibrate(worker, ops, folder, tmp_path / f"{seed}.json"))
    assert found[0] == found[1] == found[2]
    assert found[0]["x"] == [float(inputs.min()), float(inputs.max())]


def test_calibration_that_is_not_finite_is_refused(worker, ops, tmp_path):
    inputs = np.load(ops / "inputs" / "x.npy")
    inputs[0, 0, 0, 0] = np.inf
    np.save(tmp_path / "x.npy", inputs)
    with pytest.raises(ConversionError, match="not finite"):
        calibrate(worker, ops, tmp_path, tmp_path / "ranges.json")


def test_tensors_that_never_change_are_named(worker, ops, tmp_path):
    inputs = np.load(ops / "inputs" / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros_like(inputs[:3]))
    constant = worker.call(
        "calibrate", "x", model=ops / "conv.float32", samples=tmp_path, ranges=tmp_path / "r"
    )
    assert "x" in constant
    assert (
        worker.call(
            "calibrate",
            "x",
            model=ops / "conv.float32",
            samples=ops / "inputs",
            ranges=tmp_path / "r",
        )
        == []
    )


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_scale_is_found(ops, scale):
    from packager import tflite_file

    model = tflite_file.read(ops / "conv.int8")
    assert tflite_file.describe(model).problems == ()
    model.subgraphs[0].tensors[0].quantization.scale = [scale]
    assert "quantization scale" in tflite_file.describe(model).problems[0]


def test_a_free_batch_is_found(ops):
    from packager import tflite_file

    model = tflite_file.read(ops / "conv.float32")
    model.subgraphs[0].tensors[0].shapeSignature = [-1, 12, 12, 8]
    assert "not fixed" in tflite_file.describe(model).problems[0]


def test_the_card_is_found_without_a_flatbuffers_library(ops, tmp_path):
    import struct

    from packager import tflite_file

    model = tflite_file.read(ops / "conv.int8")
    for version in (1, 2):  # a second card replaces the first
        tflite_file.embed_card(model, {"name": "größe", "version": version})
    tflite_file.write(model, tmp_path / "m.tflite")
    content = (tmp_path / "m.tflite").read_bytes()
    assert content.count(b"PACKAGER_CARD\0") == 2  # the metadata's name, and the buffer
    places = [i for i in range(len(content)) if content.startswith(b"PACKAGER_CARD\0", i)]
    cards = []
    for start in (place + 14 for place in places):
        (length,) = struct.unpack_from("<I", content, start)
        text = content[start + 4 : start + 4 + length]
        cards += [json.loads(text)] if text.startswith(b"{") else []
    assert cards == [{"name": "größe", "version": 2}]


def test_weights_beyond_the_format_s_limit_are_refused_before_the_work():
    from packager.loaders.opened import OpenedModel
    from packager.targets import tflite_convert

    def opened(*shapes):
        variables = [SimpleNamespace(shape=shape) for shape in shapes]
        return OpenedModel("keras3", "keras", (), (), lambda tensors: tensors, variables)

    tflite_convert._refuse_size(opened((2**14, 2**14), (2**14, 2**14 - 1024)))
    with pytest.raises(UnsupportedError, match=r"2\.15 GB in float32") as caught:
        tflite_convert._refuse_size(opened((2**14, 2**14), (2**14, 2**14)))
    assert "TF.js" in caught.value.hint
