"""Runners as child processes: their answers, exit codes, and what an interruption does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.bundle import Artifact, Runtime
from packager.errors import EnvironmentLacks, PackagerError
from packager.verify import runners
from packager.verify.bundle_check import BundleCheck
from packager.verify.runners import Runner

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
ARTIFACT = Artifact("tflite/int8", "a.tflite", Runtime("tflite"))
FAKE = """
import json, pathlib, sys
log = pathlib.Path(__file__).with_name("calls")
log.write_text(log.read_text() + sys.argv[1] + "\\n" if log.exists() else sys.argv[1] + "\\n")
print({text!r})
print("what went wrong", file=sys.stderr)
sys.exit({code})
"""


def fake(folder: Path, code: int, answer: Any) -> Runner:
    """A runner that prints an answer (or a text) and exits."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    (folder / "fake.py").write_text(FAKE.format(text=text, code=code))
    return Runner("edge", ("tflite",), (sys.executable, str(folder / "fake.py")))


def entry(status: str, samples: int, reason: str = "") -> dict[str, Any]:
    return {"id": "tflite/int8", "status": status, "samples": samples, "reason": reason}


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_a_document_is_an_answer(tmp_path: Path, code: int) -> None:
    answer = {"artifacts": [entry("skipped", 0, "needs ai-edge-litert 9")]}
    assert fake(tmp_path, code, answer).verify(tmp_path) == answer


@pytest.mark.parametrize(
    ("code", "answer", "kind"),
    [
        (0, "no document", PackagerError),
        (1, "", PackagerError),
        (2, {"artifacts": []}, PackagerError),
        (0, "[1]", PackagerError),
        (4, "", EnvironmentLacks),
    ],
)
def test_without_a_document_the_error_says_why(
    tmp_path: Path, code: int, answer: Any, kind: type[PackagerError]
) -> None:
    with pytest.raises(PackagerError, match=rf"\(exit code {code}\): what went wrong") as caught:
        fake(tmp_path, code, answer).verify(tmp_path)
    assert type(caught.value) is kind


def test_a_skipped_artifact_keeps_its_reason_and_is_not_run_again(tmp_path: Path) -> None:
    runner = fake(tmp_path, 4, {"artifacts": [entry("skipped", 0, "needs ai-edge-litert 9")]})
    found = runner.record(tmp_path, ARTIFACT, tmp_path / "values", (tmp_path, tmp_path))
    assert found == entry("skipped", 0, "needs ai-edge-litert 9")
    assert (tmp_path / "calls").read_text().split() == ["verify"]


def test_an_artifact_that_runs_also_runs_the_evaluation(tmp_path: Path) -> None:
    runner = fake(tmp_path, 0, {"artifacts": [entry("recorded", 4)]})
    found = runner.record(tmp_path, ARTIFACT, tmp_path / "values", (tmp_path, tmp_path))
    assert found["samples"] == 4
    assert (tmp_path / "calls").read_text().split() == ["verify", "run"]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([entry("passed", 4), entry("skipped", 0)], 0),
        ([entry("failed", 4), entry("passed", 4)], 3),
        ([entry("failed", 0)], 1),
        ([entry("failed", 4), entry("failed", 0)], 1),
        ([{"id": "tflite/int8", "status": "missing", "reason": ""}], 1),
        ([{"id": "tflite/int8", "status": "error", "reason": "died"}, entry("failed", 4)], 1),
    ],
)
def test_exit_codes_of_a_checked_bundle(answers: list[dict[str, Any]], code: int) -> None:
    assert BundleCheck(ROOT, 3, (), tuple(answers)).exit_code == code
    assert BundleCheck(ROOT, 3, (("a", "changed"),), tuple(answers)).exit_code == 1


