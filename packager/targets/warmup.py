"""Warm-up requests for TensorFlow Serving, made from the golden samples.

TensorFlow Serving reads `assets.extra/tf_serving_warmup_requests` when it loads a version: a
TFRecord file of `PredictionLog` messages (`tensorflow_serving/apis/prediction_log.proto`). Its
messages are three nested ones around `TensorProto`, so they are encoded here instead of
requiring the `tensorflow-serving-api` package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PATH = "assets.extra/tf_serving_warmup_requests"
SIGNATURE = "serving_default"

# Field numbers: PredictionLog.predict_log, PredictLog.request, PredictRequest.model_spec and
# .inputs, ModelSpec.name and .signature_name; of a map entry, its key and value.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS = 6, 1, 1, 2
_NAME, _SIGNATURE_NAME, _KEY, _VALUE = 1, 3, 1, 2


def write(folder: Path, model_name: str, samples: Path) -> None:
    """Writes the requests, one per sample, batch 1. Runs in the TensorFlow child.

    Args:
        folder: The bundle's folder.
        model_name: The name under which the model is served.
        samples: Folder with one `[N, ...]` array `<input name>.npy` per input.
    """
    import tensorflow as tf

    arrays = {path.stem: np.load(path, mmap_mode="r") for path in sorted(samples.glob("*.npy"))}
    path = folder / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in range(len(next(iter(arrays.values())))):
            tensors = {
                name: tf.make_tensor_proto(np.ascontiguousarray(a[row : row + 1]))
                for name, a in arrays.items()
            }
            writer.write(_prediction_log(model_name, tensors))


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file: length, its checksum, data, its checksum."""
    content = path.read_bytes()
    start = 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        yield content[start + 12 : start + 12 + length]
        start += 12 + length + 4


def _prediction_log(model_name: str, tensors: dict[str, Any]) -> bytes:
    spec = _field(_NAME, model_name.encode()) + _field(_SIGNATURE_NAME, SIGNATURE.encode())
    request = _field(_MODEL_SPEC, spec)
    for name, tensor in tensors.items():
        entry = _field(_KEY, name.encode()) + _field(_VALUE, tensor.SerializeToString())
        request += _field(_INPUTS, entry)
    return _field(_PREDICT_LOG, _field(_REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field (wire type 2) of Protocol Buffers."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
