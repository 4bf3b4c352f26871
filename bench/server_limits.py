"""This server alone: overload, gRPC, and how near it comes to the bare model function.

    python -m bench.server_limits [--seconds 8]

Steady: latency at 80 % of the peak, requests at fixed times from 64 connections (h2load, from
Debian's nghttp2-client). Overload: 64 connections against 512, with a queue of 4 batches of 16.
Bare: MobileNetV2 at 224 x 224 in a loop at its best batch size, against single-image gRPC requests
of 32 clients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.server import MOBILENET, MODEL, WORK, Contender, contenders, load, prepare, running

SMALL_QUEUE = """max_batch_size { value: 16 }
max_enqueued_batches { value: 4 }
num_batch_threads { value: 1 }
"""

# The next batch is put together while one is running.
BATCHES_OF = """max_batch_size {{ value: {} }}
max_enqueued_batches {{ value: 100 }}
num_batch_threads {{ value: 2 }}
"""

BARE = """
import sys, time, numpy as np
from packager_server import saved_model
model = saved_model.load(sys.argv[1] + "/1")
signature = model.signatures["serving_default"]
(name,), outputs = signature.inputs, tuple(signature.outputs)
shape = signature.inputs[name].shape[1:]
best = (0, 0)
for batch in (1, 2, 4, 8, 16, 32):
    x = {name: np.random.default_rng(0).uniform(size=(batch, *shape)).astype(np.float32)}
    model.run("serving_default", x, outputs)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < float(sys.argv[2]) / 6:
        model.run("serving_default", x, outputs)
        count += batch
    best = max(best, (count / (time.perf_counter() - start), batch))
print(*best)
"""

# Requests are serialized once: the client should cost little.
GRPC = """
import sys, time, threading, grpc, numpy as np, tensorflow as tf
from tensorflow_serving.apis import predict_pb2
address, seconds, clients, name = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
shape = [int(n) for n in sys.argv[5].split(",")]
request = predict_pb2.PredictRequest()
request.model_spec.name = "m"
x = np.random.default_rng(0).uniform(size=shape).astype(np.float32)
request.inputs[name].CopyFrom(tf.make_tensor_proto(x))
data = request.SerializeToString()
call = grpc.insecure_channel(address).unary_unary("/tensorflow.serving.PredictionService/Predict")
call(data, timeout=60)
counts, end = [0] * clients, time.perf_counter() + seconds
def client(index):
    while time.perf_counter() < end:
        call(data, timeout=60)
        counts[index] += 1
threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
start = time.perf_counter()
[t.start() for t in threads]
[t.join() for t in threads]
print(sum(counts) / (time.perf_counter() - start))
"""


def python(code: str, *arguments: object) -> str:
    """Runs a script in a child process; returns its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def ours(model: Path, grpc_port: int) -> Contender:
    """Returns this server with another model and an open gRPC port."""
    found = contenders(model)[0]
    flags = [flag for flag in found.command if not flag.startswith("--port")]
    return replace(found, command=(*flags, f"--port={grpc_port}"))


def steady(seconds: int) -> None:
    connections, log = 64, WORK / "h2load.log"
    with running(contenders()[0]) as (url, _):
        load(url, connections, 3)
        peak = load(url, connections, seconds)
        rate = 0.8 * peak.per_second
        log.unlink(missing_ok=True)
        subprocess.run(
            [
                "h2load", "--h1", "-t1", f"-c{connections}", f"--rps={rate / connections:.3f}",
                f"-D{seconds}", f"--log-file={log}", "-d", WORK / "body.json",
                "-H", "content-type: application/json", url,
            ],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    p50, p99 = np.percentile(rows[:, 2], (50, 99)) / 1000
    print(
        f"steady: {len(rows) / seconds:.0f} req/s, 80 % of {peak.per_second:.0f}: p50 {p50:.1f} ms,"
        f" p99 {p99:.1f} ms ({p99 / p50:.1f} times), {int((rows[:, 1] != 200).sum())} not 200"
    )


def overload(seconds: int) -> None:
    (WORK / "batching.txt").write_text(SMALL_QUEUE)
    with running(contenders()[0]) as (url, _):
        load(url, 64, 3)
        peak = load(url, 64, seconds)
        heavy = load(url, 512, seconds)
    prepare()
    answered = heavy.per_second - heavy.errors / seconds
    print(
        f"overload: {peak.per_second:.0f} req/s at 64 connections ({peak.errors} refused); at 512 "
        f"{answered:.0f} answered and {heavy.errors / seconds:.0f} refused a second: "
        f"{answered / (peak.per_second - peak.errors / seconds):.2f} of the peak"
    )


def grpc_digits(seconds: int) -> None:
    with running(ours(MODEL, 9876)) as (url, _):
        rest = load(url, 32, seconds)
        rate = float(python(GRPC, "127.0.0.1:9876", seconds, 32, "image", "1,28,28,1"))
    print(f"digits, 32 clients: gRPC {rate:.0f} req/s (Python client), REST {rest.per_second:.0f}")


def bare_and_served(seconds: int) -> None:
    prepare(MOBILENET)
    name = python(NAME, MOBILENET)
    bare, served, best = 0.0, 0.0, "4"
    # By turns: the machine's own speed changes from minute to minute.
    for _ in range(2):
        rate, best = python(BARE, MOBILENET, 2 * seconds).split()
        bare += float(rate) / 2
        (WORK / "batching.txt").write_text(BATCHES_OF.format(best))
        with running(replace(ours(MOBILENET, 9876), path="/v1/models/m", body=False)):
            rate = python(GRPC, "127.0.0.1:9876", 2 * seconds, 32, name, "1,224,224,3")
        served += float(rate) / 2
    prepare()
    print(
        f"MobileNetV2: bare {bare:.1f} images/s in batches of {best}, served over gRPC"
        f" {served:.1f}: {served / bare:.2f}"
    )


NAME = """
import sys
from packager_server import saved_model
print(*saved_model.load(sys.argv[1] + "/1").signatures["serving_default"].inputs)
"""


def main() -> None:
    """Prints one line for each question."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument(
        "--only", default="", help="steady, overload, grpc_digits or bare_and_served"
    )
    arguments = parser.parse_args()
    prepare()
    for question in (steady, overload, grpc_digits, bare_and_served):
        if arguments.only in ("", question.__name__):
            question(arguments.seconds)


if __name__ == "__main__":
    main()
