"""Logits are compared, and the first layer that differs is named; without TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from packager import assets
from packager.bundle import Artifact, Gate, GateCheck, Runtime
from packager.cache import Cache
from packager.loaders.layer_graph import Call, Layer, LayerGraph, TensorRef
from packager.targets import tfjs_layers
from packager.verify import tfjs_check
from packager.verify.tfjs_check import Inside

pytestmark = pytest.mark.node
RNG = np.random.default_rng(3)
INPUTS = RNG.normal(size=(6, 4)).astype(np.float32)
KERNELS = {
    "first": RNG.normal(size=(4, 5)).astype(np.float32),
    "second": RNG.normal(size=(5, 6)).astype(np.float32),
    "scores": RNG.normal(size=(6, 3)).astype(np.float32),
}


def values(kernels: dict[str, Any]) -> dict[str, Any]:
    """Each layer's output before its activation is applied to the last one."""
    first = np.tanh(INPUTS @ kernels["first"])
    second = np.tanh(first @ kernels["second"])
    return {"first": first, "second": second, "scores": second @ kernels["scores"]}


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def graph(kernels: dict[str, Any]) -> LayerGraph:
    tensor = TensorRef("x", 0, 0)
    layers = [Layer("InputLayer", "x", {"batch_shape": [None, 4], "dtype": "float32"})]
    for name, kernel in kernels.items():
        activation = "softmax" if name == "scores" else "tanh"
        config = {"units": kernel.shape[1], "use_bias": False, "activation": activation}
        layers.append(Layer("Dense", name, config, (Call((tensor,)),), {"kernel": kernel}))
        tensor = TensorRef(name, 0, 0)
    return LayerGraph("m", "Functional", tuple(layers), (TensorRef("x", 0, 0),), (tensor,))


class FakeSource:
    """Stands for the TensorFlow child with the right model."""

    def call(self, method: str, stage: str, **arguments: Any) -> list[str]:
        right = values(KERNELS) | {"scores": softmax(values(KERNELS)["scores"])}
        names = [name for name in arguments["layers"] if name in right]
        for number, name in enumerate(names):
            np.save(Path(arguments["outputs"]) / f"{number}.npy", right[name])
        return names


@contextlib.contextmanager
def opened() -> Iterator[FakeSource]:
    yield FakeSource()


def checked(tmp_path: Path, kernels: dict[str, Any], failed: str) -> Artifact:
    if assets.node() is None or not (assets.web_vendor() / "VERSIONS.json").is_file():
        pytest.skip("Node.js or web/vendor is missing: run make vendor")
    folder, work = tmp_path / "bundle", tmp_path / "work"
    card = {"inputs": [{"name": "x"}], "outputs": [{"name": "scores"}]}
    written = tfjs_layers.write(graph(kernels), folder / "tfjs/layers", card=card)
    for name, arrays in (("inputs", {"x": INPUTS}), ("logits", {"0": values(KERNELS)["scores"]})):
        (work / name).mkdir(parents=True)
        for key, array in arrays.items():
            np.save(work / name / f"{key}.npy", array)
    status = "failed" if failed else "passed"
    gate = Gate(status, failed or None, (GateCheck("max_abs_diff", status),))
    runtime = Runtime(tfjs_check.KIND, {})
    artifact = Artifact("tfjs/layers", "tfjs/layers/model.json", runtime, gate=gate)
    manifest = SimpleNamespace(outputs=(SimpleNamespace(name="scores"),), artifacts=(artifact,))
    inside = Inside(
        folder,
        work,
        work / "inputs",
        written.layers,
        ["scores"],
        opened,  # type: ignore[arg-type]
        Cache(None),
    )
    return tfjs_check._checked(artifact, manifest, inside)  # type: ignore[arg-type]


def test_equal_logits_pass(tmp_path: Path) -> None:
    found = checked(tmp_path, KERNELS, "")
    assert found.gate.status == "passed"
    assert found.metrics["logits_range_diff"] < 1e-6
    assert found.gate.checks[-1].name == "max_logits_diff"


@pytest.mark.parametrize("broken", ["first", "second", "scores"])
def test_the_first_layer_that_differs_is_named(tmp_path: Path, broken: str) -> None:
    kernels = KERNELS | {broken: KERNELS[broken] * np.float32(1.01)}
    found = checked(tmp_path, kernels, "")
    assert found.gate.status == "failed"
    assert found.gate.reason is not None
    assert "max_logits_diff" in found.gate.reason
    assert f"the first layer that differs is {broken!r}" in found.gate.reason


def test_a_shift_that_the_softmax_hides_is_seen(tmp_path: Path) -> None:
    """The same number on every class changes no probability, but the logits."""
    shifted = KERNELS | {"scores": KERNELS["scores"] + np.float32(0.05)}
    before, after = (softmax(values(k)["scores"]) for k in (KERNELS, shifted))
    assert np.abs(before - after).max() < 1e-6
    found = checked(tmp_path, shifted, "")
    assert found.gate.status == "failed"
    assert found.metrics["logits_range_diff"] > 1e-3


def test_differences_are_shares_of_the_range() -> None:
    values = np.array([0.0, 4.0])
    assert tfjs_check.share(values, values + 1) == 0.25
    assert tfjs_check.share(values, np.array([0.0, np.nan])) == float("inf")
    assert tfjs_check.share(values, values[:1]) == float("inf")
    assert tfjs_check.share(np.ones(3), np.full(3, 1.5)) == 0.5
