"""Reads what a SavedModel says of its origin, without TensorFlow: versions, and Keras' own notes.

The numbers are field numbers of TensorFlow's saved_model.proto, meta_graph.proto and
saved_object_graph.proto, and of Keras 2's saved_metadata.proto.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# SavedModel.meta_graphs -> MetaGraphDef.meta_info_def -> tensorflow_version
_TENSORFLOW_VERSION = (2, 1, 5)
# SavedModel.meta_graphs -> MetaGraphDef.object_graph_def
_OBJECTS = (2, 7)
# SavedModel.meta_graphs -> MetaGraphDef.object_graph_def -> nodes -> user_object -> metadata
_OBJECT_METADATA = (2, 7, 1, 4, 3)
# SavedMetadata.nodes -> SavedObject.metadata
_KERAS_METADATA = (1, 5)
_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Origin:
    """Who wrote a SavedModel.

    Attributes:
        saved_by: `tensorflow 2.4.1`, with `keras 2.4.0, ` before it where Keras 2 left notes.
        outputs: The names of a Keras 2 model's outputs in its own order; empty when unknown.
    """

    saved_by: str
    outputs: tuple[str, ...] = ()


def read_origin(folder: Path) -> Origin:
    """Reads a SavedModel's versions and Keras 2's description of the model.

    Keras up to 2.4 wrote the description into `saved_model.pb`, later ones into
    `keras_metadata.pb`.

    Raises:
        ValueError: A file is not the protocol buffer that it should be.
    """
    version = next(_texts(folder / "saved_model.pb", _TENSORFLOW_VERSION), "")
    tensorflow = f"tensorflow {version}".strip()
    notes: dict[str, Any] = {}
    for file, path in (
        ("keras_metadata.pb", _KERAS_METADATA),
        ("saved_model.pb", _OBJECT_METADATA),
    ):
        if not notes and (folder / file).is_file():
            # The first node is the model itself.
            notes = _json(next(_texts(folder / file, path), ""))
    keras = notes.get("keras_version")
    saved_by = f"keras {keras}, {tensorflow}" if keras else tensorflow
    return Origin(saved_by, tuple(_outputs(notes.get("config"))))


def has_objects(folder: Path) -> bool:
    """Whether TensorFlow 2 saved it, which describes objects beside the graph."""
    return any(_values(folder / "saved_model.pb", _OBJECTS))


def _outputs(config: Any) -> Iterator[str]:
    """The layers of `output_layers`: `[name, node, tensor]`, or a structure of such."""
    value = config.get("output_layers") if isinstance(config, dict) else None
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, list):
        for item in value:
            yield from _outputs({"output_layers": item})


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _texts(file: Path, path: tuple[int, ...]) -> Iterator[str]:
    return (value.decode("utf-8", "replace") for value in _values(file, path))


def _values(file: Path, path: tuple[int, ...]) -> list[bytes]:
    return [bytes(value) for value in walk(mapped(file), path)]


def mapped(file: Path) -> memoryview:
    """Maps a file that is not empty into memory, until nothing refers to the view."""
    with file.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def walk(message: memoryview, path: tuple[int, ...]) -> Iterator[memoryview]:
    """The fields of a protocol buffer at a path of field numbers: strings and messages.

    Raises:
        ValueError: The message is cut off.
    """
    for number, value in _fields(message):
        if number == path[0]:
            if len(path) == 1:
                yield value
            else:
                yield from walk(value, path[1:])


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a message: strings and messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        # Some readers cut off what 32 bits do not hold, and see another field.
        if not 8 <= key < 1 << 32:
            raise ValueError(f"field number {key >> 3}")
        kind = key & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind == _LENGTH_DELIMITED:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("cut off")
            yield key >> 3, message[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("cut off")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
