"""Quantization-aware training: the twin's rules, operator by operator, against the int8 file."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT, loaded

pytestmark = pytest.mark.tf

SCRIPT = ROOT / "tests" / "quantize" / "build_qat.py"
# More than one operator: where one rounds a tie the other way, the next one enlarges it.
NETWORKS = {
    "added_relu", "added_three", "conv_hard_swish", "conv_leaky", "dense_block", "encoder",
    "fan_out", "nested", "prelu_full", "residual", "separable", "separable_bn", "separable1d",
    "shared", "shared_apart", "shared_block", "squeeze",
}  # fmt: skip


def names():
    """The operators of build_qat.py, which cannot be imported without TensorFlow."""
    lines = SCRIPT.read_text().split("MODELS = {")[1].split("\n}\n")[0].splitlines()
    return [x.split('"')[1] for x in lines if x.startswith('    "')]


INTEGER = [name for name in names() if not name.startswith("float_")]


@pytest.fixture(scope="session")
def ops(once):
    """The twins of all operators and their int8 file, and what the device runner gives."""

    def make(folder):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, SCRIPT, folder],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        for kind in ("integer", "float"):
            run(folder / kind)

    return once("qat-ops", make)


def run(folder):
    """Runs the int8 file with the device runner."""
    for name in ("in", "out"):
        (folder / name).mkdir()
    with loaded(folder / "inputs.npz") as arrays:
        for name, array in arrays.items():
            np.save(folder / "in" / f"{name}.npy", array)
    command = [
        sys.executable, ROOT / "edge" / "run.py", "run", folder / "int8.tflite",
        "--inputs", folder / "in", "--outputs", folder / "out",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def described(folder):
    return json.loads((folder / "described.json").read_text())


def steps_off(folder, name):
    """Differences of the int8 file from the twin, in quantization steps."""
    scale = {end["name"]: end["scale"] for end in described(folder)["io"]}[f"out_{name}"][0]
    with loaded(folder / "twin.npz") as twin:
        wanted = twin[f"y_{name}"]
    given = np.load(folder / "out" / f"out_{name}.npy")
    assert given.shape == wanted.shape
    return np.abs(given - wanted) / scale


@pytest.mark.parametrize("name", INTEGER)
def test_the_int8_file_is_the_twin(ops, name):
    off = steps_off(ops / "integer", name)
    if name in NETWORKS:
        assert np.mean(off <= 1.01) >= 0.99
        assert off.max() <= 6
    else:
        assert off.max() <= 1.01


@pytest.mark.parametrize("name", INTEGER)
def test_the_twin_is_near_the_float_model(ops, name):
    with loaded(ops / "integer" / "float.npz") as floats:
        wanted = floats[f"y_{name}"]
    with loaded(ops / "integer" / "twin.npz") as twin:
        given = twin[f"y_{name}"]
    assert np.abs(given - wanted).mean() <= 0.02 * np.ptp(wanted)
    assert np.abs(given - wanted).max() > 0


def test_all_operators_are_integers(ops):
    found = described(ops / "integer")
    assert found["float_ops"] == []
    assert found["integer_op_share"] == 1.0
    assert {end["dtype"] for end in found["io"]} == {"int8"}
    assert found["float_layers"] == []


def test_stripping_gives_the_weights_back(ops):
    with (
        loaded(ops / "integer" / "float.npz") as floats,
        loaded(ops / "integer" / "stripped.npz") as stripped,
    ):
        assert len(floats) == len(INTEGER)
        for name, wanted in floats.items():
            np.testing.assert_array_equal(stripped[name], wanted)


def test_a_layer_without_a_rule_stays_float_and_is_named(ops):
    found = described(ops / "float")
    assert found["float_ops"] == ["ELU"]
    assert [kind for _, kind in found["float_layers"]] == ["ELU"]
    off = steps_off(ops / "float", "float_elu")
    assert np.mean(off <= 1.01) >= 0.99
