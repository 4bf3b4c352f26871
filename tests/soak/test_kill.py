"""A build that is killed at any moment leaves a whole bundle or none, and a rerun works."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from packager import bundle
from tests.conftest import ROOT, packager

# Full runs are done by hand; CI runs a fiftieth.
KILLS = max(1, 50 // int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1")))
LONGEST_BUILD_S = 14.0


@pytest.mark.soak
@pytest.mark.tf
def test_kill_at_random_moments(models, tmp_path):
    moments = random.Random(2)
    arguments = [
        "build", models / "linear.keras", "--only", "tflite", "--output", tmp_path, "--force",
    ]  # fmt: skip
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "packager", *map(str, arguments)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        time.sleep(moments.uniform(0, LONGEST_BUILD_S))
        # The whole group, as a machine that loses power; finished processes are gone already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        visible = [p for p in tmp_path.glob("linear/*") if not p.name.startswith(".")]
        for folder in visible:
            assert bundle.check_files(folder, bundle.read_manifest(folder)) == []
    ran = packager(*arguments)
    assert ran.code == 0, ran.err
    assert [p.name for p in (tmp_path / "linear").iterdir()] == ["1"]
