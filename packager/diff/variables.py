"""Reads the variables of a SavedModel without TensorFlow, for comparison.

`variables.index` is a LevelDB table that maps a variable's path in the object graph to a
`BundleEntryProto` (tensorflow/core/protobuf/tensor_bundle.proto): dtype, shape, and where in
`variables.data-*` its values are. TensorFlow writes the table without compression.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packager.diff.contents import ModelFile, Tensor
from packager.errors import BundleError

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
# tensorflow/core/framework/types.proto; texts and resources are not compared.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64",
    10: "bool", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_TEXT = 7
_ENDING = "/.ATTRIBUTES/VARIABLE_VALUE"
# What a Dropout draws next says nothing about the model, and each build has another.
_IGNORED = "seed_generator_state"
_VARINT, _BYTES, _FIXED64, _FIXED32 = 0, 2, 1, 5


def read(folder: Path) -> ModelFile:
    """Reads the variables of a SavedModel's folder.

    Raises:
        BundleError: The files are damaged.
    """
    index = folder / "variables" / "variables.index"
    tensors: dict[str, Tensor] = {}
    size = 0
    try:
        entries = {key: dict(_fields(entry)) for key, entry in _table(index.read_bytes()) if key}
        names = _names(index, entries)
        for key, fields in entries.items():
            path = key.decode()
            name = names.get(path, path.removesuffix(_ENDING))
            if fields.get(1) in _DTYPES and not name.endswith(_IGNORED):
                # Two variables may have one name; their paths differ.
                name = f"{name} ({path.removesuffix(_ENDING)})" if name in tensors else name
                tensors[name] = _tensor(index, name, fields)
                size += fields.get(5, 0)
    except (IndexError, KeyError, OSError, ValueError) as error:
        raise BundleError(
            f"{index} cannot be read: {error}", hint="copy the bundle again"
        ) from error
    return ModelFile(size, tensors, {}, None)


def _names(index: Path, entries: dict[bytes, dict[int, Any]]) -> dict[str, str]:
    """Full names by path, of the `TrackableObjectGraph` that is stored as a text."""
    fields = entries.get(b"_CHECKPOINTABLE_OBJECT_GRAPH", {})
    if fields.get(1) != _TEXT:
        return {}
    content = _stored(index, fields)
    length, place = _number(content, 0)
    graph = content[place + 4 : place + 4 + length]  # behind a checksum of the length
    found = {}
    for _, node in _fields(graph):
        for number, attribute in _fields(node):
            if number == 2:
                texts = dict(_fields(attribute))
                if texts.get(2) and texts.get(3):
                    found[texts[3].decode()] = texts[2].decode()
    return found


def _stored(index: Path, fields: dict[int, Any]) -> bytes:
    shards = sorted(index.parent.glob("variables.data-*"))
    with shards[fields.get(3, 0)].open("rb") as stream:
        stream.seek(int(fields.get(4, 0)))
        content: bytes = stream.read(int(fields.get(5, 0)))
        return content


def _tensor(index: Path, name: str, fields: dict[int, Any]) -> Tensor:
    dtype = _DTYPES[fields[1]]
    # A TensorShapeProto: repeated messages `dim`, whose first field is the size.
    sizes = [
        dict(_fields(dim)).get(1, 0) for field, dim in _fields(fields.get(2, b"")) if field == 2
    ]
    values = np.frombuffer(_stored(index, fields), dtype)
    return Tensor(name.rpartition("/")[0] or name, dtype, tuple(sizes), {}, values)


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table."""
    footer = content[-_FOOTER:]
    if footer[-8:] != _MAGIC:
        raise ValueError("it is no table of a checkpoint")
    _, _, place = _handle(footer, 0)
    offset, length, _ = _handle(footer, place)
    for _, handle in _block(content, offset, length):
        start, size, _ = _handle(handle, 0)
        yield from _block(content, start, size)


def _handle(content: bytes, place: int) -> tuple[int, int, int]:
    offset, place = _number(content, place)
    size, place = _number(content, place)
    return offset, size, place


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if content[offset + size]:
        raise ValueError("the table is compressed")
    block = content[offset : offset + size]
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    key, place = b"", 0
    while place < end:
        shared, place = _number(block, place)
        own, place = _number(block, place)
        length, place = _number(block, place)
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message."""
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _number(message, place)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, place = _number(message, place)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        yield tag >> 3, message[place : place + size]
        place += size


def _number(content: bytes, place: int) -> tuple[int, int]:
    """A varint and the place after it."""
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
