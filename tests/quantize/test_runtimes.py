"""What explain, --auto, search and the target edgetpu make runs right on old and small runtimes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from packager import runtime_profiles
from packager.children import Child
from packager.errors import ConfigError, UnsupportedError
from packager.quantize.plan import Plan
from packager.runtime_profiles import Profile
from tests.conftest import DIGITS, ROOT, loaded

pytestmark = [pytest.mark.tf, pytest.mark.legacy]

SCRIPT = ROOT / "tests/quantize/run_plans.py"
LEGACY = ROOT / ".venv-edge-legacy/bin/python"
OLDEST = ROOT / ".venv-edge-oldest"
MICRO = ROOT / ".venv-micro"
PLANS = {
    "plain": Plan(),
    "octav": Plan(algorithm="octav"),
    "average_mse": Plan(algorithm="average_mse", float_io=True),
    "per_tensor": Plan(dense="per_tensor"),
    "some_float": Plan(layers={"block2_depthwise": "float", "block2_pointwise": "float"}),
    "some_int16": Plan(layers={"block2_depthwise": "int16", "block2_pointwise": "int16"}),
    "first_float": Plan(layers={"stem_conv": "float"}, float_io=True),
    "edgetpu": Plan(dense="per_tensor", uint8_io=True),
}
SAMPLES = 24


@pytest.fixture(scope="module")
def made(digits_bundle, tmp_path_factory):
    """A folder with a file for each plan, and what the worker says of each."""
    folder = tmp_path_factory.mktemp("plans")
    base = digits_bundle / "tflite/digits.float32.tflite"
    with loaded(DIGITS / "data/evaluation.npz") as stored:
        inputs = (stored["x"][:SAMPLES].astype(np.float64) / 255).astype(np.float32)[..., None]
    np.save(folder / "inputs.npy", inputs)
    samples = folder / "samples"
    samples.mkdir()
    np.save(samples / "image.npy", inputs)
    (folder / "float32").write_bytes(base.read_bytes())
    described = {}
    with Child("packager.quantize.worker") as litert:
        for algorithm in ("min_max", "average"):
            litert.call(
                "calibrate", "x", model=base, samples=samples, algorithm=algorithm,
                ranges=folder / algorithm,
            )  # fmt: skip
        for name, plan in PLANS.items():
            described[name] = litert.call(
                "quantize", "x", model=base, target=folder / name, plan=plan.to_json(),
                mode="int8_float_io" if plan.float_io else "int8", ranges=folder / plan.activations,
            )  # fmt: skip
    return folder, described


def run(made, python=sys.executable, **environment):
    folder, _ = made
    files = [folder / name for name in ("float32", *PLANS)]
    done = subprocess.run(
        [python, SCRIPT, folder / "inputs.npy", *files], capture_output=True, text=True,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: np.array(values) for name, values in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def newest(made):
    return run(made)


def check(found, newest, without=()):
    """Integer kernels may round differently; a kernel that mixes up scales is off by far more."""
    assert set(found) == {"float32", *PLANS}
    for name, values in found.items():
        if name in without:
            assert values.dtype.kind == "U", name
            continue
        assert values.dtype.kind == "f", (name, values)
        assert np.abs(values - newest[name]).mean() < 2e-3, name
        assert np.abs(values - newest["float32"]).mean() < (1e-6 if name == "float32" else 5e-3), (
            name
        )


def test_the_newest_ai_edge_litert(made, newest):
    check(newest, newest)
    # Each plan makes another file: a plan that is ignored would pass everything else.
    assert len({(made[0] / name).read_bytes() for name in PLANS}) == len(PLANS)


def test_the_oldest_ai_edge_litert(made, newest):
    if not OLDEST.is_dir():
        pytest.skip("the oldest ai-edge-litert is missing: make setup-edge-oldest")
    oldest = {name: d["min_version"]["ai-edge-litert"] for name, d in made[1].items()}
    newer = [name for name, version in oldest.items() if version != "2.0.3"]
    assert newer == ["some_int16"]
    check(run(made, PYTHONPATH=str(OLDEST)), newest, without=newer)


def test_tflite_runtime(made, newest):
    if sys.version_info >= (3, 12):
        pytest.skip("tflite-runtime has no wheel for Python 3.12")
    if not LEGACY.is_file():
        pytest.skip("the tflite-runtime environment is missing: make setup-legacy")
    refused = [n for n, d in made[1].items() if "tflite-runtime" not in d["min_version"]]
    assert refused == ["some_int16"]
    check(run(made, LEGACY), newest, without=refused)


def test_tflite_micro(made, newest):
    if not MICRO.is_dir():
        pytest.skip("tflite-micro is missing: make setup-micro")
    check(run(made, PYTHONPATH=str(MICRO)), newest)


def test_every_profile_takes_what_was_run(made):
    _, described = made
    for name, description in described.items():
        old = [] if name == "some_int16" else ["tflite-runtime==2.14", "ai-edge-litert>=2.0.3"]
        specs = ["ai-edge-litert>=2.3", "tflite-micro", *old]
        runtime_profiles.check(specs, name, description)


@pytest.mark.parametrize(
    ("spec", "change", "reason"),
    [
        ("tflite-micro", {"hybrid_ops": ["CONV_2D"]}, "no floats with int8 weights"),
        ("tflite-micro", {"float16_weights": True}, "float16"),
        ("tflite-micro", {"ops": {"GELU": 1}}, "not seen to run GELU"),
        ("ai-edge-litert>=1", {}, "2.0.3 is the oldest"),
        ("tflite-runtime==2.14", {"min_version": {}}, "no version of it"),
    ],
)
def test_what_a_profile_refuses(made, spec, change, reason):
    description = {**made[1]["plain"], **change}
    with pytest.raises(UnsupportedError, match=reason):
        runtime_profiles.check([spec], "tflite/int8", description)


def test_profiles_are_read():
    found = runtime_profiles.parse_all(
        ["tflite-runtime==2.14", "ai-edge-litert >= 2", "tflite-micro"]
    )
    assert found == [
        Profile("tflite-runtime", "2.14"), Profile("ai-edge-litert", "2"), Profile("tflite-micro"),
    ]  # fmt: skip
    for wrong in ("tflite-runtme==2.14", "tflite-micro==x", ""):
        with pytest.raises(ConfigError, match="is no interpreter"):
            runtime_profiles.parse_all([wrong])
