"""Writes `model.json` and its weight shards, the files of a TF.js model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.targets import tfjs_weights
from packager.targets.tfjs_weights import Rule

SHARD_BYTES = 4 * 1024 * 1024
# The version that web/package-lock.json pins and that verification runs.
RUNTIME = {"@tensorflow/tfjs": "4.22.0"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WrittenTfjs:
    """What was written.

    Attributes:
        model_json: The file to load.
        shards: The weight files, in order.
        size_bytes: Of all of them together.
    """

    model_json: Path
    shards: tuple[Path, ...]
    size_bytes: int


def write_model(
    folder: Path,
    *,
    topology: Mapping[str, Any],
    weights: Mapping[str, Array],
    model_format: str,
    converted_by: str,
    metadata: Mapping[str, Any],
    rules: Sequence[Rule] = (),
    shard_bytes: int = SHARD_BYTES,
    more: Mapping[str, Any] | None = None,
) -> WrittenTfjs:
    """Writes a model into a folder.

    Args:
        folder: Made when it is missing.
        topology: The value of `modelTopology`.
        weights: Arrays by their name in TF.js, in the order of the file: float32, int32, bool,
            complex64, or bytes as objects.
        model_format: `layers-model` or `graph-model`.
        converted_by: Name and version of the writer.
        metadata: The value of `userDefinedMetadata`.
        rules: Which weights to store in fewer bits.
        shard_bytes: Largest size of a shard; a weight may span several.
        more: Further keys of `model.json`.

    Returns:
        The files. A shard's name holds the first 16 hex digits of its sha256, so that a changed
        model never meets a stale cache.

    Raises:
        ConfigError: A rule matches no weight, or two match the same one.
        ConversionError: A weight has another dtype, or cannot be stored as a rule says.
    """
    chosen = tfjs_weights.assign(rules, weights)
    folder.mkdir(parents=True, exist_ok=True)
    encoded = (tfjs_weights.encode(n, array, chosen.get(n)) for n, array in weights.items())
    entries: list[dict[str, Any]] = []
    shards = _write_shards(folder, _noting(encoded, entries), shard_bytes)
    manifest = [{"paths": [shard.name for shard in shards], "weights": entries}] if entries else []
    description = {
        "format": model_format,
        "generatedBy": "keras",
        "convertedBy": converted_by,
        "userDefinedMetadata": dict(metadata),
        "modelTopology": dict(topology),
        "weightsManifest": manifest,
        **(more or {}),
    }
    model_json = folder / "model.json"
    text = json.dumps(description, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    model_json.write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in (model_json, *shards))
    return WrittenTfjs(model_json, tuple(shards), size)


def _noting(
    encoded: Iterable[tuple[dict[str, Any], bytes]], entries: list[dict[str, Any]]
) -> Iterator[bytes]:
    """Yields the weights' bytes one by one, and notes their entries."""
    for entry, content in encoded:
        entries.append(entry)
        yield content


def _write_shards(folder: Path, contents: Iterable[bytes], shard_bytes: int) -> list[Path]:
    parts = []
    for number, content in enumerate(_pieces(contents, shard_bytes), start=1):
        digest = hashlib.sha256(content).hexdigest()[:16]
        part = folder / f"weights-{digest}-{number}.part"
        part.write_bytes(content)
        parts.append(part)
    # How many there are is known at the end, because the bytes are never joined before.
    return [part.rename(part.with_name(f"{part.stem}of{len(parts)}.bin")) for part in parts]


def _pieces(contents: Iterable[bytes], shard_bytes: int) -> Iterator[bytes]:
    """Cuts the weights' bytes without joining them all first."""
    piece = bytearray()
    for content in contents:
        rest = memoryview(content)
        while rest:
            room = shard_bytes - len(piece)
            piece += rest[:room]
            rest = rest[room:]
            if len(piece) == shard_bytes:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
