"""Scratch folders of killed builds are removed by later ones; those of living ones are not."""

import os
import subprocess
import sys
import tempfile

import pytest

from packager.children import scratch
from tests.conftest import ROOT

LIVING = (
    "from packager.children import scratch\nimport time\n"
    "with scratch('build') as folder:\n  print(folder, flush=True)\n  time.sleep(600)\n"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(path):
    os.utime(path, (1e9, 1e9))
    return path


def test_what_a_killed_build_left_is_removed(place):
    process = subprocess.Popen(
        [sys.executable, "-c", LIVING], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)},
    )  # fmt: skip
    with process:
        folder = place / process.stdout.readline().strip()
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        with scratch("build"):
            assert aged(folder).is_dir()
        with scratch("build"):
            assert folder.is_dir(), "its process lives"
        process.kill()
    with scratch("inspect") as other:
        assert list(place.iterdir()) == [other]
    assert list(place.iterdir()) == []


def test_everything_else_is_left_alone(place, monkeypatch):
    (place / "elsewhere").mkdir()
    (place / "packager-scratch-build-abcd_123").symlink_to(place / "elsewhere")
    (place / "packager-scratch-build-file0000").touch()
    (place / "packager-scratch-build-young000").mkdir()
    for name in ("packager-server-abcd_123", "packager-scratch-build-abcd_123.d", "other"):
        (place / name).mkdir()
    for path in place.iterdir():
        if "young" not in path.name:
            os.utime(path, (1e9, 1e9), follow_symlinks=False)
    before = sorted(place.iterdir())
    with scratch("build"):
        pass
    assert sorted(place.iterdir()) == before
    (place / "packager-scratch-build-abcd_124").mkdir()
    aged(place / "packager-scratch-build-abcd_124")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with scratch("build"):
        pass
    assert (place / "packager-scratch-build-abcd_124").is_dir(), "another user's"


def test_a_clock_that_goes_back_removes_nothing_new(place):
    future = place / "packager-scratch-build-abcd_123"
    future.mkdir()
    os.utime(future, (4e9, 4e9))
    with scratch("build"):
        assert future.is_dir()
