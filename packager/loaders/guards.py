"""Refuses model files that attack who opens them: before Keras, HDF5 or zip code gets at them.

Keras has guards of its own, which differ between its versions and formats; tf-keras has few. A
model is opened in a confined child process besides: see `packager.sandbox`.
"""

from __future__ import annotations

import io
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from packager.errors import EnvironmentLacks, ModelError
from packager.loaders.tf_symbols import only_computes

WEIGHTS = "model.weights.h5"
# A file that says of itself that it holds more than this many times what it is ...
_LARGEST_EXPANSION = 100
# ... and more than this is a bomb: weights are hardly ever compressed.
FLOOR_BYTES = 1 << 28
_CODE_CLASSES = ("Lambda", "__lambda__")
# What Keras 2 makes of TensorFlow's functions, and of methods and properties of tensors.
_SYMBOLS = {"TFOpLambda": "function", "SlicingOpLambda": "function", "ClassMethod": "cls_symbol"}
_ATTRIBUTES = ("InstanceMethod", "InstanceProperty")
_TENSORS = ("RaggedTensor", "SparseTensor", "Tensor")
_FILES = ("vocabulary", "vocabulary_file")
# `__main__` is where a class of a script was: there is nothing to import.
_KERAS = ("keras", "tf_keras", "tensorflow", "builtins", "__main__")


def h5py_for(path: Path) -> Any:
    """Returns h5py.

    Raises:
        EnvironmentLacks: It is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise EnvironmentLacks(
            f"{path} holds HDF5 data and h5py is not installed",
            hint="pip install 'packager[build]'",
        ) from None
    return h5py


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuses a zip file that expands without measure, leads out of itself or has two meanings.

    Args:
        path: The `.keras` file.
        archive: The same, opened.

    Raises:
        ModelError: It is such a file, or its weights are such an HDF5 file.
    """
    members = archive.infolist()
    names = [member.filename for member in members]
    for member in members:
        parts = member.filename.replace("\\", "/").split("/")
        is_link = stat.S_ISLNK(member.external_attr >> 16)
        if ".." in parts or not parts[0] or ":" in parts[0] or is_link:
            raise _hostile(path, f"its member {member.filename!r} leads out of it")
    if len(set(names)) < len(names):
        raise _hostile(path, "two of its members have one name")
    _check_size(path, sum(member.file_size for member in members))
    with _opened(path, archive) as weights:
        check_hdf5(path, weights, f"{WEIGHTS}:/")


def check_hdf5(path: Path, content: Any, where: str = "/") -> None:
    """Refuses an HDF5 file whose parts lie in other files, or that expands without measure.

    Args:
        path: The model file.
        content: Its path, or an opened file that holds the HDF5 data.
        where: How its root is called in messages.

    Raises:
        ModelError: It is such a file.
        OSError: It is no HDF5 file, or damaged.
    """
    h5py = h5py_for(path)
    total, seen = 0, set()
    with h5py.File(content, "r") as file:
        waiting = [(where, file)]
        while waiting:
            place, group = waiting.pop()
            for name in group:
                item, shown = _inside(path, group, name, f"{place}{name}"), f"{place}{name}/"
                about = h5py.h5o.get_info(item.id)
                # Groups may hold one another.
                if (about.fileno, about.addr) in seen:
                    continue
                seen.add((about.fileno, about.addr))
                if isinstance(item, h5py.Group):
                    waiting.append((shown, item))
                elif isinstance(item, h5py.Dataset):
                    total += item.size * item.dtype.itemsize if item.size else 0
    _check_size(path, total)


def _inside(path: Path, group: Any, name: str, where: str) -> Any:
    """An entry of a group; refused where its data lie in another file."""
    import h5py

    link = group.get(name, getlink=True)
    item = None if isinstance(link, h5py.ExternalLink) else group.get(name)
    outside = item is None or (
        isinstance(item, h5py.Dataset) and (item.external or item.is_virtual)
    )
    if outside:
        raise ModelError(
            f"{path}: {where} lies in another file or leads nowhere ({type(link).__name__});"
            " packager opens files that hold all their data",
            hint="save the model again with model.save('model.keras')",
        )
    return item


