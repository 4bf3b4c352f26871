"""Confines a program that works on somebody else's model: a model is a program, too.

    python -I -S sandbox.py [--no-memory-limit] -- PROGRAM ARGUMENT ...

No network but a loopback of its own where Linux allows that, at most a multiple of the machine's
memory, no core dumps; then the program takes this process's place. `command` and `environment` are
for its callers; it imports nothing of packager, because it runs as a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping

# linux/sched.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
# linux/sockios.h, linux/if.h
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
# TensorFlow reserves several times what it uses.
_MEMORY_FACTOR = 3
_LEAST_BYTES = 32 * 2**30
# What programs need to run; everything else may be a secret.
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|LANG|LANGUAGE|TZ|TERM|TMPDIR|TEMP|TMP|VIRTUAL_ENV|SYSTEMROOT"
    r"|LD_LIBRARY_PATH|DYLD_.*|LC_.*|PYTHON.*|OMP_.*|MKL_.*|OPENBLAS_.*|TF_(?!CONFIG$).*|KERAS_.*"
    r"|XLA_.*|CUDA_.*|NODE_OPTIONS|GLOG_.*|PACKAGER_.*|COV_.*|COVERAGE_.*"
)


def command(arguments: Iterable[str], *, memory_limit: bool = True) -> list[str]:
    """The command that runs `arguments` confined; unchanged where there is no Linux.

    Args:
        arguments: A program and its arguments.
        memory_limit: False for programs that reserve addresses without measure, such as Node.js.
    """
    if sys.platform != "linux":
        return list(arguments)
    flags = [] if memory_limit else ["--no-memory-limit"]
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *flags, "--", *arguments]  # noqa: PTH100


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The variables that a confined program gets: what it needs, and none that may be a secret."""
    return {name: value for name, value in given.items() if _KEPT.fullmatch(name)}


def can_cut_network() -> bool:
    """Whether this machine lets a program give up its network."""
    import subprocess

    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"  # noqa: PTH100, PTH120
        "import sandbox; sys.exit(not sandbox.cut_network())"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False, capture_output=True)
    return ran.returncode == 0


def cut_network() -> bool:
    """Gives up this process's network; it must have one thread. Whether that worked."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    unshare = getattr(libc, "unshare", None)
    if unshare is None:
        return False
    if unshare(_CLONE_NEWNET) == 0:
        _raise_loopback()
        return True
    user, group = os.getuid(), os.getgid()
    if unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    # The same ids inside, so that files look as they are.
    with contextlib.suppress(OSError):
        maps = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in {"setgroups": "deny", **maps}.items():
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    _raise_loopback()
    return True


def _raise_loopback() -> None:
    """Lets the process and its children talk to one another, as a browser does with its page."""
    import fcntl
    import socket
    import struct

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_one:
        fcntl.ioctl(any_one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def limit_memory() -> None:
    """Sets an upper bound for this process's addresses."""
    import resource

    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    wanted = max(_MEMORY_FACTOR * pages * size, _LEAST_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


def _main(arguments: list[str]) -> None:
    import resource

    at = arguments.index("--")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "--no-memory-limit" not in arguments[:at]:
        limit_memory()
    cut_network()
    program = arguments[at + 1 :]
    os.execvp(program[0], program)


if __name__ == "__main__":
    _main(sys.argv[1:])
