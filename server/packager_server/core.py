"""The server without a protocol: versions, the queue, and the counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from packager_server.codes import Code, ServeError
from packager_server.lifecycle import Lifecycle, Loader, ModelConfig
from packager_server.metrics import Metrics
from packager_server.model import Signature, Tensors
from packager_server.scheduler import TIMED_OUT, Batching, Done, Scheduler, Task
from packager_server.versions import Lease, VersionManager


@dataclass(frozen=True)
class Call:
    """A checked request that can be run; it owns its lease until it is run or dropped.

    Attributes:
        lease: The version.
        signature: What is called.
        inputs: Arrays by input name.
        outputs: The outputs that are wanted.
        api: The method's name in the metrics.
    """

    lease: Lease
    signature: Signature
    inputs: Tensors
    outputs: tuple[str, ...]
    api: str = "predict"

    @property
    def examples(self) -> int:
        """The size of the first axis of the inputs; 1 without one."""
        sizes = [value.shape[0] for value in self.inputs.values() if value.ndim]
        return sizes[0] if sizes else 1


class ServingCore:
    """Runs calls on the versions that are loaded."""

    def __init__(
        self,
        loader: Callable[[Metrics], Loader],
        *,
        lifecycle: Lifecycle | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.versions = VersionManager(loader(self.metrics), lifecycle)
        self.scheduler = Scheduler(batching or Batching(), self.metrics.batch)

    def start(self, configs: Iterable[ModelConfig]) -> None:
        """Begins to load the models in the background."""
        self.versions.start(configs)

    def stop(self) -> None:
        """Finishes the queued calls, then closes every model."""
        self.scheduler.stop()
        self.versions.stop()

    def count_request(
        self, model: str, api: str, entrypoint: str, code: str, seconds: float
    ) -> None:
        """Counts a finished request; names that clients made up are counted together."""
        known = model if self.versions.knows(model) else ""
        self.metrics.request(known, api, entrypoint, code, seconds)

    def submit(self, call: Call, timeout_s: float, done: Done) -> None:
        """Queues a call; `done` receives its outputs or its error on a worker thread.

        Raises:
            ServeError: The queue is full. `done` is not called then.
        """
        started = time.monotonic()

        def finish(outputs: Tensors | None, error: ServeError | None) -> None:
            call.lease.release()
            seconds = time.monotonic() - started
            self.metrics.run(call.lease.name, call.api, call.examples, seconds)
            done(outputs, error)

        task = Task(
            call.lease, call.signature, call.inputs, call.outputs, started + timeout_s, finish
        )
        try:
            self.scheduler.submit(task)
        except ServeError:
            call.lease.release()
            raise

    def run(self, call: Call, timeout_s: float) -> Tensors:
        """Queues a call and waits for it.

        Raises:
            ServeError: The queue is full, the time is over, or the model failed.
        """
        ended = threading.Event()
        result: list[tuple[Tensors | None, ServeError | None]] = []

        def done(outputs: Tensors | None, error: ServeError | None) -> None:
            result.append((outputs, error))
            ended.set()

        self.submit(call, timeout_s, done)
        if not ended.wait(timeout_s):
            raise ServeError(TIMED_OUT, Code.DEADLINE_EXCEEDED)
        outputs, error = result[0]
        if outputs is None:
            raise error or ServeError("the model gave no outputs", Code.INTERNAL)
        return outputs
