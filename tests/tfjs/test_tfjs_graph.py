"""The TF.js graph writer: equal numbers in TF.js, or a refusal that names the operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tfjs_harness import differences, node_answer, run_in_node

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-5
# Shares of the output's range that weights in fewer bits cost here. The first two are 2**-17 and
# 2**-12 per weight, the third 2**-9; a few layers add that up.
TOLERANCES = {"rule_uint16": 1e-3, "rule_float16": 5e-3, "rule_uint8": 5e-2}
# TF.js has complex numbers on the cpu back end only.
CPU_ONLY = ("complex",)
REFUSALS = {
    "transpose_dilated": "TF.js does not read its attribute dilations, here [1, 2, 2, 1]",
    "refused_svd": "operator Svd (Svd): TF.js 4.22.0 has no such operator",
    "refused_truncated": "operator Mod (Mod)",
    "refused_integer_mean": "operator Mean (Mean): TF.js gives floats",
    "refused_integer_quotient": "operator Div (Div): TF.js rounds",
    "refused_integer_product": "operator MatMul (MatMul): TF.js' wasm back end",
    "refused_to_uint8": "operator Cast (Cast): TF.js has no uint8",
    "refused_uint8_sum": "where uint8 would overflow differently",
    "refused_list_before_a_change": "it changes the list of tensors 'TensorListSetItem'",
    "refused_random": "it draws other random numbers",
    "refused_fake_quantized": "operator FakeQuantWithMinMaxVars (FakeQuantWithMinMaxVars)",
    "refused_one_hot_axis": "TF.js does not read its attribute axis, here 0",
    "refused_channels_first": "TF.js does not read its attribute data_format, here NCHW",
    "refused_nan": "the constant holds 4 values that are NaN",
    "refused_long_constant": "needs 64 bits",
}


@dataclass(frozen=True)
class Models:
    folder: Path
    cases: dict[str, dict[str, Any]]

    def description(self, name: str) -> dict[str, Any]:
        text = (self.folder / name / "tfjs" / "model.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture(scope="session")
def models(once: Callable[..., Path]) -> Models:
    """All cases of tfjs_graph_models.py, written in one TensorFlow process."""

    def make(folder: Path) -> None:
        done = subprocess.run(
            [sys.executable, HERE / "tfjs_graph_models.py", folder],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    folder = once("tfjs-graph", make)
    entries = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return Models(folder, {entry["name"]: entry for entry in entries})


@pytest.mark.tf
@pytest.mark.node
@pytest.mark.parametrize("backend", ["cpu", "wasm"])
def test_every_written_model_equals_tensorflow(models: Models, backend: str) -> None:
    written = [name for name, case in models.cases.items() if not case["refused"]]
    names = [n for n in written if backend == "cpu" or n not in CPU_ONLY]
    answer = run_in_node(models.folder, backend, names)
    assert answer["failures"] == {}
    wrong = []
    for name in names:
        own, tolerance = models.folder / name, TOLERANCES.get(name, TOLERANCE)
        wrong += differences(own, own, backend, models.cases[name]["outputs"], tolerance)
    assert wrong == []
    assert answer["leaked"] == 0
    assert len(names) > 110


@pytest.mark.tf
def test_exactly_these_are_refused_by_name(models: Models) -> None:
    refused = {name: case["refused"] for name, case in models.cases.items() if case["refused"]}
    assert set(refused) == set(REFUSALS)
    for name, words in REFUSALS.items():
        assert refused[name].startswith("UnsupportedError: "), name
        assert words in refused[name], refused[name]
        assert not (models.folder / name / "tfjs").exists()


@pytest.mark.tf
def test_fused_operators_are_there_and_nothing_is_left_to_fold(models: Models) -> None:
    assert models.cases["fused"]["fused"] == {
        "FusedDepthwiseConv2dNative": 3,
        "_FusedConv2D": 3,
        "_FusedMatMul": 1,
    }
    operators = {n["op"] for n in models.description("fused")["modelTopology"]["node"]}
    # One Mul and AddV2 would be a BatchNormalization, one Pad a ZeroPadding2D.
    assert not operators & {"Mul", "AddV2", "Sub", "Pad", "BiasAdd", "Relu", "Relu6", "Conv2D"}
    # The slope of a leaky ReLU is not read by a fused depthwise convolution.
    assert "LeakyRelu" in {
        n["op"] for n in models.description("depthwise_slope")["modelTopology"]["node"]
    }


@pytest.mark.tf
def test_ends_bear_the_models_names_with_a_free_batch(models: Models) -> None:
    found = models.description("two_inputs")
    free = {"dim": [{"size": "-1"}, {"size": "4"}]}
    assert list(found["signature"]["inputs"]) == ["b", "a"]
    assert all(end["tensorShape"] == free for end in found["signature"]["inputs"].values())
    assert list(found["signature"]["outputs"]) == ["out0", "out1", "out2"]
    assert found["userDefinedMetadata"]["structuredOutputKeys"] == ["out0", "out1", "out2"]
    assert [i["name"] for i in found["userDefinedMetadata"]["packager"]["inputs"]] == ["b", "a"]
    assert found["format"] == "graph-model"


@pytest.mark.tf
def test_control_flow_stays_in_functions_and_tables_are_filled_once(models: Models) -> None:
    loop = models.description("while_loop")["modelTopology"]
    assert "StatelessWhile" in {n["op"] for n in loop["node"]}
    assert len(loop["library"]["function"]) == 2
    table = models.description("words")
    keys = next(w for w in table["weightsManifest"][0]["weights"] if w["name"].endswith("/keys"))
    assert keys["dtype"] == "string"
    fill = [n["op"] for n in table["modelInitializer"]["node"]]
    assert fill == ["Const", "Const", "HashTableV2", "LookupTableImportV2"]


@pytest.mark.node
def test_the_table_of_operators_is_that_of_the_vendored_runtime() -> None:
    stored = ROOT / "packager" / "targets" / "tfjs_ops.json"
    found = node_answer("../../packager/targets/tfjs_ops.mjs")
    assert found == json.loads(stored.read_text())
