"""One server for the whole session: its models are changed over gRPC, as an operator would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED
from tests.server import replay
from tests.server.serving import Serving

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def replay_models(shared, once):
    """The models of all cases: a folder for each distinct one, by its key."""
    cases = replay.load_cases("http", "grpc", "request_parser")
    keys = list(dict.fromkeys(replay.model_key(case["model"]) for case in cases))

    def make(folder):
        (folder / "models.json").write_text(json.dumps([json.loads(key) for key in keys]))
        script = [sys.executable, HERE / "make_replay_models.py", folder]
        done = subprocess.run(
            [*script, SHARED / "tfserving" / "models"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 0, done.stderr

    folder = once("replay-models", make)
    found = {key: folder / str(number) for number, key in enumerate(keys)}
    return {**found, **{name: folder / name for name in ("eager", "warmup", "python")}}


@pytest.fixture(scope="session")
def serving(tmp_path_factory):
    """A running server without models."""
    folder = tmp_path_factory.mktemp("serving")
    config = folder / "models.config"
    config.write_text("model_config_list {}\n")
    server = Serving(
        folder, f"--model_config_file={config}", "--file_system_poll_wait_seconds=0.2",
        "--access_log=json", "--enable_grpc_healthcheck_service", "--allow_model_code",
        "--rest_api_enable_cors_support", "--max_body_bytes=4000000",
        "--model_config_file_poll_wait_seconds=1",
    )  # fmt: skip
    server.config = config
    try:
        yield server.wait()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def serve_case(serving, replay_models):
    """Makes the server hold exactly the model of a case."""

    def serve(case):
        model = case["model"]
        key = replay.model_key(model)
        if serving.holds == key:
            return serving
        serving.configure()
        if "name" not in model:
            return serving
        answer = serving.configure((model["name"], replay_models[key], model.get("labels") or {}))
        assert answer == b"", answer  # an empty message: no error
        serving.holds = key
        return serving

    return serve
