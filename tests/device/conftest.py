"""Emulated Raspberry Pis: ARM builds of Python, NumPy, Pillow and the interpreters under qemu."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ran

RUNNER = ROOT / "edge" / "run.py"
ROOTS = ROOT / ".device-roots"
TIME_LIMIT_S = 900


@dataclass(frozen=True)
class Device:
    """A processor and the packages that are extracted for it.

    Attributes:
        name: Debian's name of the architecture.
        qemu: The emulator.
        cpu: Which processor it plays.
        triplet: The folder of its libraries.
        machine: What Python calls it.
    """

    name: str
    qemu: str
    cpu: str
    triplet: str
    machine: str

    @property
    def python(self) -> list[str]:
        """The command that starts its Python."""
        root = ROOTS / self.name
        libraries = f"{root}/usr/lib/{self.triplet}"
        environment = {
            "LD_LIBRARY_PATH": f"{libraries}/blas:{libraries}/lapack",
            "PYTHONPATH": f"{root}/wheels:{root}/usr/lib/python3/dist-packages",
            "PYTHONHOME": f"{root}/usr",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        flags = [part for item in environment.items() for part in ("-E", "=".join(item))]
        # What this machine sets for its own OpenBLAS means nothing to another processor.
        flags += ["-U", "OPENBLAS_CORETYPE"]
        return [self.qemu, "-cpu", self.cpu, "-L", str(root), *flags, f"{root}/usr/bin/python3.11"]

    def run(self, *arguments: object) -> Ran:
        """Runs run.py on it."""
        done = subprocess.run(
            [*self.python, str(RUNNER), *map(str, arguments)],
            capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)


DEVICES = {
    "pi4": Device("arm64", "qemu-aarch64-static", "cortex-a72", "aarch64-linux-gnu", "aarch64"),
    "pi2": Device("armhf", "qemu-arm-static", "cortex-a7", "arm-linux-gnueabihf", "armv7l"),
}


@pytest.fixture(params=DEVICES, scope="session")
def device(request) -> Device:
    """A Raspberry Pi 4 with a 64-bit system, and a Pi 2 or 3 with a 32-bit system."""
    found = DEVICES[request.param]
    assert (ROOTS / found.name).is_dir(), "make test-device makes the roots"
    return found


@pytest.fixture
def wrapper(device, tmp_path) -> Path:
    """The device's Python as one program."""
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\nexec " + " ".join(device.python) + ' "$@"\n')
    path.chmod(0o755)
    assert os.access(path, os.X_OK)
    return path
