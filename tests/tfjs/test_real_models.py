"""Files of others, and models of public reports, as TF.js layers models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfjs_harness import HERE, ROOT, Cases, run_in_node, same_program

from packager.children import Child
from packager.loaders import keras_file, layer_graph
from packager.loaders.layer_graph import LayerGraph
from packager.loaders.model_file import identify
from packager.targets import tfjs_layers
from packager.targets.tfjs_layers import Style

pytestmark = [pytest.mark.tf, pytest.mark.node]
Array = np.ndarray[Any, Any]
FOLDED = Style()


@pytest.fixture(scope="module")
def open_graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], LayerGraph]]:
    with Child("packager.loaders.worker") as child:

        def describe(path: Path) -> LayerGraph:
            found = identify(str(path))
            child.call(
                "open",
                "opening",
                source=found.source,
                format=found.format,
                saved_by=found.saved_by,
            )
            folder = tmp_path_factory.mktemp("graph")
            assert child.call("write_layer_graph", "describing", folder=folder)
            return layer_graph.load(folder)

        yield describe


def answers(
    graph: LayerGraph, inputs: Array, folder: Path, style: Style = FOLDED
) -> dict[str, Array]:
    """What TF.js makes of the model, by back end."""
    (folder / "model").mkdir()
    np.save(folder / "model" / "in.0.npy", inputs)
    card = {"inputs": [{"name": "in0"}], "outputs": [{"name": "out0"}]}
    tfjs_layers.write(graph, folder / "model" / "tfjs", card=card, style=style)
    found = {}
    for backend in ("cpu", "wasm"):
        answer = run_in_node(folder, backend, ["model"])
        assert answer == {"failures": {}, "leaked": 0}
        found[backend] = np.load(folder / "model" / f"got.{backend}.0.npy")
    return found


def stored_weights(folder: Path) -> list[tuple[str, Array]]:
    """Names and values of a TF.js model's weights, in the file's order."""
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    found, (group,) = [], model["weightsManifest"]
    content = b"".join((folder / path).read_bytes() for path in group["paths"])
    offset = 0
    for entry in group["weights"]:
        values = np.frombuffer(content, entry["dtype"], int(np.prod(entry["shape"])), offset)
        found.append((entry["name"], values.reshape(entry["shape"])))
        offset += values.nbytes
    return found


@pytest.mark.parametrize(
    ("file", "published", "key"),
    [
        ("mnist_keras2.1.6.h5", "publisher_tfjs_layers_from_keras", "y"),
        ("mnist_tfkeras2.1.6.h5", "publisher_tfjs_layers_from_tfkeras", "y_tfkeras"),
    ],
)
def test_tensorspace_has_the_publishers_own_weights(
    shared: Path, open_graph: Any, tmp_path: Path, file: str, published: str, key: str
) -> None:
    models = shared / "models" / "tensorspace_mnist"
    graph = open_graph(models / file)
    with np.load(models / "golden_numpy.npz") as golden:
        inputs, expected = golden["x0"], golden[key]
    found = answers(graph, inputs, tmp_path, Style(fold=False))
    ours = stored_weights(tmp_path / "model" / "tfjs")
    theirs = stored_weights(models / published)
    assert len(ours) == len(theirs) > 6
    unmatched = [values.tobytes() for _, values in theirs]
    for name, values in ours:
        assert values.tobytes() in unmatched, name
        unmatched.remove(values.tobytes())
    assert unmatched == []
    for values in found.values():
        assert np.abs(values - expected).max() < 1e-6
        assert (values.argmax(1) == expected.argmax(1)).all()


def test_dgaintel_gives_the_published_probabilities(
    shared: Path, open_graph: Any, tmp_path: Path
) -> None:
    models = shared / "models" / "dgaintel_cnn_lstm"
    graph = open_graph(models / "domain_classifier_model.h5")
    classes = {layer.class_name for layer in graph.layers}
    assert {"Embedding", "Conv1D", "LSTM"} <= classes
    with np.load(models / "golden_numpy.npz") as golden:
        inputs, expected = golden["x0"], golden["y"]
    assert np.ptp(expected) > 0.9
    for values in answers(graph, inputs, tmp_path).values():
        assert np.abs(values - expected).max() < 2e-6


@pytest.fixture(scope="module")
def reported(once: Callable[..., Path]) -> Path:
    def make(folder: Path) -> None:
        done = subprocess.run(
            [sys.executable, HERE / "build_reported.py", folder],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return once("tfjs-reported", make)


@pytest.mark.parametrize("name", ["issue_8328", "issue_8321", "issue_8489", "issue_8266"])
@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_models_of_public_reports_load_and_predict(
    reported: Path, open_graph: Any, tmp_path: Path, name: str, ending: str
) -> None:
    """Issues 8328, 8494, 8489, 8561, 8321, 8266; nobuco 67."""
    graph = open_graph(reported / f"{name}{ending}")
    expected = np.load(reported / f"{name}.out.npy")
    found = answers(graph, np.load(reported / f"{name}.in.npy"), tmp_path)
    assert np.ptp(expected) > 0.1
    for values in found.values():
        assert np.abs(values - expected).max() <= 1e-5 * np.ptp(expected)
    program = tfjs_layers.program(graph, Style(fold=False))
    assert not program.needs_script


@pytest.mark.parametrize("name", ["misnamed.h5", "misnamed.keras"])
def test_the_content_decides_not_the_name(reported: Path, open_graph: Any, name: str) -> None:
    """Issue 8265."""
    weights = open_graph(reported / name).layer("dense").weights
    right = open_graph(reported / "issue_8328.keras").layer("dense").weights
    np.testing.assert_array_equal(weights["kernel"], right["kernel"])


@pytest.mark.parametrize("name", ["issue_8328", "issue_8321", "issue_8489", "issue_8266"])
def test_a_file_read_without_keras_gives_the_same_model(
    reported: Path, open_graph: Any, name: str
) -> None:
    read = keras_file.read(reported / f"{name}.keras")
    assert read is not None
    same_program(read, open_graph(reported / f"{name}.keras"))


def test_what_only_keras_can_read_is_left_to_it(reported: Path, tmp_path: Path) -> None:
    assert keras_file.read(reported / "issue_8328.h5") is None
    source = reported / "issue_8328.keras"
    assert rewritten(source, tmp_path, lambda config: None) is not None

    def custom(config: dict[str, Any]) -> None:
        config["config"]["layers"][1]["module"] = "mine"

    def masked(config: dict[str, Any]) -> None:
        config["config"]["layers"][1]["class_name"] = "Masking"

    def renamed(config: dict[str, Any]) -> None:
        config["config"]["layers"][1]["name"] = "another"

    assert rewritten(source, tmp_path, custom) is None
    assert rewritten(source, tmp_path, masked) is None
    assert rewritten(source, tmp_path, renamed) is None


def rewritten(source: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Any:
    """Reads an archive with a changed configuration."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(folder / "new.keras", "w") as new:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config).encode()
            new.writestr(name, content)
    return keras_file.read(folder / "new.keras")


