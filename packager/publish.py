"""Puts a finished bundle in place in one step, so that no half-written one is ever seen.

A build works in a staging folder beside the versions, `NAME/.VERSION.building-XXXX`. Its name
is not a number, so TensorFlow Serving and `packager` itself pass over it. The builder holds a
lock on it; a staging folder without a holder is left over from a killed build and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packager import leftovers
from packager.errors import BundleError

_STAGING = re.compile(r"\.(\d+)\.(building|old|trash)-[0-9a-f]{8}")


@dataclass(frozen=True)
class Staging:
    """A folder to build in, and the place where it will be published."""

    folder: Path
    target: Path
    version: int


@contextlib.contextmanager
def staging(base: Path, version: int | None, *, force: bool = False) -> Iterator[Staging]:
    """Yields a new staging folder below `base` (`dist/NAME`) and removes it at the end.

    Args:
        base: The folder that holds the versions.
        version: A positive number, or None for the next free one.
        force: An existing version may be replaced.

    Raises:
        BundleError: The version exists, or the folder cannot be written.
    """
    made = [folder for folder in (base, *base.parents) if not folder.exists()]
    descriptor = None
    folder = None
    try:
        try:
            base.mkdir(parents=True, exist_ok=True)
            with _locked(base):
                _clean(base)
                number = version if version is not None else _next_version(base)
                target = base / str(number)
                _check_free(target, force)
                folder = base / f".{number}.building-{secrets.token_hex(4)}"
                folder.mkdir()
                descriptor = os.open(folder, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise BundleError(
                f"cannot write below {base}: {error.strerror}",
                hint="choose another folder with --output, or make this one writable",
            ) from None
        yield Staging(folder, target, number)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)
        for parent in made:
            with contextlib.suppress(OSError):  # it is not empty: something was published
                parent.rmdir()


def publish(stage: Staging, *, force: bool = False) -> None:
    """Renames the staging folder to its version number.

    With `force` an existing version is moved aside first, put back if the rename fails, and
    removed after it succeeded.

    Raises:
        BundleError: The version exists (another build was faster), or a rename failed.
    """
    base = stage.target.parent
    with _locked(base):
        _check_free(stage.target, force)
        aside = base / f".{stage.version}.old-{secrets.token_hex(4)}"
        replaced = stage.target.exists()
        if replaced:
            stage.target.rename(aside)
        try:
            stage.folder.rename(stage.target)
        except BaseException as error:  # Ctrl-C, too, must not leave the version missing
            if replaced:
                aside.rename(stage.target)
            if not isinstance(error, OSError):
                raise
            raise BundleError(f"cannot publish {stage.target}: {error.strerror}") from None
        # From here on it must not come back: a half-deleted version is no version.
        trash = base / aside.name.replace(".old-", ".trash-")
        if replaced:
            aside.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def reject(stage: Staging) -> Path:
    """Keeps a bundle that failed its gates as `NAME/VERSION.rejected`, for a look at it."""
    rejected = stage.target.with_name(f"{stage.version}.rejected")
    with _locked(stage.target.parent):
        shutil.rmtree(rejected, ignore_errors=True)
        stage.folder.rename(rejected)
    return rejected


def _check_free(target: Path, force: bool) -> None:
    if target.exists() and not force:
        raise BundleError(
            f"{target} exists already",
            hint="--force replaces it, --version next adds a new version beside it",
        )


def _next_version(base: Path) -> int:
    taken = [int(p.name) for p in base.iterdir() if p.name.isdecimal()]
    # Live staging folders count: two builds at once must not choose the same number.
    taken += [int(m[1]) for p in base.iterdir() if (m := _STAGING.fullmatch(p.name))]
    return max(taken, default=0) + 1


def _clean(base: Path) -> None:
    """Removes what killed builds left behind and puts back a version that was moved aside."""
    for path in list(base.iterdir()):
        match = _STAGING.fullmatch(path.name)
        if match is None or leftovers.is_held(path):
            continue
        target = base / match[1]
        if match[2] == "old" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    descriptor = os.open(base, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
