"""Nets of keras.applications, unfolded, folded and fused: logits equal within 1e-4."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from applications import SIZES
from tfjs_harness import HERE, ROOT, run_in_node, same_program

from packager.loaders import keras_file, layer_graph
from packager.targets import tfjs_layers
from packager.targets.tfjs_layers import Style

TOLERANCE = 1e-4
# The others take minutes; `make soak` runs them all.
FAST = ("MobileNetV2", "MobileNetV3Small")
CARD = {"inputs": [{"name": "in0"}], "outputs": [{"name": "out0"}]}


def build(folder: Path, names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "applications.py", folder, *names],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check(folder: Path, name: str, style: Style, backends: tuple[str, ...]) -> None:
    """Writes a net in a style and compares its logits."""
    graph = layer_graph.load(folder / name)
    tfjs_layers.write(graph, folder / name / "tfjs", card=CARD, style=style)
    expected = np.load(folder / name / "out.0.npy")
    # The samples differ, so equality with each says something.
    assert np.abs(expected[0] - expected[1]).max() > 0.1 * np.ptp(expected)
    for backend in backends:
        answer = run_in_node(folder, backend, [name])
        assert answer == {"failures": {}, "leaked": 0}
        got = np.load(folder / name / f"got.{backend}.0.npy")
        share = float(np.abs(got - expected).max() / np.ptp(expected))
        assert share <= TOLERANCE, f"{name}, {style}, {backend}: {share:.3g}"


@pytest.fixture(scope="module")
def nets(once: Callable[..., Path]) -> Path:
    return once("tfjs-nets", lambda folder: build(folder, list(FAST)))


@pytest.mark.tf
@pytest.mark.node
@pytest.mark.parametrize("name", FAST)
def test_small_nets(nets: Path, name: str) -> None:
    check(nets, name, Style(fold=False), ("cpu",))
    check(nets, name, Style(), ("wasm",))
    check(nets, name, Style(fused=True), ("cpu", "wasm"))


@pytest.mark.tf
@pytest.mark.parametrize("name", FAST)
def test_a_file_read_without_keras_gives_the_same_model(nets: Path, name: str) -> None:
    read = keras_file.read(nets / name / "model.keras")
    assert read is not None
    same_program(read, layer_graph.load(nets / name))


@pytest.mark.soak
@pytest.mark.tf
@pytest.mark.node
@pytest.mark.parametrize("name", list(SIZES)[:: int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1"))])
def test_all_nets(tmp_path: Path, name: str) -> None:
    build(tmp_path, [name])
    for style in (Style(fold=False), Style(), Style(fused=True)):
        check(tmp_path, name, style, ("cpu", "wasm"))
