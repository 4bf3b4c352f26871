"""The runner as a module and as a program, and small models that a child process builds."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "edge" / "run.py"


@dataclass(frozen=True)
class Answer:
    """What one command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def built(once):
    """A bundle `digits/2` and loose files; see build_models.py."""

    def make(folder):
        script = Path(__file__).with_name("build_models.py")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, script, folder],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return once("edge-models", make)


@pytest.fixture
def bundle(built, tmp_path):
    """A copy of the bundle that a test may change: NAME/VERSION."""
    return Path(shutil.copytree(built / "digits", tmp_path / "digits")) / "2"


@pytest.fixture(scope="session")
def runner():
    """edge/run.py as a module."""
    spec = importlib.util.spec_from_file_location("edge_run", RUNNER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["edge_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def command(runner, capsys):
    """Runs a command in this process."""

    def run(*arguments):
        try:
            code = runner.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def program():
    """Runs a command as a user does."""

    def run(*arguments, stdin="", prefix=(), **environment):
        done = subprocess.run(
            [sys.executable, *prefix, RUNNER, *arguments],
            input=stdin,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def change_manifest(bundle):
    """Edits the copy's manifest with a function."""

    def change(edit):
        path = bundle / "manifest.json"
        manifest = json.loads(path.read_text())
        edit(manifest)
        path.write_text(json.dumps(manifest))

    return change
