"""Tells what a model source is, without TensorFlow: format, saving version, embedded code."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packager.errors import ModelError
from packager.hashes import hash_file
from packager.loaders import guards, saved_model_file, saved_model_ops

# `package.module:function`, wherever a source may be a Python function.
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SUFFIX = re.compile(r"\.(keras|h5|hdf5|zip)$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_CONFIG_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class ModelFile:
    """A model source that has been recognised.

    Attributes:
        source: What the user gave: a path or `module:function`.
        format: `keras3` (.keras archive), `keras2_archive` (the same of Keras 2.12 to 2.15),
            `keras_h5`, `keras_weights`, `saved_model` or `callable`.
        saved_by: Such as `keras 3.15.1`; `keras 2.4.0, tensorflow 2.4.1` for a SavedModel.
        sha256: Hash of the file, or of the folder's files and names; of the text for a callable.
        size_bytes: Size of the file or folder.
        config: Keras' description of the model; empty where the format has none.
        architecture: For `keras_weights`: a JSON file, or `module:function`.
    """

    source: str
    format: str
    saved_by: str
    sha256: str
    size_bytes: int
    config: dict[str, Any] = field(default_factory=dict)
    architecture: str = ""

    @property
    def is_keras2(self) -> bool:
        """Whether Keras 2 saved its layers, so that they have to be rebuilt for Keras 3."""
        return self.format != "saved_model" and self.saved_by.startswith(("keras 1", "keras 2"))

    @property
    def treatment(self) -> str:
        """What packager does with it first, for people; empty when it is opened as it is."""
        if self.format == "saved_model":
            return "taken by its signature"
        return "rebuilt for Keras 3 and compared with tf-keras" if self.is_keras2 else ""

    @property
    def name(self) -> str:
        """A default name for the bundle: letters, digits, `_`, `-` and `.`, no number alone.

        A SavedModel's own folder is often a version number: then the folder above names it.
        """
        if self.format == "callable":
            return self.source.rpartition(":")[2]
        path = Path(self.source).resolve()
        for part in (path, *path.parents):
            plain = _SUFFIX.sub("", part.name)
            name = _UNSAFE.sub("_", plain).strip("_.-")
            if name and not name.isdecimal():
                return name
        return "model"


def identify(
    source: str,
    *,
    architecture: str = "",
    allow_unsafe_code: bool = False,
    allow_ops: Collection[str] = (),
    own_modules: Collection[str] = (),
) -> ModelFile:
    """Recognises a model source by its content.

    Args:
        source: A path, or `package.module:function`.
        architecture: Where the source holds weights only: the JSON file that `model.to_json()`
            wrote, or the `package.module:function` that builds the model.
        allow_unsafe_code: Accept Lambda layers and other embedded Python code.
        allow_ops: Accept these operations in a SavedModel beside those that only compute.
        own_modules: The user's modules, whose classes and functions the file may name.

    Raises:
        ModelError: It is missing, empty, damaged, not a model, of a version that is not
            supported, embeds code, or holds operations that are not accepted.
    """
    path = Path(source)
    if not source:
        raise ModelError(
            "no model is named", hint="packager build MODEL, or model: in package.yaml"
        )
    if not path.exists():
        if FUNCTION.fullmatch(source):
            digest = hashlib.sha256(source.encode()).hexdigest()
            return ModelFile(source, "callable", "python", digest, 0)
        raise ModelError(f"{source} does not exist", hint="check the path of the model")
    try:
        is_folder = path.is_dir()
        found = (
            _identify_folder(path, allow_ops) if is_folder else _identify_file(path, architecture)
        )
    except OSError as error:
        raise ModelError(f"{source} cannot be read: {error.strerror or error}") from None
    if architecture and found.format != "keras_weights":
        raise ModelError(
            f"{source} holds a whole model; --architecture is for files that hold weights only",
            hint="leave --architecture out",
        )
    if not allow_unsafe_code:
        guards.refuse_code(source, found.config, imports=found.is_keras2, own=own_modules)
    return found


def _identify_file(path: Path, architecture: str) -> ModelFile:
    size = path.stat().st_size
    if size == 0:
        raise ModelError(f"{path} is empty (0 bytes)", hint="save the model again")
    with path.open("rb") as stream:
        magic = stream.read(8)
    if magic[:4] == b"PK\x03\x04":
        return _identify_archive(path, size)
    if magic == _HDF5_MAGIC:
        return _identify_hdf5(path, size, architecture)
    if magic[4:8] == b"TFL3":
        raise ModelError(
            f"{path} is a TFLite file: an artifact, not a trained model",
            hint="give the Keras model or SavedModel that it was converted from",
        )
    if _architecture_json(path):
        raise ModelError(
            f"{path} describes a model without its weights",
            hint=f"give the file with the weights: packager build WEIGHTS --architecture {path}",
        )
    raise ModelError(
        f"{path} is not a model: neither a .keras archive, nor HDF5, nor a SavedModel folder"
        f" (it begins with {magic!r})",
        hint="save the model with model.save('model.keras')",
    )


def _identify_archive(path: Path, size: int) -> ModelFile:
    damaged = ModelError(
        f"{path} is a damaged .keras archive: it was cut off or changed",
        hint="copy it again, or save the model again with model.save('model.keras')",
    )
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            missing = {"config.json", "metadata.json", guards.WEIGHTS} - names
            if missing:
                raise ModelError(
                    f"{path} is a zip file but no .keras archive: it has no {sorted(missing)[0]}",
                    hint="save the model with model.save('model.keras')",
                )
            guards.check_archive(path, archive)
            metadata = _read_member(archive, "metadata.json")
            config = _read_member(archive, "config.json")
            if archive.testzip() is not None:
                raise damaged
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, RuntimeError):
        raise damaged from None
    version = str(metadata.get("keras_version", "unknown"))
    kind = "keras2_archive" if version.startswith("2") else "keras3"
    return ModelFile(str(path), kind, f"keras {version}", hash_file(path).sha256, size, config)


def _read_member(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if archive.getinfo(name).file_size > MAX_CONFIG_BYTES:
        raise ModelError(f"{archive.filename}: {name} is larger than 256 MB")
    value = json.loads(archive.read(name))
    if not isinstance(value, dict):
        raise ValueError(name)
    return value


def _identify_hdf5(path: Path, size: int, architecture: str) -> ModelFile:
    h5py = guards.h5py_for(path)
    try:
        guards.check_hdf5(path, path)
        with h5py.File(path, "r") as file:
            described = file.attrs.get("model_config")
            config = None if described is None else json.loads(_text(described))
            version = _text(file.attrs.get("keras_version", ""))
            keys = sorted(file.keys())
    except (OSError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise ModelError(
            f"{path} is a damaged HDF5 file: {error}", hint="copy it again, or save the model again"
        ) from None
    digest = hash_file(path).sha256
    if config is None:
        return _identify_weights(path, size, digest, architecture, version, keys)
    saved_by = f"keras {version or '2 (not recorded)'}"
    return ModelFile(str(path), "keras_h5", saved_by, digest, size, config)


def _identify_weights(
    path: Path, size: int, digest: str, architecture: str, version: str, keys: list[str]
) -> ModelFile:
    if not architecture:
        raise ModelError(
            f"{path} holds weights only (groups: {', '.join(keys[:4]) or 'none'}), not a model:"
            " it has no model_config",
            hint="add --architecture FILE.json, what model.to_json() wrote, or --architecture"
            " package.module:function that builds the model",
        )
    config: dict[str, Any] = {}
    if not Path(architecture).exists() and FUNCTION.fullmatch(architecture):
        # `.weights.h5` of Keras 2.12 and later is laid out as by Keras 3, but for this group.
        old = "layer_names" in _attributes(path) or "_layer_checkpoint_dependencies" in keys
        version = version or ("2 (not recorded)" if old else "3 (not recorded)")
    else:
        config = _architecture_json(Path(architecture))
        if not config:
            raise ModelError(
                f"--architecture {architecture}: neither the JSON of a Keras model nor"
                " module:function",
                hint="write it with model.to_json(), in the program that saved the weights",
            )
        is_keras3 = "module" in config and "registered_name" in config
        version = str(config.get("keras_version", "3 (not recorded)" if is_keras3 else version))
    saved_by = f"keras {version or '2 (not recorded)'}"
    digest = hashlib.sha256(f"{digest}\n{_architecture_digest(architecture)}".encode()).hexdigest()
    return ModelFile(str(path), "keras_weights", saved_by, digest, size, config, architecture)


def _architecture_digest(architecture: str) -> str:
    path = Path(architecture)
    return hash_file(path).sha256 if path.is_file() else architecture


def _architecture_json(path: Path) -> dict[str, Any]:
    """The description in a JSON file; empty when it is none."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    good = isinstance(found, dict) and isinstance(found.get("config"), (dict, list))
    return found if good and "class_name" in found else {}