# Two runners at work and one that waits for its turn, then an interruption.
WAITING = """
import signal, sys
from pathlib import Path
from packager.verify import runners

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupt)
folder = Path(sys.argv[1])
sleeper = (sys.executable, str(folder / "sleeper.py"))
runner = runners.Runner("edge", ("tflite",), sleeper)
try:
    with runners.pool(2) as pool:
        tasks = [pool.submit(runner.verify, folder / str(i)) for i in range(3)]
        if sys.argv[2] == "inside":
            tasks[0].result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
SLEEPER = """
import os, sys, time
from pathlib import Path
Path(sys.argv[2] + ".pid").write_text(str(os.getpid()))
time.sleep(3600)
"""


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("where", ["inside", "leaving"])
def test_an_interruption_ends_the_runners(tmp_path: Path, where: str) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    caller = subprocess.Popen(
        [sys.executable, "-c", WAITING, tmp_path, where],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    notes = [tmp_path / "0.pid", tmp_path / "1.pid"]
    pids = []
    try:
        deadline = time.monotonic() + LIMIT_S
        while not all(note.exists() and note.read_text() for note in notes):
            assert time.monotonic() < deadline, "the runners did not start"
            time.sleep(0.02)
        pids = [int(note.read_text()) for note in notes]
        assert all(map(is_alive, pids))
        caller.send_signal(signal.SIGTERM)
        out, _ = caller.communicate(timeout=LIMIT_S)
        assert (caller.returncode, out) == (0, "interrupted\n")
        assert not any(map(is_alive, pids))
        assert not (tmp_path / "2.pid").exists()
    finally:
        for pid in filter(is_alive, [caller.pid, *pids]):
            os.kill(pid, signal.SIGKILL)


def test_the_next_pool_runs_again_after_all_were_stopped(tmp_path: Path) -> None:
    runner = fake(tmp_path, 0, {"artifacts": []})
    runners.stop_all()
    with pytest.raises(PackagerError, match="interrupted"):
        runner.verify(tmp_path)
    with runners.pool(1) as pool:
        assert pool.submit(runner.verify, tmp_path).result() == {"artifacts": []}


def test_a_runner_without_an_answer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setattr(runners, "TIMEOUT_S", 2.0)
    runner = Runner("edge", ("tflite",), (sys.executable, str(tmp_path / "sleeper.py")))
    with pytest.raises(PackagerError, match="gave no answer in 2 s"):
        runner.verify(tmp_path / "one")
    assert not is_alive(int((tmp_path / "one.pid").read_text()))


DOUBLE = """
import json, pathlib, sys
import numpy as np
command, model, *rest = sys.argv[1:]
if command == "verify":
    print(json.dumps({"artifacts": [{"id": "tflite/int8", "status": "recorded"}]}))
    sys.exit()
inputs, outputs = (pathlib.Path(rest[rest.index(flag) + 1]) for flag in ("--inputs", "--outputs"))
outputs.mkdir(exist_ok=True)
x = np.load(inputs / "x.npy")
with open(model + ".log", "a") as log:
    log.write(f"{len(x)}\\n")
np.save(outputs / "y.npy", 2 * x)
print("{}")
"""


@pytest.mark.parametrize(("count", "shared"), [(2501, [833, 834, 834]), (999, [999])])
def test_many_evaluation_samples_are_shared_between_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, shared: list[int]
) -> None:
    (tmp_path / "double.py").write_text(DOUBLE)
    runner = Runner("edge", ("tflite",), (sys.executable, str(tmp_path / "double.py")))
    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    inputs.mkdir()
    x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    np.save(inputs / "x.npy", x)
    monkeypatch.setattr(runners, "_LEAST_PART", 800)
    runner.record(tmp_path, ARTIFACT, tmp_path / "values", (inputs, outputs), parts=4)
    log = (tmp_path / "a.tflite.log").read_text().split()
    assert sorted(map(int, log)) == shared
    assert np.array_equal(np.load(outputs / "y.npy"), 2 * x)
    assert [p.name for p in tmp_path.glob("tmp*")] == []
