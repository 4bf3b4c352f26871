"""run.py on emulated Raspberry Pis computes what it computes on x86."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, loaded, packager

pytestmark = pytest.mark.device
RUNNER = ROOT / "edge" / "run.py"
INT8 = ("tflite/int8", "tflite/int8_float_io")
INT16_STEP = 2.0**-15


@pytest.fixture(scope="session")
def mnist_bundle(once, shared):
    """The published mnist_cnn_keras3, whose golden samples are 16 of its author's test digits."""

    def make(folder):
        with loaded(shared / "models/mnist_cnn_keras3/golden_numpy.npz") as golden:
            x, labels = golden["x0"], golden["labels"]
        np.savez(folder / "calibration.npz", x=x[16:])
        np.savez(folder / "evaluation.npz", x=x[:16], y=labels[:16])
        ran = packager(
            "build", shared / "models/mnist_cnn_keras3/model.keras", "--name", "mnist",
            "--only", "tflite", "--preprocess", "0..1", "--output", folder, "--calibration",
            folder / "calibration.npz", "--evaluation", folder / "evaluation.npz",
        )  # fmt: skip
        assert ran.code in (0, 3), ran.err

    return once("device-mnist", make) / "mnist" / "1"


@pytest.fixture(params=["digits_bundle", "mnist_bundle"], scope="session")
def bundle(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def here(bundle, tmp_path_factory):
    """The values on x86 by kind of kernels: what XNNPACK, and the reference kernels, compute."""
    found = {}
    for kernels in ("auto", "reference"):
        file = tmp_path_factory.mktemp("x86") / "values.json"
        subprocess.run(
            [sys.executable, RUNNER, "verify", bundle, "--record", file, "--kernels", kernels],
            check=kernels == "auto", capture_output=True,
        )  # fmt: skip
        found[kernels] = json.loads(file.read_text())
    return found


def difference(one, other):
    """The largest difference of two records of one artifact."""
    assert one.keys() == other.keys() and one
    return max(
        np.abs(np.subtract(one[sample][name], other[sample][name])).max()
        for sample in one
        for name in one[sample]
    )


def test_verify_and_equal_numbers(device, bundle, here, tmp_path):
    """int8 files give the same bits: of XNNPACK on 64 bit, of the reference kernels on 32."""
    ran = device.run("verify", bundle, "--json", "--record", tmp_path / "values.json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["machine"]["machine"] == device.machine
    assert report["files"]["problems"] == []
    assert {entry["status"] for entry in report["artifacts"]} == {"passed"}
    values = json.loads((tmp_path / "values.json").read_text())
    kernels = {"aarch64": "auto", "armv7l": "reference"}[device.machine]
    for identity in ("tflite/float32", "tflite/float16"):
        assert difference(values[identity], here["auto"][identity]) <= 1e-5
    for identity in INT8:
        assert difference(values[identity], here[kernels][identity]) == 0.0, identity
    int16 = difference(values["tflite/int16x8"], here["auto"]["tflite/int16x8"])
    assert int16 <= 2 * INT16_STEP


def test_photos_get_the_same_answer(device, digits_bundle, shared):
    photos = sorted((shared / "data/images").glob("*.jpg"))
    assert len(photos) == 4
    arguments = ["predict", digits_bundle, *photos, "--json", "--artifact", "tflite/float32"]
    ran = device.run(*arguments)
    assert ran.code == 0, ran.err
    x86 = subprocess.run(
        [sys.executable, RUNNER, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    for line, wanted in zip(ran.out.splitlines(), x86.stdout.splitlines(), strict=True):
        found, expected = json.loads(line), json.loads(wanted)
        assert found["label"] == expected["label"]
        scores = [{e["label"]: e["score"] for e in one["top"]} for one in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_install_chooses_the_right_packages(device, wrapper, tmp_path):
    flags = ["--dry-run", "--python", wrapper, "--venv", tmp_path / "v"]
    done = subprocess.run(
        ["sh", ROOT / "edge/install.sh", *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if device.machine == "aarch64":
        assert "found: 64-bit aarch64, Python 3.11, glibc 2.36" in done.stdout
        assert "pip install --quiet ai-edge-litert>=2.0.3 numpy>=1.23 pillow" in done.stdout
        assert "apt-get" not in done.stdout
    else:
        assert "found: 32-bit armv7l, Python 3.11, glibc 2.36" in done.stdout
        assert "pip install --quiet tflite-runtime==2.14.0\n" in done.stdout
        assert (
            "apt-get install -y --no-install-recommends python3-venv python3-numpy" in done.stdout
        )
        assert "--system-site-packages" in done.stdout
    assert not Path(tmp_path / "v").exists()