def _attributes(path: Path) -> set[str]:
    import h5py

    with h5py.File(path, "r") as file:
        return set(file.attrs)


def weights_link(weights: Path, folder: Path) -> Path:
    """Makes a link to a file of weights by which Keras, which goes by names, knows its layout."""
    old = "layer_names" in _attributes(weights)
    link = folder / ("weights.h5" if old else "model.weights.h5")
    link.symlink_to(weights.resolve())
    return link


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _identify_folder(path: Path, allow_ops: Collection[str]) -> ModelFile:
    if not (path / "saved_model.pb").is_file():
        raise ModelError(
            f"{path} is a folder without saved_model.pb, so it is not a SavedModel",
            hint="give the folder that model.export(...) wrote",
        )
    if (path / "saved_model.pb").stat().st_size == 0:
        raise ModelError(f"{path / 'saved_model.pb'} is empty (0 bytes)", hint="export it again")
    digest = hashlib.sha256()
    size = 0
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        entry = hash_file(file)
        size += entry.bytes
        digest.update(f"{file.relative_to(path).as_posix()}\0{entry.sha256}\n".encode())
    try:
        saved_by = saved_model_file.read_origin(path).saved_by
        saved_model_ops.check(path, allow_ops)
    except ValueError as error:
        raise ModelError(
            f"{path / 'saved_model.pb'} is damaged: {error}",
            hint="copy it again, or export it again",
        ) from None
    return ModelFile(str(path), "saved_model", saved_by, digest.hexdigest(), size)
