"""Child processes that do what could crash, leak or pollute the parent.

A worker module calls `handlers.serve`; the parent holds a `Child` and calls its handlers by
name. Requests and answers are JSON lines over the child's standard input and output; whatever
libraries print goes to a log file, which is shown when the child dies or on `--verbose`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from packager import errors, leftovers, sandbox
from packager.cache import Cache
from packager.errors import ChildCrashed

_LOG_TAIL_LINES = 12
# Converting models of gigabytes takes minutes; what takes hours never ends.
LIMIT_S = 3 * 3600.0


@dataclass(frozen=True)
class _Request:
    """What was asked; `key` and `writes` where the answer may be remembered."""

    text: str
    stage: str
    keep: bool
    key: str = ""
    writes: tuple[Path, ...] = ()


class Pending:
    """An answer that has been asked for."""

    def __init__(self, child: Child, number: int) -> None:
        self._child = child
        self._number = number

    def result(self) -> Any:
        """Waits for the answer.

        Raises:
            PackagerError: What the handler raised.
            ChildCrashed: The child ended without an answer.
        """
        return self._child.receive(self._number)


class Child:
    """A running worker module, used as a context manager.

    When the child dies, the request that it was working on fails. It is started again, is told
    once more what it must know (requests marked `keep`), and goes on with the requests after it.

    With a cache it starts when something is asked that no earlier build has answered.

    Args:
        module: Dotted name of a module that calls `handlers.serve` when run.
        verbose: Let the child's own output through to standard error.
        temporary: A folder for the child's temporary files, which TensorFlow leaves behind.
        trusted: It runs code that the user has named, which may need the network and the user's
            environment; otherwise it gets neither. See sandbox.py.
        limit_s: A request that takes longer ends the child.
        environment: Variables of the child before the usual ones; None takes one away.
        cache: Answers of earlier builds. Those of a trusted child are not remembered: nobody knows
            what the user's code depends on.

    Attributes:
        on_event: Called with what a handler `tell`s before it answers.
    """

    def __init__(
        self,
        module: str,
        *,
        verbose: bool = False,
        temporary: Path | None = None,
        trusted: bool = False,
        limit_s: float = LIMIT_S,
        environment: Mapping[str, str | None] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.on_event: Callable[[Any], None] = lambda event: None
        self._module = module
        self._own_environment = environment or {}
        self._verbose = verbose
        self._temporary = temporary
        self._trusted = trusted
        self._limit_s = limit_s
        self._is_late = False
        self._cache = None if trusted else cache
        # What the child has been told to keep, as keys; None once one of them has no key.
        self._state: list[str] | None = []
        self._process: subprocess.Popen[str] | None = None
        self._requests: list[_Request] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._sent: deque[int] = deque()  # the requests that the child has yet to answer
        self._remembered: set[int] = set()
        self._replayed = 0
        if self._cache is None:
            self.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(at_once=kind is not None)

    @property
    def is_running(self) -> bool:
        """Whether the process has been started."""
        return self._process is not None

    def start(self) -> None:
        """Starts the process, unless it has been: it will be needed."""
        if self._process is None:
            self._start()

    def submit(
        self,
        method: str,
        stage: str,
        *,
        keep: bool = False,
        reads: Sequence[str] | None = None,
        writes: Sequence[Path] = (),
        **arguments: Any,
    ) -> Pending:
        """Asks for `method(**arguments)`.

        Args:
            method: A name in the worker's handlers.
            stage: What this does, for messages: `converting tflite/float32`.
            keep: Ask again first when the child has to be started again.
            reads: Where the answer may be remembered: names of the arguments that are files or
                folders it depends on. All others that are paths are, or hold, what is written.
            writes: The files and folders that this writes.
            **arguments: JSON values; paths may be given as `Path`.
        """
        text = json.dumps({"method": method, "arguments": arguments}, default=str)
        key = "" if reads is None else self._key(method, arguments, reads, writes)
        if keep and self._state is not None:
            self._state = [*self._state, key] if key else None
        number = len(self._requests)
        self._requests.append(_Request(text, stage, keep, key, tuple(writes)))
        answer = self._cache.restore(key, writes) if self._cache and key else None
        if answer is None:
            self._send(number)
        else:
            self._answers[number] = answer
            self._remembered.add(number)
        return Pending(self, number)

    def _key(
        self,
        method: str,
        arguments: Mapping[str, Any],
        reads: Sequence[str],
        writes: Sequence[Path],
    ) -> str:
        """The name of the answer in the cache; empty where it has none."""
        if self._cache is None or self._state is None:
            return ""
        described = {}
        for name, value in arguments.items():
            if name in reads and value is not None:
                described[name] = self._cache.digests(value)
            elif not isinstance(value, Path):
                described[name] = value
            elif not any(value == path or value in path.parents for path in writes):
                raise TypeError(f"{method}: {name} is a path that is neither read nor written")
        return self._cache.key(
            {"module": self._module, "state": self._state, "method": method, "given": described}
        )

    def call(self, method: str, stage: str, **request: Any) -> Any:
        """Asks and waits; takes what `submit` takes."""
        return self.submit(method, stage, **request).result()

    def again(self, child: Child | None = None) -> Child:
        """Asks another child what this one must keep: the one given, or a new one of this kind."""
        if child is None:
            child = Child(
                self._module,
                verbose=self._verbose,
                temporary=self._temporary,
                trusted=self._trusted,
                limit_s=self._limit_s,
                environment=self._own_environment,
            )
        for request in self._to_tell_again():
            child._requests.append(request)
            number = len(child._requests) - 1
            child._send(number)
            child.receive(number)
        return child

    def receive(self, number: int) -> Any:
        """Returns the answer to request `number`; earlier answers are kept for their askers."""
        while number not in self._answers:
            self._answer_next()
        answer = self._answers[number]
        if self._cache and self._requests[number].key:
            self._cache.count(hit=number in self._remembered)
        if "error" in answer:
            error = errors.by_name(answer["error"])(answer["message"], hint=answer["hint"])
            error.add_note(answer["traceback"])
            raise error
        return answer["value"]

    def close(self, *, at_once: bool = False) -> None:
        """Ends the child: closing its input lets it finish, `at_once` kills it."""
        if self._process is None:
            return
        if at_once:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _start(self) -> None:
        # The name goes away at once; only the open file stays.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        command = [sys.executable, "-m", self._module]
        self._process = subprocess.Popen(
            command if self._trusted else sandbox.command(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._verbose else self._log,
            env=_environment(self._temporary, self._own_environment, trusted=self._trusted),
            text=True,
            encoding="utf-8",
        )
        known = self._to_tell_again()
        self._replayed = len(known)
        for request in known:
            self._write(request.text)

    def _send(self, number: int) -> None:
        self.start()
        self._sent.append(number)
        self._write(self._requests[number].text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # _read() tells how the child ended
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()

    def _answer_next(self) -> None:
        """Waits for the answer to the first request that has none, and remembers it."""
        number = self._sent.popleft()
        request = self._requests[number]
        answer = self._answers[number] = self._read(request)
        # A refusal depends on the same as what is made.
        if self._cache and request.key and answer.get("error", "") in ("", "UnsupportedError"):
            self._cache.store(request.key, answer, request.writes)

    def _read(self, request: _Request) -> dict[str, Any]:
        while True:
            line = self._line()
            if not line:
                crash = self._crash(request.stage)
                self._go_on()
                return crash
            answer: dict[str, Any] = json.loads(line)
            if "event" in answer:
                self.on_event(answer["event"])
                continue
            if not self._replayed:
                return answer
            self._replayed -= 1
            if "error" in answer:
                return answer

    def _line(self) -> str:
        process = self._running()
        timer = threading.Timer(self._limit_s, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            return process.stdout.readline() if process.stdout else ""
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self._is_late = True
        self._running().kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ChildCrashed(f"{self._module} has not been started")
        return self._process

    def _crash(self, stage: str) -> dict[str, Any]:
        code = self._running().wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._is_late:
            how = f"ended by packager: it took longer than {self._limit_s:g} s"
            self._is_late = False
        return {
            "error": "ChildCrashed",
            "message": f"the process that was {stage} died ({how})",
            "hint": "run again with --verbose to see its output; other artifacts are kept",
            "traceback": self._log_tail(),
        }

    def _go_on(self) -> None:
        """Starts again and sends what the child must know and what it has not begun."""
        self.close(at_once=True)
        self._start()
        for number in self._sent:
            self._write(self._requests[number].text)

    def _to_tell_again(self) -> list[_Request]:
        """What another process must know: the answered requests marked `keep` that did not fail."""
        answered = [(r, self._answers.get(i)) for i, r in enumerate(self._requests) if r.keep]
        return [r for r, answer in answered if answer is not None and "error" not in answer]

    def _log_tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def _environment(
    temporary: Path | None, own: Mapping[str, str | None], *, trusted: bool
) -> dict[str, str]:
    """The child's environment: CPU only and quiet, whatever the user's shell has set."""
    environment = dict(os.environ) if trusted else sandbox.environment(os.environ)
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    environment.update(
        # Golden outputs must not depend on a GPU's reduced-precision matrix units.
        CUDA_VISIBLE_DEVICES="-1",
        KERAS_BACKEND="tensorflow",
        TF_CPP_MIN_LOG_LEVEL="2",
        TF_USE_LEGACY_KERAS="0",
        PYTHONUNBUFFERED="1",
        GLOG_minloglevel="2",
    )
    merged = {**environment, **own}
    return {name: value for name, value in merged.items() if value is not None}


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Yields a temporary folder that is removed at the end, or by a later build if it is killed."""
    name = f"{leftovers.PREFIX}{prefix}-"
    with tempfile.TemporaryDirectory(prefix=name) as made, leftovers.held(Path(made)):
        yield Path(made)
