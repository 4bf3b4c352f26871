"""A child process's side of `children`: answers its parent's requests."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from packager import errors
from packager.errors import PackagerError

Handler = Callable[..., Any]

_answers: IO[str] | None = None  # the way to the parent


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
