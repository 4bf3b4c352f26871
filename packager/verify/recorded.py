"""What the shipped runners answered, in this build or in an earlier one of the same content."""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

from packager.bundle import GOLDEN, Artifact, Manifest, to_json
from packager.cache import Cache
from packager.targets.saved_model import WRITTEN
from packager.verify.runners import Runner

_CARD = b"PACKAGER_CARD\0"
# What a runner reads of a manifest beside the artifact.
_READ = ("task", "threshold", "inputs", "outputs", "labels")


def record(
    cache: Cache,
    bundle: Path,
    manifest: Manifest,
    runner: Runner,
    artifact: Artifact,
    values: Path,
    evaluation: tuple[Path, Path] | None,
    *flags: str,
    parts: int = 1,
) -> dict[str, Any]:
    """As `Runner.record`; the answer of an earlier build where nothing that counts has changed.

    The card that a file carries does not count: it holds the bundle's version, and no runner reads
    the card of a file that is in a bundle. User's code is run each time.
    """

    def run() -> dict[str, Any]:
        return runner.record(bundle, artifact, values, evaluation, *flags, parts=parts)

    if cache.folder is None or artifact.runtime.kind == "keras":
        return run()
    described = to_json(manifest)
    key = cache.key(
        {
            "runner": runner.name,
            "flags": flags,
            "artifact": to_json(artifact),
            "manifest": {name: described[name] for name in _READ},
            "content": content(bundle, artifact, cache),
            "golden": cache.digest((bundle / GOLDEN).parent),
            "evaluation": cache.digest(evaluation[0]) if evaluation else "",
        }
    )
    writes = [values, evaluation[1]] if evaluation else [values]
    answer: dict[str, Any] = cache.remembered(
        key, writes, run, keep=lambda found: found["status"] == "recorded"
    )
    return answer


def content(bundle: Path, artifact: Artifact, cache: Cache) -> list[str]:
    """Hashes of an artifact's files without their cards."""
    return [_digest(path, cache) for path in _files(bundle, artifact)]


def _files(bundle: Path, artifact: Artifact) -> list[Path]:
    path = bundle / artifact.path
    if artifact.runtime.kind == "saved_model":
        return [path / name for name in WRITTEN if (path / name).exists()]
    if artifact.runtime.kind == "tflite":
        return [path]
    return sorted(p for p in path.parent.iterdir() if p.is_file())


def _digest(path: Path, cache: Cache) -> str:
    """Hash of a file without its card."""
    if path.name == "model.json":
        model = json.loads(path.read_text(encoding="utf-8"))
        model.pop("userDefinedMetadata", None)
        return hashlib.sha256(json.dumps(model).encode()).hexdigest()
    if path.suffix != ".tflite":
        return cache.digest(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_CARD)
        if start < 0:
            return cache.digest(path)
        after = start + len(_CARD) + 4
        end = after + int.from_bytes(data[after - 4 : after], "little")
        with memoryview(data) as view, view[:start] as head, view[end:] as tail:
            digest = hashlib.sha256(head)
            digest.update(tail)
            return digest.hexdigest()
