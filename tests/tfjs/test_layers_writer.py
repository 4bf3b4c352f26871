"""The TF.js layers writer on described graphs, without Keras."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.errors import ConversionError, UnsupportedError
from packager.loaders.layer_graph import Call, Layer, LayerGraph, Spec, TensorRef
from packager.targets import select, tfjs_layers
from packager.targets.tfjs_program import check_nodes

ROOT = Path(__file__).resolve().parents[2]


def dense_graph(units: int = 3, width: int = 4) -> LayerGraph:
    """A described model of two Dense layers, without Keras."""
    random = np.random.default_rng(11)
    first = TensorRef("x", 0, 0)
    layers = [Layer("InputLayer", "x", {"batch_shape": [None, width], "dtype": "float32"})]
    for name, shape in (("hidden", (width, 5)), ("out", (5, units))):
        weights = {
            "kernel": random.normal(size=shape).astype(np.float32),
            "bias": random.normal(size=shape[1:]).astype(np.float32),
        }
        config = {"name": name, "units": shape[1], "use_bias": True, "activation": "tanh"}
        layers.append(Layer("Dense", name, config, (Call((first,)),), weights))
        first = TensorRef(name, 0, 0)
    return LayerGraph("model", "Functional", tuple(layers), (TensorRef("x", 0, 0),), (first,))


CARD = {"schema": 1, "name": "digits", "labels": ["영", "one"]}


def read_back(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Decodes model.json and its shards by the format's definition."""
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for group in model["weightsManifest"]:
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        offset = 0
        for entry in group["weights"]:
            count = int(np.prod(entry["shape"]))
            values = np.frombuffer(content, entry["dtype"], count, offset)
            weights[entry["name"]] = values.reshape(entry["shape"])
            offset += values.nbytes
        assert offset == len(content)
    return model, weights


@pytest.mark.parametrize("shard_bytes", [4, 30, 64, 4 * 1024 * 1024])
def test_shards_hold_the_weights_and_are_named_by_content(tmp_path: Path, shard_bytes: int) -> None:
    graph = dense_graph()
    written = tfjs_layers.write(graph, tmp_path, card=CARD, shard_bytes=shard_bytes)
    model, weights = read_back(tmp_path)
    assert model["format"] == "layers-model"
    assert model["userDefinedMetadata"] == {"packager": CARD}
    assert set(weights) == {"hidden/kernel", "hidden/bias", "out/kernel", "out/bias"}
    for layer in graph.layers[1:]:
        for name, array in layer.weights.items():
            np.testing.assert_array_equal(weights[f"{layer.name}/{name}"], array)
    total = sum(array.nbytes for array in weights.values())
    assert len(written.files.shards) == -(-total // shard_bytes)
    for number, shard in enumerate(written.files.shards, start=1):
        digest = hashlib.sha256(shard.read_bytes()).hexdigest()[:16]
        assert shard.name == f"weights-{digest}-{number}of{len(written.files.shards)}.bin"
        assert shard.stat().st_size <= shard_bytes
    assert written.files.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_wrong_node_is_rejected_before_it_ships(tmp_path: Path) -> None:
    tfjs_layers.write(dense_graph(), tmp_path, card=CARD)
    config = read_back(tmp_path)[0]["modelTopology"]["model_config"]["config"]
    check_nodes(config)
    node = config["layers"][2]["inbound_nodes"][0][0]
    node[1] = 1
    with pytest.raises(ConversionError, match="wait for ever at layer out"):
        check_nodes(config)
    node[1] = 0
    config["output_layers"] = [["out", 1, 0]]
    with pytest.raises(ConversionError, match="out, 1, 0 does not exist"):
        check_nodes(config)


def test_calls_that_tfjs_would_count_in_another_order_are_rejected() -> None:
    shared = {"name": "s", "inbound_nodes": [[["late", 0, 0, {}]], [["x", 0, 0, {}]]]}
    late = {"name": "late", "inbound_nodes": [[["x", 0, 0, {}]]]}
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["s", 1, 0]]}
    layers = [{"name": "x", "inbound_nodes": []}, shared, late]
    with pytest.raises(ConversionError, match="call 1 of s too early"):
        check_nodes({"layers": layers, **ends})
    check_nodes({"layers": [layers[0], late, shared], **ends})


