"""Serving: this server against LitServe, BentoML, mosec and Flask, with wrk, side by side.

    python -m bench.server [--model digits|mobilenet] [--seconds 8] [--only NAME ...]

The digits example as JSON (8 kB), or a MobileNetV2 at 224 x 224 (1.4 MB), at 1, 8 and 64
connections. Needs wrk; the others come into an environment of their own, bench/.work/peers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import environments

HERE = Path(__file__).parent
ROOT = HERE.parent
WORK = HERE / ".work"
MODEL = WORK / "digits"
MOBILENET = WORK / "mobilenet"
SHAPES = {MODEL: (1, 28, 28, 1), MOBILENET: (1, 224, 224, 3)}
CONNECTIONS = (1, 8, 64)
START_LIMIT_S = 180

PEERS = (
    "tensorflow==2.21.0", "keras==3.15.1", "litserve==0.2.19", "bentoml==1.4.40", "mosec==0.9.8",
    "flask", "gunicorn",
)  # fmt: skip
EXPORT = """
import keras, sys
keras.utils.set_random_seed(0)
if sys.argv[1]:
    model = keras.saving.load_model(sys.argv[1])
else:
    model = keras.applications.MobileNetV2(weights=None)
model.save(sys.argv[2] + "/model.keras")
model.export(sys.argv[2] + "/1", verbose=False)
"""
LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("{body}", "rb"):read("*a")
"""
BATCHING = """max_batch_size { value: 64 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""


@dataclass(frozen=True)
class Contender:
    """A server: how it is started, where it answers, and whether that takes the request's body.

    PORT stands for its port in the command.
    """

    name: str
    command: tuple[str, ...]
    path: str = "/v1/models/m:predict"
    body: bool = True


@dataclass(frozen=True)
class Load:
    """What wrk says about one load."""

    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


def contenders(model: Path = MODEL) -> list[Contender]:
    """All servers, each in the best setting that its documentation names."""
    peers = WORK / "peers" / "bin"
    python = str(peers / "python")
    gunicorn = (str(peers / "gunicorn"), "-k", "gthread", "-w", "1", "--threads", "16")
    bind = ("-b", "127.0.0.1:PORT", "--log-level", "error")
    ours = (
        sys.executable, "-m", "packager_server", f"--model_base_path={model}", "--model_name=m",
        "--rest_api_port=PORT", "--port=0", "--enable_batching",
        f"--batching_parameters_file={WORK / 'batching.txt'}",
    )  # fmt: skip
    bento = (str(peers / "bentoml"), "serve", "bentoml_app:Digits", "-p", "PORT", "--timeout", "60")
    return [
        Contender("this server", ours),
        Contender(
            "mosec", (python, "mosec_app.py", "--port", "PORT", "--timeout", "60000"), "/inference"
        ),
        Contender("Flask, signature, gunicorn", (*gunicorn, *bind, "flask_signature:app")),
        Contender("BentoML", bento, "/predict"),
        Contender("LitServe", (python, "litserve_app.py", "PORT")),
        Contender("Flask, model.predict, gunicorn", (*gunicorn, *bind, "flask_predict:app")),
    ]


def prepare(model: Path = MODEL) -> None:
    """Makes the model, the request, the others' environment and the files that wrk reads."""
    WORK.mkdir(exist_ok=True)
    environments.interpreter("peers", PEERS)
    if not (model / "1").is_dir():
        model.mkdir(exist_ok=True)
        source = ROOT / "examples" / "digits" / "model.keras" if model == MODEL else ""
        subprocess.run(
            [sys.executable, "-c", EXPORT, source, model], check=True, stdout=subprocess.DEVNULL
        )
    image = np.random.default_rng(0).uniform(size=SHAPES[model]).round(6).tolist()
    body = json.dumps({"instances": image}, separators=(",", ":"))
    (WORK / "body.json").write_text(body)
    (WORK / "post.lua").write_text(LUA.format(body=WORK / "body.json"))
    (WORK / "batching.txt").write_text(BATCHING)


@contextlib.contextmanager
def running(contender: Contender, model: Path = MODEL) -> Iterator[tuple[str, int]]:
    """Starts a server in its own process group; yields its URL and process id."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    command = [part.replace("PORT", port) for part in contender.command]
    environment = {
        **os.environ, "BENCH_MODEL": str(model), "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": f"{ROOT / 'server'}:{HERE / 'peers'}",
    }  # fmt: skip
    log = (WORK / "server.log").open("w")
    process = subprocess.Popen(
        command, cwd=HERE / "peers", env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}{contender.path}"
        _wait(url if contender.body else f"http://127.0.0.1:{port}/readyz", process, contender.body)
        yield url, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def _wait(url: str, process: subprocess.Popen[bytes], with_body: bool) -> None:
    body = (WORK / "body.json").read_bytes() if with_body else None
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"it ended: {(WORK / 'server.log').read_text()[-2000:]}")
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"no answer: {(WORK / 'server.log').read_text()[-2000:]}")


def load(url: str, connections: int, seconds: int) -> Load:
    """Runs wrk once."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--timeout", "60s", "--latency"]
    done = subprocess.run(
        [*command, "-s", str(WORK / "post.lua"), url], capture_output=True, text=True, check=True
    )
    found = dict(re.findall(r"^\s+(50|99)%\s+(\S+)\s*$", done.stdout, re.M))
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    per_second = float(rate[1]) if rate else 0.0
    errors = int(bad[1]) if bad else 0
    return Load(per_second, _ms(found["50"]), _ms(found["99"]), errors)


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}[unit]


def memory_mb(group: int) -> float:
    """Returns the proportional memory of all processes of a group, in MB."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                text = (folder / "smaps_rollup").read_text()
                total += int(text.split("Pss:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return total / 1024


def main() -> None:
    """Prints the table as Markdown, row by row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("digits", "mobilenet"), default="digits")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    model = MODEL if arguments.model == "digits" else MOBILENET
    prepare(model)
    print("| | 1: req/s, p50, p99 ms | 8 | 64 | MB | errors |\n|---|---|---|---|---|---|")
    for contender in contenders(model):
        if arguments.only and contender.name not in arguments.only:
            continue
        with running(contender, model) as (url, pid):
            load(url, 64, 3)
            loads = [load(url, connections, arguments.seconds) for connections in CONNECTIONS]
            memory = memory_mb(pid)
        cells = [f"{one.per_second:.0f}, {one.p50_ms:.1f}, {one.p99_ms:.1f}" for one in loads]
        errors = sum(one.errors for one in loads)
        print(f"| {contender.name} | {' | '.join(cells)} | {memory:.0f} | {errors} |", flush=True)


if __name__ == "__main__":
    main()
