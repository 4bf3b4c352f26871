"""Reads a TF.js `model.json` with its weights for comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import read_json
from packager.diff.contents import Array, ModelFile, Operator, Tensor
from packager.errors import BundleError

_DTYPES = ("bool", "complex64", "float16", "float32", "int32", "uint16", "uint8")


def read(path: Path) -> ModelFile:
    """Reads weights, layers or nodes, and the card.

    Raises:
        BundleError: It is no TF.js model, or a shard is missing or too short.
    """
    document = read_json(path)
    topology = document.get("modelTopology") if isinstance(document, dict) else None
    if not isinstance(topology, dict):
        raise BundleError(f"{path} is not a TF.js model: it has no modelTopology")
    try:
        layer_names = [layer["name"] for layer in _layers(topology)]
        operators = _nodes(topology) if "node" in topology else _layer_operators(topology)
        tensors, weight_bytes = _weights(path, document.get("weightsManifest") or [], layer_names)
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise BundleError(
            f"{path} is not a TF.js model that can be read: {type(error).__name__} {error}"
        ) from error
    metadata = document.get("userDefinedMetadata") or {}
    card = metadata.get("packager") if isinstance(metadata, dict) else None
    text = json.dumps(topology, separators=(",", ":"))
    return ModelFile(len(text) + weight_bytes, tensors, operators, card)


def _layers(topology: dict[str, Any]) -> list[dict[str, Any]]:
    config = topology.get("model_config", topology)
    if "node" in topology:
        return []
    found = config["config"]
    layers: list[dict[str, Any]] = found if isinstance(found, list) else found["layers"]
    return [{**layer, "name": layer.get("name") or layer["config"]["name"]} for layer in layers]


def _layer_operators(topology: dict[str, Any]) -> dict[str, Operator]:
    return {
        layer["name"]: Operator(
            layer["class_name"],
            {**layer["config"], "inbound_nodes": layer.get("inbound_nodes", [])},
        )
        for layer in _layers(topology)
    }


def _nodes(topology: dict[str, Any]) -> dict[str, Operator]:
    return {
        node["name"]: Operator(
            node["op"], {**(node.get("attr") or {}), "input": node.get("input", [])}
        )
        for node in topology["node"]
    }


def _weights(
    path: Path, groups: list[dict[str, Any]], layers: list[str]
) -> tuple[dict[str, Tensor], int]:
    found: dict[str, Tensor] = {}
    total = 0
    for group in groups:
        content = b"".join(_shard(path.parent, name) for name in group["paths"])
        offset = 0
        for entry in group["weights"]:
            values, size = _values(entry, content[offset:], path)
            name = entry["name"]
            how = {k: v for k, v in entry.get("quantization", {}).items() if k in ("scale", "min")}
            found[name] = Tensor(
                _layer(name, layers), values.dtype.name, tuple(entry["shape"]), how, values
            )
            offset += size
        total += len(content)
    return found, total


def _shard(folder: Path, name: str) -> bytes:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BundleError(f"{folder}: the path {name!r} of a part of the weights leads out of it")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"{path}: {error.strerror}: a part of the weights",
            hint="copy the whole folder of the model.json",
        ) from None


def _values(entry: dict[str, Any], content: bytes, path: Path) -> tuple[Array, int]:
    """The stored values of a weight and their size in bytes; texts are kept as bytes."""
    stored = entry.get("quantization", {}).get("dtype", entry["dtype"])
    if any(not isinstance(size, int) or size < 0 for size in entry["shape"]):
        raise ValueError(f"the shape {entry['shape']}")
    count, size = math.prod(entry["shape"]), 0
    ended = BundleError(f"{path}: the weights end before {entry['name']}")
    if stored == "string":
        for _ in range(count):
            size += 4 + int.from_bytes(content[size : size + 4], "little")
            if len(content) < size:
                raise ended
        return np.frombuffer(content[:size], np.uint8), size
    if stored not in _DTYPES:
        raise ValueError(f"the type {stored!r}")
    dtype = np.dtype(stored).newbyteorder("<")
    size = count * dtype.itemsize
    if len(content) < size:
        raise ended
    return np.frombuffer(content[:size], dtype), size


def _layer(name: str, layers: list[str]) -> str:
    """The layer of a weight `path/kernel`: the longest layer name that it begins with."""
    owners = [layer for layer in layers if name.startswith(f"{layer}/")]
    return max(owners, key=len, default=name.rpartition("/")[0] or name)
