"""Every interpreter version that manifests promise gives the stored numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.tf, pytest.mark.legacy]
LEGACY = ROOT / ".venv-edge-legacy" / "bin" / "python"
OLDEST = ROOT / ".venv-edge-oldest"
ALL = ["float32", "float16", "dynamic_int8", "int8", "int8_float_io", "int16x8"]


def verify(python, bundle, **environment):
    done = subprocess.run(
        [python, ROOT / "edge/run.py", "verify", bundle, "--json"], capture_output=True, text=True,
        env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [entry["id"] for entry in report["artifacts"]] == [f"tflite/{mode}" for mode in ALL]
    assert {entry["status"] for entry in report["artifacts"]} == {"passed"}
    return report


def promised(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    found = [a["runtime"]["min_version"] for a in manifest["artifacts"] if "tflite" in a["id"]]
    assert all(one == found[0] for one in found)
    return found[0]


def test_the_newest(digits_bundle):
    assert verify(sys.executable, digits_bundle)["runtime"]["name"] == "ai-edge-litert"


def test_the_oldest_ai_edge_litert(digits_bundle):
    if not OLDEST.is_dir():
        pytest.skip("the oldest ai-edge-litert is missing: make setup-edge-oldest")
    report = verify(sys.executable, digits_bundle, PYTHONPATH=str(OLDEST))
    version = promised(digits_bundle)["ai-edge-litert"]
    assert report["runtime"] == {"name": "ai-edge-litert", "version": version}


def test_tflite_runtime(digits_bundle):
    if sys.version_info >= (3, 12):
        pytest.skip("tflite-runtime has no wheel for Python 3.12")
    if not LEGACY.is_file():
        pytest.skip("the tflite-runtime environment is missing: make setup-legacy")
    report = verify(LEGACY, digits_bundle)
    version = promised(digits_bundle)["tflite-runtime"]
    assert report["runtime"] == {"name": "tflite-runtime", "version": version}


def test_numpy_2_beside_tflite_runtime_is_found_before_it_crashes(digits_bundle):
    if sys.version_info >= (3, 12):
        pytest.skip("tflite-runtime has no wheel for Python 3.12")
    if not LEGACY.is_file():
        pytest.skip("the tflite-runtime environment is missing: make setup-legacy")
    packages = next(Path(LEGACY).parents[1].glob("lib/python*/site-packages"))
    code = (
        "import sys, runpy, numpy; assert numpy.__version__ >= '2'\n"
        f"sys.path.append({str(packages)!r}); sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    arguments = ["info", digits_bundle, "--runtime", "tflite-runtime", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT / "edge/run.py", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runtime = json.loads(done.stdout)["artifacts"][0]["runtime"]
    assert "needs numpy<2, but NumPy 2" in runtime["problem"]
    assert runtime["hint"].endswith('"tflite-runtime>=2.14.0" "numpy<2"')
