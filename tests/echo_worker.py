"""A worker for tests/test_children.py."""

import mmap
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from packager.errors import DataError, UnsupportedError
from packager.handlers import serve

KNOWN = {}


def noisy():
    print("on standard output")
    os.system("echo from a child of the child")
    return "quiet"


def double(source, target):
    """Writes a file twice over into a folder; tells which process did it."""
    text = Path(source).read_text()
    Path(target).mkdir(exist_ok=True)
    (Path(target) / "twice.txt").write_text(2 * text)
    return os.getpid()


def unsupported():
    raise UnsupportedError("no form of it", hint="another")


def refuse():
    raise DataError("no samples", hint="give some")


def segfault():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def connect(port):
    """Whether this process reaches a server on this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def talk():
    """Whether this process reaches a server of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return connect(server.getsockname()[1])


def allocate(size_bytes):
    try:
        return len(mmap.mmap(-1, size_bytes))
    except (OSError, MemoryError):
        return 0


def limits():
    return {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in ("AS", "CORE")
    }


def once(marker):
    """Ends the process when it is asked again, also in a later process."""
    if Path(marker).exists():
        leave()
    Path(marker).touch()


if __name__ == "__main__":
    serve(
        {
            "add": lambda a, b: a + b,
            "allocate": allocate,
            "connect": connect,
            "divide": lambda by: 1 / by,
            "double": double,
            "environment": lambda: dict(os.environ),
            "leave": leave,
            "limits": limits,
            "noisy": noisy,
            "once": once,
            "recall": lambda: KNOWN["value"],
            "refuse": refuse,
            "remember": lambda value: KNOWN.update(value=value),
            "segfault": segfault,
            "unsupported": unsupported,
            "talk": talk,
            "sleep": lambda seconds: time.sleep(seconds),
            "write": lambda path, size_bytes: Path(path).write_bytes(bytes(size_bytes)),
        }
    )
