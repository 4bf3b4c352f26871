"""Every layer of Keras in TF.js: equal numbers, or a refusal that names the layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from layer_table import table
from tfjs_harness import ROOT, Cases, differences, node_answer, run_in_node

from packager.errors import UnsupportedError
from packager.targets import tfjs_layers
from packager.targets.tfjs_flatten import UniqueNames

TOLERANCE = 1e-5
# Half-precision arithmetic in Keras; TF.js computes in single precision.
TOLERANCES = {"dtype_mixed": 5e-3}

# Graph models with complex numbers, which the wasm back end lacks; the runner then takes cpu.
CPU_ONLY = ("mel",)

# Classes of keras.layers without a case, and why.
NOT_LAYERS = {
    **dict.fromkeys(("Layer", "Wrapper", "InputSpec"), "a base class"),
    **dict.fromkeys(("FlaxLayer", "JaxLayer", "TorchModuleWrapper"), "code of another library"),
    "TFSMLayer": "code of a SavedModel",
    **dict.fromkeys(("StringLookup", "TextVectorization"), "packager opens no text inputs"),
    "Equalization": "cannot be called on symbolic inputs in Keras 3.15",
    "ContrastLimitedAdaptiveHistogramEqualization": "its numbers depend on a random state",
}
# Other names of the same class.
ALIASES = ("Convolution", "AvgPool", "MaxPool", "GlobalAvgPool", "GlobalMaxPool")


@pytest.mark.tf
@pytest.mark.node
def test_every_case_is_equal_or_refused(cases: Cases) -> None:
    written, wrong = [], []
    for case in cases.listed:
        graph, folder = cases.graph(case["name"]), cases.folder / case["name"] / "tfjs"
        reasons = tfjs_layers.check(graph)
        if case["refused"]:
            if not any(case["refused"] in reason for reason in reasons):
                wrong.append(f"{case['name']}: expected a refusal, received {reasons}")
            if not case["no_graph"]:
                written.append(case)
            continue
        if reasons:
            wrong.append(f"{case['name']}: refused: {reasons}")
            continue
        tfjs_layers.write(graph, folder, card=cases.card(case))
        written.append(case)
    names = [case["name"] for case in written]
    for backend in ("cpu", "wasm"):
        chosen = [name for name in names if backend == "cpu" or name not in CPU_ONLY]
        answer = run_in_node(cases.folder, backend, chosen)
        wrong += [f"{backend} {n}: {why}" for n, why in answer["failures"].items()]
        assert answer["leaked"] == 0
        for case in written:
            if case["name"] in chosen and case["name"] not in answer["failures"]:
                own = cases.folder / case["name"]
                tolerance = TOLERANCES.get(case["name"], TOLERANCE)
                wrong += differences(own, own, backend, case["outputs"], tolerance)
    assert wrong == []
    in_layers = [case for case in written if not case["refused"]]
    assert len(in_layers) >= 460
    assert len(written) > len(in_layers)
    assert len(cases.listed) > len(written)


@pytest.mark.tf
def test_the_documented_table_is_true(cases: Cases) -> None:
    documented = (ROOT / "docs" / "tfjs-layers.md").read_text(encoding="utf-8")
    assert table(cases.folder) == documented, "run make tfjs-table"


@pytest.mark.tf
def test_every_class_of_keras_layers_has_a_case(cases: Cases) -> None:
    exported = set((cases.folder / "exported.txt").read_text(encoding="utf-8").split())
    used = {layer.class_name for case in cases.listed for layer in layers_of(cases, case)}
    used |= inner_classes(cases)
    aliases = {name for name in exported if name.startswith(ALIASES) and "Pooling" not in name}
    aliases |= {name for name in exported if name.startswith("SeparableConvolution")}
    missing = exported - used - set(NOT_LAYERS) - aliases
    assert missing == set()
    assert set(NOT_LAYERS) <= exported


def layers_of(cases: Cases, case: dict[str, Any]) -> list[Any]:
    return [layer for _, layer in cases.graph(case["name"]).walk()]


def inner_classes(cases: Cases) -> set[str]:
    """Cells and wrapped layers, which stand in the configuration of another."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("class_name"), str):
                found.add(value["class_name"])
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    for case in cases.listed:
        for layer in layers_of(cases, case):
            look(layer.config)
    return found


@pytest.mark.tf
def test_a_refused_model_writes_nothing_and_names_all_layers(cases: Cases, tmp_path: Path) -> None:
    graph = cases.graph("several_reasons")
    with pytest.raises(UnsupportedError) as caught:
        tfjs_layers.write(graph, tmp_path / "tfjs", card={})
    for words in ("'up' (UpSampling2D)", "bicubic", "'conv' (ConvLSTM1D)", "'code' (Lambda)"):
        assert words in caught.value.message
    assert "--only" in caught.value.hint
    assert not (tmp_path / "tfjs").exists()
    assert len(tfjs_layers.check(graph)) == 3


@pytest.mark.tf
def test_the_script_is_shipped_only_where_it_is_needed(cases: Cases, tmp_path: Path) -> None:
    own = tfjs_layers.write(cases.graph("gru"), tmp_path / "gru", card={})
    stock = tfjs_layers.write(cases.graph("lstm"), tmp_path / "lstm", card={})
    assert own.script == tmp_path / "gru" / "packager-layers.js"
    shipped = (ROOT / "web" / "packager-layers.js").read_bytes()
    assert own.script.read_bytes() == shipped
    assert stock.script is None
    assert not (tmp_path / "lstm" / "packager-layers.js").exists()


@pytest.mark.tf
def test_a_layer_whose_calls_need_other_forms_is_written_once_for_each(cases: Cases) -> None:
    plan = tfjs_layers.plan(cases.graph("reversible_embedding"), UniqueNames())
    groups = next(g for name, g in plan.groups.items() if "reversible" in name)
    assert [[part.class_name for part in group.chain] for group in groups] == [
        ["Embedding"],
        ["PackagerOperator"],
    ]


@pytest.mark.tf
@pytest.mark.node
def test_a_plain_page_loads_stock_models_alone_and_others_with_the_script(
    cases: Cases, tmp_path: Path
) -> None:
    for name in ("lstm", "gru"):
        tfjs_layers.write(cases.graph(name), tmp_path / name, card={})
    models = [tmp_path / name / "model.json" for name in ("lstm", "gru")]
    answer = node_answer("plain_page.mjs", tmp_path / "gru" / "packager-layers.js", *models)
    assert answer["before"]["stock"] == answer["after"]["stock"] == "loaded 2 layers"
    assert "Unknown layer: PackagerRecurrent" in answer["before"]["own"]
    assert answer["after"]["own"] == "loaded 2 layers"
