"""A worker for tests/test_children.py."""

import os
import signal
import sys
import time
from pathlib import Path

from packager.children import serve
from packager.errors import DataError

KNOWN = {}


def noisy():
    print("on standard output")
    os.system("echo from a child of the child")
    return "quiet"


def refuse():
    raise DataError("no samples", hint="give some")


def segfault():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def once(marker):
    """Ends the process when it is asked again, also in a later process."""
    if Path(marker).exists():
        leave()
    Path(marker).touch()


if __name__ == "__main__":
    serve(
        {
            "add": lambda a, b: a + b,
            "divide": lambda by: 1 / by,
            "leave": leave,
            "noisy": noisy,
            "once": once,
            "recall": lambda: KNOWN["value"],
            "refuse": refuse,
            "remember": lambda value: KNOWN.update(value=value),
            "segfault": segfault,
            "sleep": lambda seconds: time.sleep(seconds),
        }
    )
