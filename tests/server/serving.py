"""A server of this project as a child process, and ways to talk to it without TensorFlow."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import grpc
from tensorflow_serving.config import model_server_config_pb2

from tests.conftest import ROOT
from tests.server.replay import send

START_LIMIT_S = 120
STOP_LIMIT_S = 40


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Serving:
    """One running server; `rest` and `grpc` are its addresses, `log` what it wrote so far."""

    def __init__(self, folder, *flags, environment=None, module="packager_server"):
        self.rest = ("127.0.0.1", free_port())
        self.grpc = f"127.0.0.1:{free_port()}"
        # Whatever a caller of `configure` wants to remember about what is loaded.
        self.holds = None
        self.log_path = folder / f"server-{self.rest[1]}.log"
        command = [
            sys.executable, "-m", module, f"--rest_api_port={self.rest[1]}",
            f"--port={self.grpc.rpartition(':')[2]}", *flags,
        ]  # fmt: skip
        self._log = self.log_path.open("w")
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "server"), **(environment or {})},
        )  # fmt: skip

    @property
    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def send(self, method, target, body=None, headers=None, timeout=60):
        data = body.encode() if isinstance(body, str) else body
        return send(self.rest, method, target, data, headers, timeout)

    def json(self, method, target, body=None):
        status, _, data = self.send(method, target, None if body is None else json.dumps(body))
        return status, json.loads(data)

    def wait(self, ready="/readyz"):
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError):
                if self.send("GET", ready)[0] == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError(f"not ready: {self.log}")

    def configure(self, *models):
        """Replaces the models (name, folder, labels, policy text) over gRPC."""
        self.holds = None
        config = model_server_config_pb2.ModelServerConfig()
        for name, folder, labels, *policy in models:
            entry = config.model_config_list.config.add(name=name, base_path=str(folder))
            entry.model_platform = "tensorflow"
            for label, version in labels.items():
                entry.version_labels[label] = version
            for numbers in policy:
                entry.model_version_policy.specific.versions.extend(numbers)
        config.model_config_list.SetInParent()
        data = config.SerializeToString()
        # The request's message needs all of TensorFlow; its one field is easily written.
        payload = b"\x0a" + _varint(len(data)) + data
        method = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
        with grpc.insecure_channel(self.grpc) as channel:
            answer = channel.unary_unary(method)(payload, timeout=START_LIMIT_S)
        return answer

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        return self.process.returncode


def _varint(number):
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)
