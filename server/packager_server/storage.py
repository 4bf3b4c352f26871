"""Finds the versions of a model below its base path, and tells when a folder changed."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class VersionPolicy:
    """Which versions are served: the newest `count`, all of them, or those in `versions`."""

    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    versions: tuple[int, ...] = ()

    def choose(self, found: dict[int, str]) -> dict[int, str]:
        """Returns the wanted part of `found` (paths by version), newest first."""
        newest = sorted(found, reverse=True)
        if self.kind == "latest":
            newest = newest[: self.count]
        elif self.kind == "specific":
            newest = [number for number in newest if number in self.versions]
        return {number: found[number] for number in newest}


def is_remote(path: str) -> bool:
    """Whether only TensorFlow can read `path` (`gs://...`)."""
    return "://" in path


def list_versions(base_path: str) -> dict[int, str] | None:
    """Returns the version folders below `base_path` by number; None if it cannot be listed.

    A folder whose name is not a number is no version: that is how an unfinished copy is hidden.
    Of two folders with the same number (`1` and `001`) the first by name counts. A base path that
    is a SavedModel itself is version 1.
    """
    try:
        names = _child_folders(base_path)
    except OSError as error:
        log.error("cannot list the versions in %s: %s", base_path, error)
        return None
    found: dict[int, str] = {}
    for name in sorted(names):
        if not (name.isascii() and name.isdigit()) or int(name) > _INT64_MAX:
            continue
        if int(name) in found:
            log.warning("%s: %s is a second folder for version %d", base_path, name, int(name))
            continue
        found[int(name)] = f"{base_path.rstrip('/')}/{name}"
    if not found and exists(f"{base_path.rstrip('/')}/saved_model.pb"):
        name = base_path.rstrip("/").rpartition("/")[2]
        return {int(name) if name.isascii() and name.isdigit() else 1: base_path}
    return found


def exists(path: str) -> bool:
    """Whether a file is there, local or remote."""
    if not is_remote(path):
        return Path(path).is_file()
    from packager_server.saved_model import import_tensorflow

    return bool(import_tensorflow().io.gfile.exists(path))


def _child_folders(base_path: str) -> list[str]:
    if not is_remote(base_path):
        with os.scandir(base_path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    from packager_server.saved_model import import_tensorflow

    tensorflow = import_tensorflow()
    gfile = tensorflow.io.gfile
    try:
        names = [name.rstrip("/") for name in gfile.listdir(base_path)]
        return [name for name in names if gfile.isdir(f"{base_path.rstrip('/')}/{name}")]
    except tensorflow.errors.OpError as error:
        raise OSError(error.message) from error


def fingerprint(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Returns name, size and time of every file in a local folder; empty for a remote one."""
    if is_remote(folder):
        return ()
    found = []
    for path in sorted(Path(folder).rglob("*")):
        try:
            status = path.stat()
        except OSError:  # it vanished meanwhile: the next look sees a different list
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)
