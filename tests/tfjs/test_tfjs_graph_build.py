"""TF.js graph artifacts through the whole pipeline, and when they take the place of layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tfjs_harness import run_in_node

from packager.children import Child
from packager.errors import ConfigError
from packager.loaders.model_file import identify
from packager.targets import TARGETS, select
from tests.conftest import packager


def made_by(*only: str) -> list[str]:
    return [target.id for target in select(only, calibrated=False).targets]


def test_a_graph_is_made_when_it_is_named_or_in_place_of_layers() -> None:
    assert made_by("tfjs") == ["tfjs/layers"]
    assert made_by("tfjs/graph") == ["tfjs/graph"]
    assert "tfjs/graph" not in made_by()
    assert made_by("tfjs", "tfjs/graph") == ["tfjs/layers", "tfjs/graph"]
    falls_back = {
        only: select(only, calibrated=False).falls_back
        for only in ((), ("tfjs",), ("tfjs/layers",), ("tfjs/graph",), ("tfjs", "tfjs/graph"))
    }
    assert [only for only, value in falls_back.items() if value] == [(), ("tfjs",)]
    assert TARGETS["tfjs/graph"].on_request
    with pytest.raises(ConfigError, match="did you mean 'tfjs/graph'"):
        select(["tfjs/grap"], calibrated=False)


@pytest.mark.tf
@pytest.mark.node
def test_a_refused_layer_is_named_and_a_verified_graph_is_made(
    models: Path, tmp_path: Path
) -> None:
    flags = ("--only", "tfjs", "--tfjs-weights", "uint8:memory/*kernel", "--tfjs-weights", "uint16")
    ran = packager("build", models / "recurrent.keras", *flags, "--output", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert "layer 'sort' (Sort)" in ran.err
    (artifact,) = ran.json["artifacts"]
    assert artifact["id"] == "tfjs/graph"
    assert artifact["runtime"] == {
        "kind": "tfjs-graph",
        "min_version": {"@tensorflow/tfjs": "4.22.0"},
    }
    assert artifact["quantization"]["mode"] == "uint8_weights"
    assert 1e-5 < artifact["metrics"]["range_diff"] < 0.05
    assert [refusal["id"] for refusal in ran.json["refused"]] == ["tfjs/layers"]
    folder = tmp_path / "recurrent" / "1"
    description = json.loads((folder / artifact["path"]).read_text(encoding="utf-8"))
    stored = {
        weight["name"]: weight.get("quantization", {}).get("dtype")
        for weight in description["weightsManifest"][0]["weights"]
    }
    # Biases, with two axes in a GRU that resets after, count as weights; those of one axis do not.
    assert {name: dtype for name, dtype in stored.items() if name.count("/") < 3 and dtype} == {
        "memory/gru_cell/kernel": "uint8",
        "memory/gru_cell/recurrent_kernel": "uint8",
        "memory/gru_cell/bias": "uint16",
        "answer/kernel": "uint16",
    }
    assert description["userDefinedMetadata"]["packager"]["name"] == "recurrent"
    assert packager("verify", folder).code == 0


@pytest.mark.tf
@pytest.mark.node
def test_basic_pitch_matches_its_publishers_expected_output(shared: Path, tmp_path: Path) -> None:
    """A SavedModel of TensorFlow 2.4 with classes that nobody has any more, on real audio."""
    source = shared / "models" / "basic_pitch"
    found = identify(str(source / "nmp_saved_model"))
    model = tmp_path / "basic_pitch" / "tfjs"
    with Child("packager.loaders.worker", temporary=tmp_path) as child:
        opened = child.call(
            "open", "opening", source=found.source, format=found.format, saved_by=found.saved_by
        )
        card = {"inputs": opened["inputs"], "outputs": opened["outputs"]}
        written = child.call("write_tfjs_graph", "writing", folder=model, card=card, weights=[])
    assert written["fused"]["_FusedConv2D"] >= 5
    with np.load(source / "golden_publisher.npz") as golden:
        windows, rows = golden["x0"], golden["rows"]
    np.save(model.parent / "in.0.npy", windows)
    answer = run_in_node(tmp_path, "wasm", ["basic_pitch"])
    assert answer == {"failures": {}, "leaked": 0}
    names = [end["name"] for end in opened["outputs"]]
    assert sorted(names) == ["contour", "note", "onset"]
    with np.load(shared / "data" / "vocadito" / "vocadito_10_model_output.npz") as expected:
        for i, name in enumerate(names):
            got = np.load(model.parent / f"got.wasm.{i}.npy")
            kept = [
                window[15 : 15 + last - first]
                for window, (first, last) in zip(got, rows, strict=True)
            ]
            wanted = expected[name]
            assert wanted.std() > 0.01
            np.testing.assert_allclose(np.concatenate(kept), wanted, rtol=0, atol=1e-3)
