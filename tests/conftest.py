"""Shared fixtures: models are made and bundles are built once per test run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager import cache

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DIGITS = ROOT / "examples" / "digits"
TIME_LIMIT_S = 300

# The only skips that a full run may have: what this Python cannot install.
EXPECTED_SKIPS = ("tflite-runtime has no wheel for Python",)


def pytest_configure(config: pytest.Config) -> None:
    """Soak and device tests run only when they are asked for with `-m soak` or `-m device`."""
    # A test sees what a first build does, unless it is about the cache.
    os.environ[cache.FOLDER] = ""
    if not config.option.markexpr:
        config.option.markexpr = "not soak and not device"


# What takes minutes: begun last, it would leave the other core idle.
LONGEST = ("test_real_models.py", "test_pipeline.py", "test_keras2.py", "test_cli.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest files, in `LONGEST`'s order, and with TensorFlow's before others."""
    rank = {name: number for number, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        return rank.get(item.path.name, len(rank)), item.get_closest_marker("tf") is None

    items.sort(key=place)
    if os.environ.get("PACKAGER_SOAK_DIVISOR", "1") != "1":
        items[:] = [item for item in items if item.get_closest_marker("whole") is None]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """With PACKAGER_FORBID_SKIPS a skip is a failure: CI must not pass by leaving tests out."""
    outcome = yield
    report = outcome.get_result()
    if (
        report.skipped
        and os.environ.get("PACKAGER_FORBID_SKIPS")
        and not hasattr(report, "wasxfail")
    ):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(text in reason for text in EXPECTED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: unexpected skip: {reason}"


@dataclass(frozen=True)
class Ran:
    """A finished command; `json` is its standard output, parsed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def packager(*arguments: object, cwd: Path | None = None, **environment: str) -> Ran:
    """Runs the command line in a child process."""
    done = subprocess.run(
        [sys.executable, "-m", "packager", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models and data beside the project."""
    if not SHARED.is_dir():
        pytest.skip("../shared is missing: real models and data stand beside the project")
    return SHARED


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], Any]], Path]:
    """Makes a folder once per test run, whichever worker process comes first."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent

    def make(name: str, fill: Callable[[Path], Any]) -> Path:
        folder = base / f"once-{name}"
        with (base / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                staging = base / f"once-{name}.making"
                staging.mkdir(exist_ok=True)
                fill(staging)
                staging.rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def models(once: Callable[..., Path]) -> Path:
    """Small Keras and TensorFlow models, good and bad; see tests/make_models.py."""

    def make(folder: Path) -> None:
        script = ROOT / "tests" / "make_models.py"
        done = subprocess.run(
            [sys.executable, script, folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return once("models", make)


@pytest.fixture(scope="session")
def digits_bundle(once: Callable[..., Path]) -> Path:
    """The bundle that `make demo` builds."""

    def make(folder: Path) -> None:
        ran = packager("build", "--config", DIGITS / "package.yaml", "--output", folder, "--json")
        assert ran.code == 0, ran.err
        (folder / "result.json").write_text(ran.out)

    return once("digits", make) / "digits" / "1"


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """An .npz file as a dictionary; the file is closed."""
    with np.load(path, allow_pickle=False) as stored:
        yield {name: stored[name] for name in stored.files}
