"""The hashes of a bundle's files, which its manifest holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from packager.bundle import MANIFEST, SIGNATURE, FileEntry, Manifest, read_json

# The report is left out: results of devices are merged into it later.
_UNHASHED = (MANIFEST, SIGNATURE)


def checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's content, its own `checksum` aside.

    It finds damage. Against someone who computes it again, only a signature helps.
    """
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> FileEntry:
    """Returns size and SHA-256 of a file, read in blocks."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileEntry(bytes=stream.tell(), sha256=digest)


def list_files(bundle: Path) -> list[str]:
    """Returns the bundle's files that carry a hash, as sorted POSIX paths."""
    found = []
    for path in bundle.rglob("*"):
        name = path.relative_to(bundle).as_posix()
        if path.is_file() and name not in _UNHASHED and not name.startswith("report/"):
            found.append(name)
    return sorted(found)


def hash_bundle(bundle: Path) -> dict[str, FileEntry]:
    """Returns the manifest's `files` section for a folder."""
    return {name: hash_file(bundle / name) for name in list_files(bundle)}


def check_files(bundle: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Compares a bundle's files with the manifest.

    Returns:
        Pairs of path and problem: `missing`, `changed`, `unexpected` or `unsafe path`.
    """
    problems = []
    stored = read_json(bundle / MANIFEST)
    if manifest.checksum is not None and checksum(stored) != manifest.checksum:
        problems.append((MANIFEST, "changed"))
    root = bundle.resolve()
    for name, entry in manifest.files.items():
        path = bundle / name
        if not path.resolve().is_relative_to(root) or ".." in Path(name).parts:
            problems.append((name, "unsafe path"))
        elif not path.is_file():
            problems.append((name, "missing"))
        elif path.stat().st_size != entry.bytes or hash_file(path) != entry:
            problems.append((name, "changed"))
    extra = set(list_files(bundle)) - set(manifest.files)
    return problems + [(name, "unexpected") for name in sorted(extra)]
