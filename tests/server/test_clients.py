"""Programs of others against the server, from their own environment (`make setup-clients`)."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server import replay

HERE = Path(__file__).parent
PROGRAMS = ROOT / ".venv-clients" / "bin"
HALF = "saved_model_half_plus_two_2_versions"
LIMIT_S = 120

pytestmark = [
    pytest.mark.tf,
    pytest.mark.clients,
    pytest.mark.skipif(not PROGRAMS.is_dir(), reason="make setup-clients has not been run"),
]


@pytest.fixture(scope="module")
def half(serve_case):
    case = next(case for case in replay.load_cases("http") if case["model"].get("name") == HALF)
    return serve_case(case)


def run(*command):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_ovmsclient(half):
    rest = ":".join(map(str, half.rest))
    done = run(PROGRAMS / "python", HERE / "ovms_calls.py", rest, half.grpc, HALF)
    assert done.returncode == 0, done.stderr
    expected = {
        "status": {"123": "AVAILABLE"},
        "inputs": {"x": "DT_FLOAT"},
        "answer": [2.5, 3.0, 4.5],
        "refused": "ModelNotFoundError",
    }
    assert json.loads(done.stdout) == {"rest": expected, "grpc": expected}


def test_schemathesis_finds_no_server_error(half, tmp_path):
    url = f"http://{half.rest[0]}:{half.rest[1]}/openapi.json"
    done = run(
        PROGRAMS / "schemathesis", "run", url, "--checks", "not_a_server_error",
        "--max-examples", "5", "--phases", "examples,coverage,fuzzing", "--no-color", "--seed", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    # A run that tested nothing would pass as well.
    assert "Tested: 8" in done.stdout
    assert half.send("GET", "/healthz")[0] == 200