def _check_size(path: Path, total: int) -> None:
    size = path.stat().st_size
    if total > max(FLOOR_BYTES, _LARGEST_EXPANSION * size):
        raise _hostile(path, f"its {size} bytes claim to hold {total}")


def _hostile(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path}: {why}; it was not written by Keras",
        hint="save the model again with model.save('model.keras'); if the file is somebody"
        " else's, do not use it",
    )


def _opened(path: Path, archive: zipfile.ZipFile) -> IO[bytes]:
    """The archive's weights as a file with random access."""
    member = archive.getinfo(WEIGHTS)
    if member.compress_type == zipfile.ZIP_STORED:
        return io.BufferedReader(_Window(path, member))
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with archive.open(member) as packed:
        shutil.copyfileobj(packed, unpacked)
    return unpacked


class _Window(io.RawIOBase):
    """A member of an archive that is not compressed; zipfile's own files are slow to go back in."""

    def __init__(self, path: Path, member: zipfile.ZipInfo) -> None:
        self._file = path.open("rb")
        # A local header: 30 bytes, the last four are the lengths of a name and of more.
        self._file.seek(member.header_offset + 26)
        lengths = self._file.read(4)
        more = sum(int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2))
        self._start, self._size, self._at = member.header_offset + 30 + more, member.file_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        count = max(0, min(len(buffer), self._size - self._at))
        found = self._file.read(count)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def refuse_code(source: str, config: Any, *, imports: bool, own: Collection[str] = ()) -> None:
    """Refuses a description of a model that runs, imports or reads something when it is opened.

    Args:
        source: The file, for messages.
        config: What the file says of the model.
        imports: What opens it imports any module that it names, as tf-keras does.
        own: The user's own modules.

    Raises:
        ModelError: It holds such a thing, which is named.
    """
    allowed = {*_KERAS, *(name.partition(".")[0] for name in own)}
    for where, described in _objects(config):
        reason, way_out = _reason(described), "replace it by a Keras layer or operation"
        module = str(described.get("module") or "keras")
        if not reason and imports and module.partition(".")[0] not in allowed:
            reason = f"is of the Python module {module!r}, which would be imported"
            way_out = f"if it is yours, add --custom-objects {module}"
        if reason:
            raise ModelError(
                f"{source}: the layer {where!r} {reason} when the model is opened",
                hint=f"{way_out}; if you trust the file, add --allow-unsafe-code",
            )


def _reason(described: dict[str, Any]) -> str:
    """What an object of a description would do; empty for those that compute."""
    # Keras 2 also finds a class by a path: `layers.Lambda`, `package>Lambda`.
    kind, config = re.split("[.>]", described["class_name"])[-1], described.get("config")
    if kind in _CODE_CLASSES:
        return f"is a {kind} with Python code inside, which would run"
    if kind == "function" and "inbound_nodes" in described:
        return f"is the function {config!r} of {described.get('module')!r}, which would run"
    if kind == "TFSMLayer":
        return "is a TFSMLayer: it loads another model, with its operations,"
    if not isinstance(config, dict):
        return ""
    symbol = str(config.get(_SYMBOLS.get(kind, ""), ""))
    known = symbol in _TENSORS if kind == "ClassMethod" else only_computes(symbol)
    if kind in _SYMBOLS and not known:
        return f"is TensorFlow's function {symbol!r}, which can do more than compute"
    if kind in _ATTRIBUTES and str(config.get("attr_name", "_")).startswith("_"):
        return f"takes the attribute {config.get('attr_name')!r} of a Python object"
    for key in _FILES:
        if isinstance(config.get(key), str) and config[key]:
            return f"reads the file {config[key]!r}, which is not the model's,"
    return ""


def _objects(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a description, each with the name of the layer that it belongs to."""
    waiting = [("model", config)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            inner = value.get("config")
            named = (inner.get("name") if isinstance(inner, dict) else None) or value.get("name")
            where = named if isinstance(named, str) else where
            if isinstance(value.get("class_name"), str):
                yield where, value
            waiting += [(where, item) for item in value.values()]
        elif isinstance(value, list):
            waiting += [(where, item) for item in value]
