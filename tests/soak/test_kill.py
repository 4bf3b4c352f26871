"""A build that is killed at any moment leaves a whole bundle or none, and a rerun works.

The cache survives, too: builds go on with what killed ones left there, and make the same files.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from packager import bundle, hashes
from tests.conftest import ROOT, packager

# Full runs are done by hand; CI runs a fiftieth.
KILLS = max(1, 50 // int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1")))
LONGEST_BUILD_S = 14.0


@pytest.mark.soak
@pytest.mark.tf
def test_kill_at_random_moments(models, tmp_path):
    moments = random.Random(2)
    cache, output = tmp_path / "cache", tmp_path / "dist"
    arguments = ["build", models / "linear.keras", "--only", "tflite", "--force", "--output"]
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "packager", *map(str, [*arguments, output])],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PACKAGER_CACHE": str(cache)},
        )  # fmt: skip
        time.sleep(moments.uniform(0, LONGEST_BUILD_S))
        if process.poll() is not None:
            # It took all from the cache; the next one has work again.
            shutil.rmtree(cache, ignore_errors=True)
        # The whole group, as a machine that loses power; finished processes are gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        visible = [p for p in output.glob("linear/*") if not p.name.startswith(".")]
        for folder in visible:
            assert hashes.check_files(folder, bundle.read_manifest(folder)) == []
    for place, kept in ((output, str(cache)), (tmp_path / "anew", "")):
        ran = packager(*arguments, place, PACKAGER_CACHE=kept)
        assert ran.code == 0, ran.err
        assert [p.name for p in (place / "linear").iterdir()] == ["1"]
    assert tflite_files(output) == tflite_files(tmp_path / "anew")


def tflite_files(output):
    files = bundle.read_manifest(output / "linear" / "1").files
    return {name: entry.sha256 for name, entry in files.items() if name.startswith("tflite/")}
