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


ALL = [name for name in names() if not name.startswith("float_")]
# One of each kind of kernel; all others are in the soak, because building them takes 30 s.
FEW = ["conv_bn_relu", "depthwise_bn_relu6", "dense_softmax", "concatenated", "residual"]
INTEGER = [
    *FEW,
    *(
        pytest.param(name, marks=[pytest.mark.soak, pytest.mark.whole])
        for name in ALL
        if name not in FEW
    ),
]


def build(once, kind, chosen):
    """The twins of some operators and their int8 file, and what the device runner gives."""

    def make(folder):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, SCRIPT, folder, *chosen]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        for made in (folder / kind, folder / "digits"):
            if made.is_dir():
                run(made)

    return once(f"qat-{kind}-{len(chosen)}", make) / kind


@pytest.fixture(scope="session")
def few(once):
    return build(once, "integer", ["digits", *FEW])


@pytest.fixture(scope="session")
def every(once):
    return build(once, "integer", ALL)


@pytest.fixture
def folder(request):
    """Where the operator that is asked for was built."""
    few = request.node.callspec.params["name"] in FEW
    return request.getfixturevalue("few" if few else "every")


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
def test_the_int8_file_is_the_twin(folder, name):
    off = steps_off(folder, name)
    if name in NETWORKS:
        assert np.mean(off <= 1.01) >= 0.99
        assert off.max() <= 6
    else:
        assert off.max() <= 1.01


@pytest.mark.parametrize("name", INTEGER)
def test_the_twin_is_near_the_float_model(folder, name):
    with loaded(folder / "float.npz") as floats:
        wanted = floats[f"y_{name}"]
    with loaded(folder / "twin.npz") as twin:
        given = twin[f"y_{name}"]
    assert np.abs(given - wanted).mean() <= 0.02 * np.ptp(wanted)
    assert np.abs(given - wanted).max() > 0


def test_a_network_answers_as_its_twin(few):
    """The example's trained model on 1,000 digits that it has not seen."""
    with loaded(few.parent / "digits" / "twin.npz") as twin:
        wanted = twin["y_digit"]
    given = np.load(few.parent / "digits" / "out" / "digit.npy")
    assert given.shape == wanted.shape == (1000, 10)
    (end,) = (e for e in described(few.parent / "digits")["io"] if e["role"] == "output")
    assert np.mean(np.abs(given - wanted) <= 1.01 * end["scale"][0]) >= 0.99
    assert np.mean(given.argmax(axis=1) == wanted.argmax(axis=1)) >= 0.995
    assert described(few.parent / "digits")["float_ops"] == []


def test_a_normalization_learns_as_keras_does(few):
    with loaded(few.parent / "normalized.npz") as found:
        names = [name.removeprefix("keras_") for name in found if name.startswith("keras_")]
        assert len(names) == 2 * 2 + 4 + 2
        for name in names:
            np.testing.assert_allclose(
                found[f"twin_{name}"], found[f"keras_{name}"], rtol=1e-5, atol=1e-6
            )


def all_integers(found):
    assert found["float_ops"] == []
    assert found["integer_op_share"] == 1.0
    assert {end["dtype"] for end in found["io"]} == {"int8"}
    assert found["float_layers"] == []


def test_these_operators_are_integers(few):
    all_integers(described(few))


@pytest.mark.soak
@pytest.mark.whole
def test_all_operators_are_integers(every):
    all_integers(described(every))


def gives_weights_back(folder, count):
    with loaded(folder / "float.npz") as floats, loaded(folder / "stripped.npz") as stripped:
        assert len(floats) == count
        for name, wanted in floats.items():
            np.testing.assert_array_equal(stripped[name], wanted)


def test_stripping_gives_the_weights_back(few):
    gives_weights_back(few, len(FEW))


@pytest.mark.soak
@pytest.mark.whole
def test_stripping_gives_all_weights_back(every):
    gives_weights_back(every, len(ALL))


@pytest.mark.soak
@pytest.mark.whole
def test_a_layer_without_a_rule_stays_float_and_is_named(once):
    folder = build(once, "float", ["float_elu"])
    found = described(folder)
    assert found["float_ops"] == ["ELU"]
    assert [kind for _, kind in found["float_layers"]] == ["ELU"]
    assert np.mean(steps_off(folder, "float_elu") <= 1.01) >= 0.99
