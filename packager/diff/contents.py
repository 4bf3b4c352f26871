"""What `packager diff` compares: one side, read from a bundle, a `.tflite` or a `model.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packager import bundle
from packager.errors import PackagerError, UsageError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model file.

    Attributes:
        layer: The layer that it belongs to, as far as the file tells.
        dtype: How it is stored.
        shape: With the batch axis of an activation.
        quantization: `scale`, `zero_point` and `axis`, or TF.js' `scale` and `min`; empty for a
            float.
        values: What is stored, for a weight; None for an activation.
    """

    layer: str
    dtype: str
    shape: tuple[int, ...]
    quantization: dict[str, Any] = field(default_factory=dict)
    values: Array | None = None


@dataclass(frozen=True)
class Operator:
    """An operator or a TF.js layer with its attributes."""

    kind: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class ModelFile:
    """One artifact: tensors and operators by name; `size_bytes` is without the card."""

    size_bytes: int
    tensors: dict[str, Tensor]
    operators: dict[str, Operator]
    card: dict[str, Any] | None


@dataclass(frozen=True)
class Side:
    """One of both sides.

    Attributes:
        path: What was named, resolved to a bundle's folder.
        described: The manifest, or the card of a lone file; empty when it has none.
        is_bundle: Whether `described` is a manifest.
        files: Artifacts that were read, by id; the id of a lone file is its format.
    """

    path: Path
    described: dict[str, Any]
    is_bundle: bool
    files: dict[str, ModelFile]


def read(path: Path) -> Side:
    """Reads a side.

    Raises:
        UsageError: There is no such file, it is none of the three kinds, or it is damaged.
        EnvironmentLacks: ai-edge-litert, which reads `.tflite` files, is not installed.
    """
    try:
        if path.suffix == ".tflite" and path.is_file():
            return _lone(path, "tflite")
        if path.suffix == ".json" and path.is_file() and path.name != bundle.MANIFEST:
            return _lone(path, "tfjs")
        return _bundle(bundle.find_bundle(path))
    except PackagerError as error:
        if error.exit_code != PackagerError.exit_code:
            raise
        # 1 is the answer "they differ".
        raise UsageError(
            error.message,
            hint=error.hint or "name a bundle, a .tflite file or a model.json on each side",
        ) from None


def _lone(path: Path, kind: str) -> Side:
    file = _read_file(path, kind)
    return Side(path, file.card or {}, is_bundle=False, files={kind: file})


def _bundle(folder: Path) -> Side:
    manifest = bundle.to_json(bundle.read_manifest(folder))
    files = {}
    for artifact in manifest["artifacts"]:
        kind = artifact["runtime"]["kind"].partition("-")[0]
        if kind in ("tflite", "tfjs"):
            files[artifact["id"]] = _read_file(folder / artifact["path"], kind)
        elif kind == "saved_model" and (folder / "variables" / "variables.index").is_file():
            from packager.diff import variables

            files[artifact["id"]] = variables.read(folder)
    return Side(folder, manifest, is_bundle=True, files=files)


def _read_file(path: Path, kind: str) -> ModelFile:
    if kind == "tflite":
        from packager.diff import tflite

        return tflite.read(path)
    from packager.diff import tfjs

    return tfjs.read(path)
