"""The edge runner for a long time: its memory and its open files do not grow."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.tf]
RUNNER = ROOT / "edge" / "run.py"
DIVISOR = int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1"))
PREDICTIONS = max(1_000, 100_000 // DIVISOR)
WATCH_S = max(10.0, 1200.0 / DIVISOR)
LARGEST_GROWTH = 2 << 20


def resources(process):
    """The resident bytes and the open files of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s*(\d+) kB", status)[1]) * 1024
    return resident, len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def check_growth(first, last, capsys):
    with capsys.disabled():
        print(f"\nmemory {first[0] / 1e6:.1f} MB, grew by {(last[0] - first[0]) / 1e3:.0f} kB")
    assert last[0] - first[0] < LARGEST_GROWTH
    assert last[1] == first[1]


def test_predictions(digits_bundle, capsys):
    """Golden pictures over and over, and a file that is missing now and then."""
    names = [str(path) for path in sorted(digits_bundle.glob("golden/*.png"))] + ["missing.png"]
    process = subprocess.Popen(
        [sys.executable, RUNNER, "predict", digits_bundle, "-", "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    answers, first = {}, None
    with process:
        for number in range(PREDICTIONS):
            name = names[number % len(names)]
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            line = json.loads(process.stdout.readline())
            assert line == answers.setdefault(name, line)
            # What is allocated once has been allocated after a tenth.
            if number == PREDICTIONS // 10:
                first = resources(process)
        last = resources(process)
        process.stdin.close()
    assert len(answers) == len(names)
    check_growth(first, last, capsys)


def test_watching_a_camera(digits_bundle, tmp_path, capsys):
    """A pipe of JPEG frames as fast as they are taken."""
    frames = []
    for number, path in enumerate(sorted(digits_bundle.glob("golden/*.png"))):
        with Image.open(path) as picture:
            picture.convert("RGB").save(tmp_path / f"{number}.jpg", quality=95)
        frames.append((tmp_path / f"{number}.jpg").read_bytes())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, RUNNER, "watch", digits_bundle, "--camera", pipe, "--fps", "200"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    until = time.monotonic() + WATCH_S

    def send():
        with contextlib.suppress(BrokenPipeError), pipe.open("wb") as file:
            number = 0
            while time.monotonic() < until:
                file.write(frames[number % len(frames)])
                number += 1

    sender = threading.Thread(target=send)
    sender.start()
    first = last = None
    count = 0
    with process:
        for line in process.stdout:
            assert "label" in json.loads(line)
            count += 1
            if time.monotonic() > until:
                break
            last = resources(process) if count % 50 == 0 else last
            if first is None and time.monotonic() > until - 0.9 * WATCH_S and count > 100:
                first = resources(process)
        process.kill()
        sender.join()
        process.stdout.read()
    assert count > 200
    check_growth(first, last, capsys)


def test_install_for_real(digits_bundle, tmp_path):
    """What install.sh sets up on this machine verifies a bundle; pip downloads the packages."""
    venv = tmp_path / "venv"
    # Without what the environment of the tests offers, as on a device.
    paths = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    script = ["sh", ROOT / "edge" / "install.sh", "--venv", venv, "--python", sys.executable]
    done = subprocess.run(
        script, capture_output=True, text=True, env={**os.environ, **paths}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chosen: ai-edge-litert" in done.stdout
    verify = [venv / "bin/python", RUNNER, "verify", digits_bundle, "--json"]
    done = subprocess.run(
        verify, capture_output=True, text=True, env={**os.environ, **paths}, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["runtime"]["name"] == "ai-edge-litert"
    assert {entry["status"] for entry in report["artifacts"]} == {"passed"}