def test_a_build_without_verification_needs_no_tensorflow(
    reported: Path, open_graph: Any, tmp_path: Path
) -> None:
    source = reported / "issue_8321.keras"
    code = (
        "import sys; from packager.cli import main\n"
        "sys.argv = ['packager', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print([m for m in ('tensorflow', 'keras') if m in sys.modules], file=sys.stderr)"
    )
    arguments = ["build", source, "--only", "tfjs/layers", "--no-verify", "--output", tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("[]")
    manifest = json.loads((tmp_path / "issue_8321/1/manifest.json").read_text(encoding="utf-8"))
    (artifact,) = manifest["artifacts"]
    assert artifact["gate"] == {
        "status": "skipped", "reason": "not verified: --no-verify", "checks": [],
    }  # fmt: skip
    assert manifest["task"] == "classification"
    assert [output["activation"] for output in manifest["outputs"]] == ["softmax"]
    expected = tfjs_layers.program(open_graph(source)).weights()
    for name, values in stored_weights(tmp_path / "issue_8321/1/tfjs/layers"):
        np.testing.assert_array_equal(values, expected[name])


# Reports whose model is a case of test_cases.py, equal there.
_CASES = {
    "ultralytics 20647, 20687: a convolution with groups": "conv2d_groups_2",
    "4390, 3728, 4626: augmentation inside the model": "random_flip",
    "4390: Normalization": "normalization",
    "4626: Rescaling": "rescaling",
    "4621, 5728: the default of GRU": "gru",
    "7271: operators in a functional graph": "operators",
    "8358: keepdims": "global_Average_2d_kept",
    "section 3: LeakyReLU": "leaky_relu",
    "section 3: ReLU with a slope": "relu_slope",
    "section 3: ReLU with a threshold": "relu_threshold",
    "section 3: hard_sigmoid": "dense_hard_sigmoid",
    "section 3: hard_sigmoid in an LSTM": "lstm_hard_sigmoid",
    "4340, 1729: bilinear upsampling": "up_bilinear",
    "section 3: BatchNormalization of another axis": "batch_norm_axis_1",
    "section 3: dilated depthwise convolution": "depthwise_dilated",
    "section 3: output_padding": "transpose_output_padding",
}


@pytest.mark.parametrize("report", _CASES)
def test_reported_layers_are_among_the_cases(cases: Cases, report: str) -> None:
    (case,) = [case for case in cases.listed if case["name"] == _CASES[report]]
    assert case["refused"] == ""
    assert tfjs_layers.check(cases.graph(case["name"])) == []
