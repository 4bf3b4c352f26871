"""Writes `model.json` and its weight shards, the files of a TF.js model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.errors import ConversionError

SHARD_BYTES = 4 * 1024 * 1024

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
    shard_bytes: int = SHARD_BYTES,
) -> WrittenTfjs:
    """Writes a model into a folder.

    Args:
        folder: Made when it is missing.
        topology: The value of `modelTopology`.
        weights: float32 or int32 arrays by their name in TF.js, in the order of the file.
        model_format: `layers-model` or `graph-model`.
        converted_by: Name and version of the writer.
        metadata: The value of `userDefinedMetadata`.
        shard_bytes: Largest size of a shard; a weight may span several.

    Returns:
        The files. A shard's name holds the first 16 hex digits of its sha256, so that a changed
        model never meets a stale cache.

    Raises:
        ConversionError: A weight has another dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = [_weight_entry(name, array) for name, array in weights.items()]
    shards = _write_shards(folder, weights, shard_bytes)
    manifest = [{"paths": [shard.name for shard in shards], "weights": entries}] if entries else []
    description = {
        "format": model_format,
        "generatedBy": "keras",
        "convertedBy": converted_by,
        "userDefinedMetadata": dict(metadata),
        "modelTopology": dict(topology),
        "weightsManifest": manifest,
    }
    model_json = folder / "model.json"
    text = json.dumps(description, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    model_json.write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in (model_json, *shards))
    return WrittenTfjs(model_json, tuple(shards), size)


def _weight_entry(name: str, array: Array) -> dict[str, Any]:
    if array.dtype.name not in ("float32", "int32"):
        raise ConversionError(f"weight {name}: TF.js has no {array.dtype}; it is a writer's bug")
    return {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}


def _write_shards(folder: Path, weights: Mapping[str, Array], shard_bytes: int) -> list[Path]:
    total = sum(array.nbytes for array in weights.values())
    count = -(-total // shard_bytes)
    shards = []
    for number, content in enumerate(_pieces(weights, shard_bytes), start=1):
        digest = hashlib.sha256(content).hexdigest()[:16]
        shard = folder / f"weights-{digest}-{number}of{count}.bin"
        shard.write_bytes(content)
        shards.append(shard)
    return shards


def _pieces(weights: Mapping[str, Array], shard_bytes: int) -> Iterator[bytes]:
    """Cuts the weights' bytes, little-endian and in C order, without joining them all first."""
    piece = bytearray()
    for array in weights.values():
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        content = memoryview(little.tobytes())
        while content:
            room = shard_bytes - len(piece)
            piece += content[:room]
            content = content[room:]
            if len(piece) == shard_bytes:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
