"""Child processes that do what could crash, leak or pollute the parent.

A worker module calls `serve(handlers)`; the parent holds a `Child` and calls those handlers by
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
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from packager import errors
from packager.errors import ChildCrashed, PackagerError

Handler = Callable[..., Any]

_LOG_TAIL_LINES = 12


class Pending:
    """An answer that has been asked for."""

    def __init__(self, child: Child, stage: str) -> None:
        self._child = child
        self.stage = stage
        self._done = False
        self._value: Any = None

    def result(self) -> Any:  # noqa: ANN401
        """Waits for the answer.

        Raises:
            PackagerError: What the handler raised.
            ChildCrashed: The child ended without an answer.
        """
        if not self._done:
            self._value = self._child.receive(self.stage)
            self._done = True
        return self._value


class Child:
    """A running worker module, used as a context manager.

    Args:
        module: Dotted name of a module that calls `serve` when run.
        verbose: Let the child's own output through to standard error.
    """

    def __init__(self, module: str, *, verbose: bool = False) -> None:
        self.module = module
        # The name goes away at once; only the open file stays.
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._queue: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if verbose else self._log,
            env=_environment(),
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(at_once=kind is not None)

    def submit(self, method: str, stage: str, **arguments: Any) -> Pending:  # noqa: ANN401
        """Asks for `method(**arguments)`; answers come in the order of the requests.

        Args:
            method: A name in the worker's handlers.
            stage: What this does, for messages: `converting tflite/float32`.
            **arguments: JSON values; paths may be given as `Path`.
        """
        request = json.dumps({"method": method, "arguments": arguments}, default=str)
        pending = Pending(self, stage)
        with contextlib.suppress(BrokenPipeError):  # receive() tells how the child ended
            if self._process.stdin is not None:
                self._process.stdin.write(request + "\n")
                self._process.stdin.flush()
        return pending

    def call(self, method: str, stage: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Asks and waits."""
        return self.submit(method, stage, **arguments).result()

    def receive(self, stage: str) -> Any:  # noqa: ANN401
        """Reads the next answer."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise self._crash(stage)
        answer = json.loads(line)
        if "error" in answer:
            kind = errors.by_name(answer["error"])
            error = kind(answer["message"], hint=answer["hint"])
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

    def _crash(self, stage: str) -> ChildCrashed:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        error = ChildCrashed(
            f"the process that was {stage} died ({how})",
            hint="run again with --verbose to see its output; other artifacts are kept",
        )
        error.add_note(self._log_tail())
        return error

    def _log_tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def serve(handlers: dict[str, Handler]) -> None:
    """Answers requests from standard input until it ends.

    Standard output is kept for answers: what libraries print there goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(handlers, request)) + "\n")
        answers.flush()
    # TensorFlow's and LiteRT's thread pools sometimes hang in their destructors.
    sys.stderr.flush()
    os._exit(0)


def _answer(handlers: dict[str, Handler], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": handlers[request["method"]](**request["arguments"])}
    except PackagerError as error:
        name, message, hint = type(error).__name__, error.message, error.hint
    except Exception as error:
        name = "ConversionError"
        message, hint = f"{type(error).__name__}: {error}", ""
    return {
        "error": name,
        "message": message,
        "hint": hint,
        "traceback": traceback.format_exc(),
    }


def _environment() -> dict[str, str]:
    """The child's environment: CPU only and quiet, whatever the user's shell has set."""
    environment = dict(os.environ)
    environment.update(
        # Golden outputs must not depend on a GPU's reduced-precision matrix units.
        CUDA_VISIBLE_DEVICES="-1",
        KERAS_BACKEND="tensorflow",
        TF_CPP_MIN_LOG_LEVEL="2",
        TF_USE_LEGACY_KERAS="0",
        PYTHONUNBUFFERED="1",
        GLOG_minloglevel="2",
    )
    return environment


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Yields a temporary folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=f"packager-{prefix}-") as name:
        yield Path(name)
