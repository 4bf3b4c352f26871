"""Merging layers changes no number by more than rounding, and happens only where it may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tfjs_harness import Cases, differences, run_in_node

from packager.targets import tfjs_layers
from packager.targets.tfjs_layers import Style
from packager.targets.tfjs_program import Program

PLAIN, FOLDED, FUSED = Style(fold=False), Style(), Style(fused=True)
TOLERANCE = 1e-5


def classes(cases: Cases, name: str, style: Style) -> list[str]:
    program: Program = tfjs_layers.program(cases.graph(name), style)
    return [layer.part.class_name for layer in program.layers]


@pytest.mark.tf
@pytest.mark.node
@pytest.mark.parametrize("style", [PLAIN, FUSED])
def test_all_styles_give_the_numbers_of_keras(cases: Cases, style: Style, tmp_path: Path) -> None:
    """The folded style is that of all other tests."""
    chosen = [c for c in cases.listed if c["name"].startswith(("fold", "digits", "conv", "depth"))]
    chosen = [c for c in chosen if not c["refused"]]
    for case in chosen:
        (tmp_path / case["name"]).mkdir()
        for i in range(case["inputs"]):
            stored = cases.folder / case["name"] / f"in.{i}.npy"
            (tmp_path / case["name"] / stored.name).symlink_to(stored)
        graph, folder = cases.graph(case["name"]), tmp_path / case["name"] / "tfjs"
        tfjs_layers.write(graph, folder, card=cases.card(case), style=style)
    names = [case["name"] for case in chosen]
    assert len(names) > 40
    for backend in ("cpu", "wasm"):
        answer = run_in_node(tmp_path, backend, names)
        assert answer == {"failures": {}, "leaked": 0}
        wrong = [
            text
            for case in chosen
            for text in differences(
                cases.folder / case["name"],
                tmp_path / case["name"],
                backend,
                case["outputs"],
                TOLERANCE,
            )
        ]
        assert wrong == []


@pytest.mark.tf
def test_every_linear_layer_takes_a_normalisation(cases: Cases) -> None:
    names = [c["name"] for c in cases.listed if c["name"].startswith("fold_")]
    folded = [name for name in names if not name.startswith(("fold_not_", "fold_padded"))]
    assert len(folded) >= 19
    for name in folded:
        assert "BatchNormalization" not in classes(cases, name, FOLDED), name
        assert classes(cases, name, PLAIN).count("BatchNormalization") >= 1, name


@pytest.mark.tf
def test_activations_move_into_the_layer_before(cases: Cases) -> None:
    for name in ("relu", "relu6", "hard_silu", "softmax", "swish"):
        assert classes(cases, f"fold_{name}", FOLDED) == ["InputLayer", "DepthwiseConv2D"]
    assert classes(cases, "fold_chain", FOLDED) == [
        *("InputLayer", "Conv2D", "DepthwiseConv2D", "Conv2D", "Add"),
        *("GlobalAveragePooling2D", "Dense"),
    ]
    assert classes(cases, "fold_chain", FUSED)[1:4] == [
        "PackagerConv",
        "PackagerDepthwiseConv",
        "PackagerConv",
    ]


@pytest.mark.tf
@pytest.mark.parametrize("name", ["shared", "seen", "output"])
def test_a_layer_that_others_see_stays_as_it_is(cases: Cases, name: str) -> None:
    assert classes(cases, f"fold_not_{name}", FOLDED) == classes(cases, f"fold_not_{name}", PLAIN)


@pytest.mark.tf
def test_nothing_moves_behind_an_activation(cases: Cases) -> None:
    found = classes(cases, "fold_not_activated", FOLDED)
    assert found == ["InputLayer", "Conv2D", "BatchNormalization", "Conv2D", "ReLU"]


@pytest.mark.tf
def test_only_a_normalisation_without_offset_passes_padding(cases: Cases) -> None:
    found = classes(cases, "fold_padded", FOLDED)
    assert found.count("BatchNormalization") == 1
    assert found[-1] == "BatchNormalization"


@pytest.mark.tf
def test_a_normalisation_passes_a_reshape_that_keeps_the_channels(cases: Cases) -> None:
    for name in ("fold_transpose_1d", "fold_separable_1d", "fold_conv3d"):
        assert "Reshape" in classes(cases, name, FOLDED)
        assert "BatchNormalization" in classes(cases, name, PLAIN)


@pytest.mark.tf
def test_what_stands_for_a_keras_layer_gives_what_it_gives(cases: Cases) -> None:
    """A scaled convolution stands for the normalisation, never for itself."""
    for name in ("fold_conv2d", "fold_conv3d", "fold_padded", "fold_relu6"):
        program = tfjs_layers.program(cases.graph(name), FOLDED)
        stands_for = {layer.name: layer.path for layer in program.layers if layer.is_last}
        plain = tfjs_layers.program(cases.graph(name), PLAIN).weights()
        for layer in program.layers:
            same = all(
                np.array_equal(array, plain[f"{layer.name}/{key}"])
                for key, array in layer.part.weights.items()
                if f"{layer.name}/{key}" in plain
            )
            assert same or stands_for.get(layer.name) != layer.name, (name, layer.name)
