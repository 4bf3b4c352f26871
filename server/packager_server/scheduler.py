"""The bounded queue between requests and models, with batching.

Worker threads take the oldest batch that is full or has waited long enough; while all of them
are busy, requests for the same signature, dtypes and shapes gather in open batches. Without
batching every request is a batch of its own in the same queue, so that the bound holds as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager_server.codes import Code, ServeError
from packager_server.model import Array, Signature, Tensors, unavailable
from packager_server.versions import Lease

log = logging.getLogger(__name__)

QUEUE_FULL = "The batch scheduling queue to which this task was submitted is full"
TIMED_OUT = "Timed out waiting for notification"

Done = Callable[[Tensors | None, ServeError | None], None]


@dataclass(frozen=True)
class Batching:
    """How requests are merged; the names are those of TensorFlow Serving's file.

    Attributes:
        enabled: Whether requests are merged at all.
        max_batch_size: Examples of a batch.
        batch_timeout_s: How long an open batch waits for more.
        max_enqueued_batches: Bound of the queue.
        num_batch_threads: Batches that run at the same time.
        allowed_batch_sizes: A batch is filled up to the next of these; the last is the largest.
        pad_variable_length_inputs: Merge unequal lengths, filled with each tensor's first value.
    """

    enabled: bool = False
    max_batch_size: int = 1000
    batch_timeout_s: float = 0.0
    max_enqueued_batches: int = 256
    num_batch_threads: int = 2
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False

    def padded_size(self, rows: int) -> int:
        """Returns the allowed size that a batch of `rows` examples is run with."""
        return next((size for size in self.allowed_batch_sizes if size >= rows), rows)


@dataclass
class Task:
    """One call of a model that waits for its turn.

    Attributes:
        lease: The version that runs it; the caller releases it after `done`.
        signature: What is called.
        inputs: Arrays by input name.
        outputs: The outputs that are wanted.
        deadline: On the clock of `time.monotonic`.
        done: Receives the outputs or the error, on a worker thread.
    """

    lease: Lease
    signature: Signature
    inputs: Tensors
    outputs: tuple[str, ...]
    deadline: float
    done: Done
    rows: int = 0
    enqueued: float = field(default_factory=time.monotonic)


class _Batch:
    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.tasks: list[Task] = []
        self.rows = 0
        self.open = True
        self.created = time.monotonic()


class Scheduler:
    """Runs tasks on worker threads."""

    def __init__(
        self, batching: Batching, observe: Callable[[str, int, float], None] | None = None
    ) -> None:
        self._batching = batching
        self._observe = observe
        self._lock = threading.Condition()
        self._queue: deque[_Batch] = deque()
        self._open: dict[Hashable, _Batch] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{index}", daemon=True)
            for index in range(batching.num_batch_threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Runs what is in the queue and ends the threads."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join()

    def is_full(self) -> bool:
        """Whether a request that needs a new batch would be refused."""
        return len(self._queue) >= self._batching.max_enqueued_batches

    def submit(self, task: Task) -> None:
        """Puts a task into the queue.

        Raises:
            ServeError: The queue is full or ends, or the task exceeds the largest batch.
        """
        key = self._key(task) if self._batching.enabled else None
        if key is not None and task.rows > self._batching.max_batch_size:
            raise ServeError(
                f"Task size {task.rows} is larger than maximum input batch size "
                f"{self._batching.max_batch_size}"
            )
        with self._lock:
            if self._stopping:
                raise unavailable("The server is shutting down")
            batch = self._open.get(key) if key is not None else None
            if batch is not None and batch.rows + task.rows > self._batching.max_batch_size:
                self._seal(batch)
                batch = None
            if batch is None:
                batch = self._new_batch(key)
            batch.tasks.append(task)
            batch.rows += task.rows
            if batch.rows >= self._batching.max_batch_size:
                self._seal(batch)
            self._lock.notify()

    def _new_batch(self, key: Hashable) -> _Batch:
        if self.is_full():
            raise unavailable(QUEUE_FULL)
        batch = _Batch(key)
        self._queue.append(batch)
        if key is None:
            batch.open = False
        else:
            self._open[key] = batch
        return batch

    def _seal(self, batch: _Batch) -> None:
        batch.open = False
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]

    def _key(self, task: Task) -> Hashable:
        """Returns what two tasks must share to be merged; None for one that stays alone."""
        sizes = {value.shape[0] for value in task.inputs.values() if value.ndim}
        scalars = any(value.ndim == 0 for value in task.inputs.values())
        fixed = any(not info.free_batch for info in task.signature.inputs.values())
        if scalars or fixed or len(sizes) != 1 or 0 in sizes:
            return None
        task.rows = sizes.pop()
        free = self._batching.pad_variable_length_inputs
        shapes = tuple(
            (name, value.dtype.str, value.ndim if free else value.shape[1:])
            for name, value in sorted(task.inputs.items())
        )
        return (id(task.lease.model), task.signature.name, task.outputs, shapes)

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            now = time.monotonic()
            for late in [task for task in batch.tasks if task.deadline <= now]:
                _finish(late, None, ServeError(TIMED_OUT, Code.DEADLINE_EXCEEDED))
            tasks = [task for task in batch.tasks if task.deadline > now]
            if tasks:
                self._run(tasks)

    def _take(self) -> _Batch | None:
        with self._lock:
            while True:
                now = time.monotonic()
                wait: float | None = None
                for index, batch in enumerate(self._queue):
                    left = batch.created + self._batching.batch_timeout_s - now
                    if not batch.open or left <= 0 or self._stopping:
                        del self._queue[index]
                        self._seal(batch)
                        return batch
                    wait = left if wait is None else min(wait, left)
                if self._stopping:
                    return None
                self._lock.wait(wait)

    def _run(self, tasks: list[Task]) -> None:
        if len(tasks) == 1 and not (self._batching.allowed_batch_sizes and tasks[0].rows):
            _run_alone(tasks[0])
            return
        if self._observe is not None:
            waited = time.monotonic() - min(task.enqueued for task in tasks)
            self._observe(tasks[0].lease.name, sum(task.rows for task in tasks), waited)
        try:
            results = _run_merged(tasks, self._batching)
        except ServeError:
            # One of them is to blame: each gets its own answer.
            for task in tasks:
                _run_alone(task)
            return
        for task, result in zip(tasks, results, strict=True):
            _finish(task, result, None)


def _finish(task: Task, outputs: Tensors | None, error: ServeError | None) -> None:
    try:
        task.done(outputs, error)
    # Whoever waits for the answer may be gone in any way; the worker must go on.
    except Exception:
        log.exception("an answer could not be handed over")


def _run_alone(task: Task) -> None:
    try:
        outputs = call(task.lease, task.signature, task.inputs, task.outputs)
    except ServeError as error:
        _finish(task, None, error)
    else:
        _finish(task, outputs, None)


def call(lease: Lease, signature: Signature, inputs: Tensors, outputs: tuple[str, ...]) -> Tensors:
    """Runs a model; every error is a `ServeError`.

    Raises:
        ServeError: The model refused or failed.
    """
    try:
        return lease.model.run(signature.name, inputs, outputs)
    except ServeError:
        raise
    # A model's own Python code may raise anything; the server and its worker go on.
    except Exception as error:
        raise ServeError(f"{type(error).__name__}: {error}", Code.INTERNAL) from error


def _run_merged(tasks: list[Task], batching: Batching) -> list[Tensors]:
    rows = sum(task.rows for task in tasks)
    padding = batching.padded_size(rows) - rows
    first = tasks[0]
    merged = {
        name: _stack([task.inputs[name] for task in tasks], padding, batching)
        for name in first.inputs
    }
    outputs = call(first.lease, first.signature, merged, first.outputs)
    for name, value in outputs.items():
        if value.ndim == 0 or len(value) != rows + padding:
            raise ServeError(
                f"Batched output tensor {name}: its 0th dimension does not equal the sum of the "
                "0th dimension sizes of the input tensors"
            )
    results, start = [], 0
    for task in tasks:
        stop = start + task.rows
        results.append({name: value[start:stop] for name, value in outputs.items()})
        start = stop
    return results


def _stack(values: list[Array], padding: int, batching: Batching) -> Array:
    if batching.pad_variable_length_inputs:
        longest = (
            np.max([value.shape[1:] for value in values], axis=0) if values[0].ndim > 1 else []
        )
        values = [_lengthened(value, longest) for value in values]
    if padding:
        values = [*values, np.repeat(values[0][:1], padding, axis=0)]
    return values[0] if len(values) == 1 else np.concatenate(values)


def _lengthened(value: Array, sizes: Any) -> Array:
    shape = (len(value), *(int(size) for size in sizes))
    if value.shape == shape or value.size == 0:
        return value
    # Any constant could be an invalid value for the model; the tensor's first one is valid.
    padded: Array = np.full(shape, value.ravel()[0], value.dtype)
    padded[tuple(slice(0, size) for size in value.shape)] = value
    return padded
