"""The server under load for a long time: switches, overload, memory."""

import collections
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.server.serving import Serving

pytestmark = [pytest.mark.soak, pytest.mark.tf]

DIVISOR = int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1"))
SWITCH_EVERY_S = 2.0
SWITCHES = max(2, 30 // DIVISOR)
CLIENTS = 32
REQUESTS = max(5_000, 200_000 // DIVISOR)
OVERLOAD_CLIENTS = 200
OVERLOAD_S = max(3.0, 30.0 / DIVISOR)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    script = Path(__file__).with_name("make_versions.py")
    done = subprocess.run(
        [sys.executable, script, folder, "4"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def serve(tmp_path, saved, *flags, batching="num_batch_threads { value: 2 }"):
    base = tmp_path / "m"
    shutil.copytree(saved / "1", base / "1")
    (tmp_path / "batching").write_text(batching)
    return base, Serving(
        tmp_path, f"--model_base_path={base}", "--file_system_poll_wait_seconds=0.2",
        "--enable_batching", f"--batching_parameters_file={tmp_path / 'batching'}", *flags,
    )  # fmt: skip


class Client(threading.Thread):
    """Sends requests over a kept connection; counts statuses, checks that rows agree."""

    def __init__(self, address, number, stop):
        super().__init__()
        self._connection = http.client.HTTPConnection(*address, timeout=60)
        self._stop_when = stop
        self._rows = [[number + row, number - row] for row in range(1, 3)]
        self.statuses = collections.Counter()
        self.versions = collections.Counter()
        self.problems = []

    def run(self):
        while not self._stop_when():
            try:
                self._one()
            except Exception as error:
                self.problems.append(repr(error))
                self._connection.close()
        self._connection.close()

    def _one(self):
        self._connection.request(
            "POST", "/v1/models/m:predict", json.dumps({"instances": self._rows})
        )
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        self.statuses[answer.status] += 1
        if answer.status == 200:
            self.versions[self._version(body["predictions"])] += 1

    def _version(self, answers):
        """Returns the version that all numbers of an answer come from."""
        found = {
            (y - 1.0) / x
            for xs, ys in zip(self._rows, answers, strict=True)
            for x, y in zip(xs, ys, strict=True)
            if x
        }
        assert max(found) - min(found) < 1e-4, f"one answer of several versions: {found}"
        return round(max(found))


def load(address, count, stop):
    clients = [Client(address, number + 3, stop) for number in range(count)]
    for one in clients:
        one.start()
    return clients


def joined(clients):
    for one in clients:
        one.join(120)
    assert [problem for one in clients for problem in one.problems] == []
    return (
        sum((one.statuses for one in clients), collections.Counter()),
        sum((one.versions for one in clients), collections.Counter()),
    )


def memory_bytes(server):
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def test_versions_switch_under_load(tmp_path, saved):
    base, server = serve(tmp_path, saved)
    try:
        server.wait()
        ended = threading.Event()
        clients = load(server.rest, CLIENTS, ended.is_set)
        for number in range(2, SWITCHES + 2):
            time.sleep(SWITCH_EVERY_S)
            staging = base / f".{number}"
            shutil.copytree(saved / str((number - 1) % 4 + 1), staging)
            staging.rename(base / str(number))
            if number > 2:
                shutil.rmtree(base / str(number - 2))
        time.sleep(SWITCH_EVERY_S)
        ended.set()
        statuses, versions = joined(clients)
        print(f"{sum(statuses.values())} answers over {SWITCHES} switches: {dict(versions)}")
        assert set(statuses) == {200}
        assert len(versions) == min(4, SWITCHES + 1)
    finally:
        server.stop()


def test_overload_is_refused_and_memory_stays(tmp_path, saved):
    small = "max_batch_size { value: 4 }\nmax_enqueued_batches { value: 2 }"
    _, server = serve(tmp_path, saved, batching=small)
    try:
        server.wait()
        end = time.monotonic() + OVERLOAD_S
        clients = load(server.rest, OVERLOAD_CLIENTS, lambda: time.monotonic() > end)
        time.sleep(OVERLOAD_S / 3)
        before = memory_bytes(server)
        statuses, _ = joined(clients)
        print(f"overload: {dict(statuses)}")
        assert statuses[200] > 0 and set(statuses) <= {200, 503}
        assert memory_bytes(server) < before + 64 * MEGABYTE
        assert server.send("GET", "/readyz")[0] == 200
    finally:
        server.stop()


def test_memory_stays_flat(tmp_path, saved):
    _, server = serve(tmp_path, saved)
    try:
        server.wait()
        counted = [0]

        def stop_at(limit):
            def stop():
                counted[0] += 1
                return counted[0] > limit

            return stop

        joined(load(server.rest, 8, stop_at(REQUESTS // 5)))
        before = memory_bytes(server)
        counted[0] = 0
        statuses, _ = joined(load(server.rest, 8, stop_at(REQUESTS)))
        after = memory_bytes(server)
        grown = (after - before) / MEGABYTE
        print(f"memory: {before // MEGABYTE} MB, {grown:+.1f} MB after {REQUESTS} requests")
        assert set(statuses) == {200}
        assert grown < 24
    finally:
        server.stop()


def test_clients_that_never_finish_are_cut_off(tmp_path, saved):
    import socket

    _, server = serve(tmp_path, saved)
    try:
        server.wait()
        with socket.create_connection(server.rest, timeout=60) as one:
            one.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            assert b"200" not in one.recv(1000)
    finally:
        server.stop()
