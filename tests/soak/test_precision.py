"""Layer names on the keras.applications families, and whole builds that need more than int8."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from packager import tflite_file
from packager.quantize import op_layers
from tests.conftest import DIGITS, ROOT, loaded, packager
from tests.quantize import bad_layer

DIVISOR = int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1"))
FAMILIES = (
    "MobileNetV3Small", "MobileNet", "MobileNetV2", "EfficientNetB0", "EfficientNetV2B0",
    "DenseNet121", "ResNet50V2", "NASNetMobile", "Xception", "InceptionV3", "ConvNeXtTiny",
    "VGG16", "MobileNetV3Large", "ResNet50", "InceptionResNetV2",
)  # fmt: skip
WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")

pytestmark = [pytest.mark.soak, pytest.mark.tf]


def write(folder, *what):
    script = ROOT / "tests/soak/precision_models.py"
    done = subprocess.run(
        [sys.executable, script, folder, *what], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def directions(kernel):
    """Filters `[elements, filters]` without their lengths, which a normalisation changes."""
    kernel = kernel.reshape(-1, kernel.shape[-1])
    return np.abs(kernel) / np.maximum(np.linalg.norm(kernel, axis=0), 1e-12)


def is_of(operator, kernel, weights):
    """Whether a kernel of the file is that of a layer, up to the length of each filter."""
    ours = kernel[0] if operator == "DEPTHWISE_CONV_2D" else np.moveaxis(kernel, 0, -1)
    for theirs in weights:
        if theirs.size == ours.size and theirs.ndim >= 2:
            if operator == "DEPTHWISE_CONV_2D" and theirs.ndim == 4:
                theirs = theirs.reshape(*theirs.shape[:2], -1)
            found = directions(theirs.reshape(-1, ours.shape[-1]))
            if np.allclose(found, directions(ours), atol=1e-4):
                return True
    return False


@pytest.mark.parametrize("name", FAMILIES[:: min(DIVISOR, len(FAMILIES))])
def test_every_operator_with_weights_has_the_layer_whose_weights_it_has(name, tmp_path):
    write(tmp_path, name)
    known = json.loads((tmp_path / f"{name}.json").read_text())
    model = tflite_file.read(tmp_path / f"{name}.tflite")
    graph = model.subgraphs[0]
    with loaded(tmp_path / f"{name}.npz") as weights:
        seen = []
        for op in op_layers.read_ops(model, known["names"]):
            if op.op not in WEIGHTED:
                continue
            tensor = graph.tensors[graph.operators[op.index].inputs[1]]
            data = model.buffers[tensor.buffer].data
            if data is None:
                continue
            kernel = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float32)
            layer = op.layer.rpartition("/")[2]
            own = [w for key, w in weights.items() if key.startswith(f"{layer}|")]
            assert is_of(op.op, kernel.reshape(tensor.shape), own), (op.op, op.layer, op.outputs)
            seen.append(layer)
    wanted = [n for n, kind in known["kinds"].items() if kind in ("Conv2D", "Dense")]
    assert set(wanted) <= set(seen)
    assert len(seen) > 10


def build(model, folder, *flags):
    return packager(
        "build", model, "--output", folder, "--name", "m", "--json", "--only", "tflite/float32",
        "--only", "tflite/int8", "--preprocess", "0..1", "--labels", DIGITS / "labels.txt",
        "--calibration", DIGITS / "data/calibration.npz",
        "--evaluation", DIGITS / "data/evaluation.npz", *flags,
    )  # fmt: skip


@pytest.fixture(scope="module")
def worse(tmp_path_factory):
    """The digits model with one layer made bad, by a factor that no algorithm helps against."""
    path = tmp_path_factory.mktemp("worse") / "worse.keras"
    bad_layer.in_keras_file(
        DIGITS / "model.keras", path, "batch_normalization_5", "conv2d_4", 1000.0
    )
    return path


@pytest.mark.whole
def test_auto_reaches_the_drop_where_int8_fails(worse, tmp_path):
    assert build(worse, tmp_path / "plain").code == 3
    ran = build(worse, tmp_path / "auto", "--auto")
    assert ran.code == 0, ran.err
    folder = tmp_path / "auto/m/1"
    artifacts = {
        a["id"]: a for a in json.loads((folder / "manifest.json").read_text())["artifacts"]
    }
    assert artifacts["tflite/int8"]["metrics"]["drop"] <= 0.01
    share = artifacts["tflite/int8"]["size_bytes"] / artifacts["tflite/float32"]["size_bytes"]
    assert share <= 0.6
    climb = json.loads((folder / "report/report.json").read_text())["measured"]["auto"]
    chosen = climb["tflite/int8"]["steps"][climb["tflite/int8"]["chosen"]]
    assert set(chosen["plan"]["layers"]) == {"block2_depthwise", "block2_pointwise"}
    assert (folder / "report/index.html").read_text().count("What <code>--auto</code> tried") == 1
    again = packager("build", "--config", folder / "package.yaml", "--output", tmp_path / "again")
    assert again.code == 0, again.err


def test_a_gate_that_nothing_can_meet_ends_with_3_and_the_best(worse, tmp_path):
    ran = build(worse, tmp_path, "--auto", "--max-bytes", 1000)
    assert ran.code == 3
    folder = tmp_path / "m/1.rejected"
    climb = json.loads((folder / "report/report.json").read_text())["measured"]["auto"]
    assert "nothing that was tried" in climb["tflite/int8"]["reason"]
    assert (folder / "tflite/m.int8.tflite").is_file()


@pytest.mark.whole
def test_search_and_build_what_it_found(worse, tmp_path):
    assert build(worse, tmp_path, "--no-verify", "--max-drop", 1).code == 0
    arguments = ("--samples", 200, "--to", tmp_path / "s.json", "--storage", tmp_path / "s.log")
    data = (
        "--calibration", DIGITS / "data/calibration.npz",
        "--evaluation", DIGITS / "data/evaluation.npz",
    )  # fmt: skip
    ran = packager(
        "search", tmp_path / "m", "--trials", 12, "--json", "--plot", tmp_path / "s.svg",
        *arguments, *data,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = {trial["number"]: trial for trial in ran.json["trials"]}
    best = found[ran.json["best"]]
    assert best["within"] and best["size_bytes"] <= 0.6 * ran.json["float32"]["size_bytes"]
    assert set(ran.json["pareto"]) <= set(found) and "<svg" in (tmp_path / "s.svg").read_text()
    more = packager("search", tmp_path / "m", "--trials", 16, "--json", *arguments, *data)
    assert [t["plan"] for t in more.json["trials"][:12]] == [t["plan"] for t in ran.json["trials"]]
    built = build(worse, tmp_path / "built", "--from-search", tmp_path / "s.json")
    assert built.code == 0, built.err


def test_small_columns_of_a_table_keep_their_resolution(tmp_path):
    write(tmp_path, "table")
    ran = packager(
        "build", tmp_path / "table.keras", "--task", "regression", "--output", tmp_path,
        "--only", "tflite", "--calibration", tmp_path / "table-calibration.npz",
        "--evaluation", tmp_path / "table-evaluation.npz", "--max-error-growth", 0.25,
    )  # fmt: skip
    folder = next((tmp_path / "table").glob("1*"))
    artifacts = {
        a["id"]: a for a in json.loads((folder / "manifest.json").read_text())["artifacts"]
    }
    assert "columns 0, 1, 2, 4, 5 of the input 'row'" in ran.err
    assert "normalise" in ran.err and "stay float, which costs" in ran.err
    growth = {name: a["metrics"]["error_growth"] for name, a in artifacts.items()}
    assert growth["tflite/int8"] > 1.0
    assert growth["tflite/int8_float_io"] < 0.25
    assert artifacts["tflite/int8_float_io"]["gate"]["status"] == "passed"
