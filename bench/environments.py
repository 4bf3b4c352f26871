"""Environments of other programs that benchmarks run beside ours, made once in bench/.work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WORK = Path(__file__).parent / ".work"
TFMOT = ("tensorflow-model-optimization==0.8.1", "dm-tree==0.1.10")
STOCK = ("tensorflowjs==4.22.0", "ydf<0.12", "setuptools<81")
_UV = Path(sys.executable).with_name("uv")


def interpreter(name: str, packages: tuple[str, ...]) -> Path:
    """Returns the Python of an environment with these packages."""
    folder = WORK / name
    if not (folder / "ready").exists():
        subprocess.run([_UV, "venv", "--quiet", "--clear", folder], check=True)
        _install("--python", folder / "bin" / "python", *packages)
        (folder / "ready").touch()
    return folder / "bin" / "python"


def modules(name: str, packages: tuple[str, ...]) -> Path:
    """Returns a folder with these packages alone, to be put on the path of our interpreter."""
    folder = WORK / name
    if not (folder / "ready").exists():
        _install("--python", sys.executable, "--no-deps", "--target", folder, *packages)
        (folder / "ready").touch()
    return folder


def _install(*arguments: str | Path) -> None:
    WORK.mkdir(exist_ok=True)
    subprocess.run([_UV, "pip", "install", "--quiet", *arguments], check=True)
