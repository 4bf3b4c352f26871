"""Removes the scratch folders of builds that were killed.

A process holds a lock (flock) on each of its scratch folders; the system takes it away when the
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

PREFIX = "packager-scratch-"
_NAME = re.compile(rf"{PREFIX}[a-z-]+-[a-z0-9_]{{8}}")
# A folder is locked just after it was made; meanwhile it must not look like a leftover.
_YOUNG_S = 60.0


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the lock on a new scratch folder, and removes those beside it that nobody holds.

    Args:
        folder: A folder that this process has just made, called `packager-scratch-KIND-XXXXXXXX`.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Without locks (some network file systems) leftovers stay.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_dead(folder)
        yield
    finally:
        os.close(descriptor)


def _remove_dead(folder: Path) -> None:
    # The file system's own clock for both, whatever the machine's does.
    now = folder.lstat().st_mtime
    for path in folder.parent.iterdir():
        if path == folder or not _NAME.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            found = path.lstat()
            is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if is_mine and now - found.st_mtime > _YOUNG_S and not is_held(path):
                shutil.rmtree(path, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Whether a process holds the lock on a folder; one that cannot be opened is left alone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
