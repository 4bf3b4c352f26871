"""Child processes that do what could crash, leak or pollute the parent.

A worker module calls `serve(handlers)`; the parent holds a `Child` and calls those handlers by
name. Requests and answers are JSON lines over the child's standard input and output; whatever
libraries print goes to a log file, which is shown when the child dies or on `--verbose`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from packager import errors, leftovers, sandbox
from packager.errors import PackagerError

Handler = Callable[..., Any]

_LOG_TAIL_LINES = 12
# Converting models of gigabytes takes minutes; what takes hours never ends.
LIMIT_S = 3 * 3600.0
_answers: IO[str] | None = None  # in a child, the way to its parent


@dataclass(frozen=True)
class _Request:
    text: str
    stage: str
    keep: bool


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

    Args:
        module: Dotted name of a module that calls `serve` when run.
        verbose: Let the child's own output through to standard error.
        temporary: A folder for the child's temporary files, which TensorFlow leaves behind.
        trusted: It runs code that the user has named, which may need the network and the user's
            environment; otherwise it gets neither. See sandbox.py.
        limit_s: A request that takes longer ends the child.
        environment: Variables of the child before the usual ones; None takes one away.

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
    ) -> None:
        self.on_event: Callable[[Any], None] = lambda event: None
        self._module = module
        self._own_environment = environment or {}
        self._verbose = verbose
        self._temporary = temporary
        self._trusted = trusted
        self._limit_s = limit_s
        self._is_late = False
        self._requests: list[_Request] = []
        self._answers: list[dict[str, Any]] = []
        self._replayed = 0
        self._start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(at_once=kind is not None)

    def submit(self, method: str, stage: str, *, keep: bool = False, **arguments: Any) -> Pending:
        """Asks for `method(**arguments)`.

        Args:
            method: A name in the worker's handlers.
            stage: What this does, for messages: `converting tflite/float32`.
            keep: Ask again first when the child has to be started again.
            **arguments: JSON values; paths may be given as `Path`.
        """
        text = json.dumps({"method": method, "arguments": arguments}, default=str)
        self._requests.append(_Request(text, stage, keep))
        self._send(text)
        return Pending(self, len(self._requests) - 1)

    def call(self, method: str, stage: str, *, keep: bool = False, **arguments: Any) -> Any:
        """Asks and waits."""
        return self.submit(method, stage, keep=keep, **arguments).result()

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
            child._send(request.text)
            child.receive(len(child._requests) - 1)
        return child

    def receive(self, number: int) -> Any:
        """Returns the answer to request `number`; earlier answers are kept for their askers."""
        while len(self._answers) <= number:
            self._answers.append(self._read())
        answer = self._answers[number]
        if "error" in answer:
            error = errors.by_name(answer["error"])(answer["message"], hint=answer["hint"])
            error.add_note(answer["traceback"])
            raise error
        return answer["value"]

    def close(self, *, at_once: bool = False) -> None:
        """Ends the child: closing its input lets it finish, `at_once` kills it."""
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

    def _send(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # _read() tells how the child ended
            if self._process.stdin is not None:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        """Reads the answer to the first request that has none."""
        while True:
            line = self._line()
            if not line:
                crash = self._crash()
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
        timer = threading.Timer(self._limit_s, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            return self._process.stdout.readline() if self._process.stdout else ""
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _crash(self) -> dict[str, Any]:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._is_late:
            how = f"ended by packager: it took longer than {self._limit_s:g} s"
            self._is_late = False
        stage = self._requests[len(self._answers)].stage
        return {
            "error": "ChildCrashed",
            "message": f"the process that was {stage} died ({how})",
            "hint": "run again with --verbose to see its output; other artifacts are kept",
            "traceback": self._log_tail(),
        }

    def _go_on(self) -> None:
        """Starts again and sends what the child must know and what it has not begun."""
        done = len(self._answers) + 1
        self.close(at_once=True)
        self._start()
        known = self._to_tell_again()
        self._replayed = len(known)
        for request in (*known, *self._requests[done:]):
            self._send(request.text)

    def _to_tell_again(self) -> list[_Request]:
        """What another process must know: the answered requests marked `keep` that did not fail."""
        answered = zip(self._requests, self._answers, strict=False)
        return [request for request, answer in answered if request.keep and "error" not in answer]

    def _log_tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def serve(handlers: dict[str, Handler]) -> None:
    """Answers requests from standard input until it ends.

    Standard output is kept for answers: what libraries print there goes to standard error.
    """
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    answers = _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    gc.disable()  # the first request imports TensorFlow, whose objects are not garbage
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(handlers, request)) + "\n")
        answers.flush()
        gc.enable()
    # TensorFlow's and LiteRT's thread pools sometimes hang in their destructors.
    sys.stderr.flush()
    os._exit(0)


def tell(event: Any) -> None:
    """In a child: lets the parent know something before the answer, as a JSON value."""
    if _answers is not None:
        _answers.write(json.dumps({"event": event}) + "\n")
        _answers.flush()


def _answer(handlers: dict[str, Handler], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": handlers[request["method"]](**request["arguments"])}
    except PackagerError as error:
        name, message, hint = type(error).__name__, error.message, error.hint
    except Exception as error:
        name = "ConversionError"
        message, hint = errors.brief(error), errors.storage_hint(error)
    return {
        "error": name,
        "message": message,
        "hint": hint,
        "traceback": traceback.format_exc(),
    }


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