def test_a_reference_to_no_call_is_an_error() -> None:
    graph = dense_graph()
    wrong = LayerGraph(
        graph.name, graph.class_name, graph.layers, graph.inputs, (TensorRef("out", 1, 0),)
    )
    with pytest.raises(ConversionError, match="layer 'out'"):
        tfjs_layers.check(wrong)


def test_a_used_second_output_is_a_reason_beside_the_others(tmp_path: Path) -> None:
    x, halves = TensorRef("x", 0, 0), TensorRef("halves", 0, 0)
    dense = {"units": 2, "use_bias": False, "activation": "linear"}
    kernel = {"kernel": np.eye(4, 2, dtype=np.float32)}
    known = Call((x,), outputs={0: Spec((None, 2), "float32")})
    layers = (
        Layer("InputLayer", "x", {"batch_shape": [None, 4], "dtype": "float32"}),
        Layer("Dense", "halves", {"name": "halves", **dense}, (known,), kernel),
        Layer("Dense", "end", {"name": "end", **dense}, (Call((TensorRef("halves", 0, 1),)),)),
        Layer("Flatten", "memory", {"name": "memory"}, (Call((halves,)),)),
    )
    ends = (TensorRef("end", 0, 0), TensorRef("memory", 0, 2))
    graph = LayerGraph("model", "Functional", layers, (x,), ends)
    reasons = tfjs_layers.check(graph)
    assert [reason.partition(":")[0] for reason in reasons] == [
        "layer 'halves' (Dense)",
        "layer 'memory' (Flatten)",
    ]
    assert "first of its outputs" in reasons[0]
    with pytest.raises(UnsupportedError, match="layer 'halves'") as caught:
        tfjs_layers.write(graph, tmp_path / "tfjs", card=CARD)
    assert "layer 'memory'" in caught.value.message
    assert "--only saved_model --only tflite" in caught.value.hint


def test_a_nested_model_called_with_a_mask_is_a_reason() -> None:
    x, mask = TensorRef("x", 0, 0), TensorRef("mask", 0, 0)
    inside = dense_graph()
    layers = (
        Layer("InputLayer", "x", {"batch_shape": [None, 4], "dtype": "float32"}),
        Layer("InputLayer", "mask", {"batch_shape": [None, 4], "dtype": "bool"}),
        Layer("Functional", "inside", {}, (Call((x, mask)),), graph=inside),
    )
    graph = LayerGraph("m", "Functional", layers, (x, mask), (TensorRef("inside", 0, 0),))
    (reason,) = tfjs_layers.check(graph)
    assert reason.startswith("layer 'inside' (Functional): masks pass into or out of the nested")


def test_the_hint_is_a_command_line_that_is_read(tmp_path: Path) -> None:
    graph = dense_graph()
    tanh = replace(graph.layers[2], config={**graph.layers[2].config, "activation": "unheard_of"})
    with pytest.raises(UnsupportedError) as caught:
        tfjs_layers.write(replace(graph, layers=(*graph.layers[:2], tanh)), tmp_path, card=CARD)
    words = caught.value.hint.partition(": ")[2].split()
    only = [word for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "--only"]
    assert {target.id for target in select(only, calibrated=False).targets} == {
        "saved_model",
        "tflite/float32",
        "tflite/float16",
        "tflite/dynamic_int8",
    }


def test_the_writer_does_not_import_tensorflow() -> None:
    code = (
        "import sys, packager.targets.tfjs_layers\n"
        "print([m for m in ('tensorflow', 'keras', 'h5py') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
