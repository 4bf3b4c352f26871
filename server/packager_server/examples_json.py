"""The bodies of `:classify` and `:regress`: JSON examples, and the answers' lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager_server import json_numbers, json_tensors, json_text, predict_json
from packager_server.codes import ServeError
from packager_server.model import Array, Signature, Tensors

INPUT = "inputs"
_INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Feature:
    """One feature of an example: `bytes_list`, `float_list` or `int64_list`, and its values."""

    kind: str
    values: list[Any]


Features = Mapping[str, Feature]


@dataclass(frozen=True)
class ExamplesBody:
    """A parsed request: the signature's name (may be empty), the context, the examples."""

    signature_name: str
    context: Features | None
    examples: list[Features]


def parse(body: bytes, verb: str) -> ExamplesBody:
    """Parses the body of a classify or regress request.

    Raises:
        ServeError: Not JSON, no list of examples, or a value that is no feature.
    """
    root = json_text.parse(body)
    if not isinstance(root, dict):
        raise ServeError(f"JSON Value: {json_text.shown(root)} Is not object")
    name = predict_json.signature_name(root)
    context = _features(root["context"]) if "context" in root else None
    if "examples" not in root:
        raise ServeError(f"When method is {verb}, key 'examples' is expected and was not found")
    examples = root["examples"]
    if not isinstance(examples, list):
        raise _bad(examples, "Expecting 'examples' value to be an list/array")
    if not examples:
        raise _bad(examples, "'examples' value is an empty array")
    return ExamplesBody(name, context, [_features(one) for one in examples])


def _features(value: Any) -> Features:
    if not isinstance(value, dict):
        raise _bad(value, "Example must be JSON object")
    return {name: _feature(name, one) for name, one in value.items()}


def _feature(name: str, value: Any) -> Feature:
    values = value if isinstance(value, list) else [value]
    if not values:
        return Feature("", [])
    pairs = [_element(name, one) for one in values]
    kind = pairs[0][0]
    for other, _ in pairs:
        if other != kind:
            expected = {"bytes_list": "string", "float_list": "float", "int64_list": "int64"}[kind]
            raise ServeError(
                f"Unexpected element type in feature: {name} expecting type: {expected}"
            )
    return Feature(kind, [one for _, one in pairs])


def _element(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, str):
        return "bytes_list", value.encode("utf-8", "surrogatepass")
    if json_tensors.is_base64(value):
        return "bytes_list", json_tensors.decode_base64(value["b64"])
    if isinstance(value, (bool, int)):
        if not _INT64[0] <= value <= _INT64[1]:
            raise _bad(value, f"Feature: {name} Only int64_t is supported")
        return "int64_list", int(value)
    if isinstance(value, float):
        return "float_list", value
    kind = json_text.type_name(value)
    raise ServeError(f"Feature: {name} has element with unexpected JSON type: {kind}")


def _bad(value: Any, message: str) -> ServeError:
    return ServeError(f"JSON Value: {json_text.shown(value)} {message}")


def serialized(body: ExamplesBody) -> Array:
    """Returns the examples as serialized `tf.Example`, a string array `[N]`."""
    context = b"" if body.context is None else _serialized(body.context)
    found = np.empty(len(body.examples), object)
    # Two serialized messages in a row are their merged message.
    found[:] = [_serialized(one) + context for one in body.examples]
    return found


def _serialized(features: Features) -> bytes:
    from tensorflow.core.example import example_pb2

    example = example_pb2.Example()
    for name, feature in features.items():
        target = example.features.feature[name]
        if feature.kind:
            getattr(target, feature.kind).value.extend(feature.values)
    data: bytes = example.SerializeToString()
    return data


def check_signature(signature: Signature, verb: str) -> tuple[str, ...]:
    """Returns the outputs that a verb needs of a signature.

    Raises:
        ServeError: Its input is not one string tensor `inputs`, or the outputs are not there.
    """
    if set(signature.inputs) != {INPUT}:
        raise ServeError(
            f"Expected one input Tensor named {INPUT}, the signature {signature.name!r} has: "
            f"{sorted(signature.inputs)}"
        )
    if signature.inputs[INPUT].dtype != "string":
        raise ServeError(f"Expected the input {INPUT} to be serialized tf.Example (DT_STRING)")
    wanted = ("classes", "scores") if verb == "classify" else ("outputs",)
    found = tuple(name for name in wanted if name in signature.outputs)
    if not found:
        raise ServeError(
            f"Expected {verb} signature outputs {' or '.join(wanted)}, the signature "
            f"{signature.name!r} has: {sorted(signature.outputs)}"
        )
    return found


def classifications(outputs: Tensors, count: int) -> list[list[tuple[bytes, float]]]:
    """Returns label and score for each class of each example.

    Raises:
        ServeError: The tensors are not `[count, classes]`.
    """
    classes, scores = outputs.get("classes"), outputs.get("scores")
    for name, value in (("classes", classes), ("scores", scores)):
        if value is not None and (value.ndim != 2 or len(value) != count):
            raise ServeError(
                f"Expected Tensor {name} with shape [{count}, classes], received "
                f"{list(value.shape)}"
            )
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise ServeError("Tensors class and score should match in dim_size(1)")
    shape = next(value.shape for value in (classes, scores) if value is not None)
    labels = [[b""] * shape[1]] * count if classes is None else classes.tolist()
    values = [[0.0] * shape[1]] * count if scores is None else scores.tolist()
    return [list(zip(*pair, strict=True)) for pair in zip(labels, values, strict=True)]


def regressions(outputs: Tensors, count: int) -> Array:
    """Returns one float32 value for each example.

    Raises:
        ServeError: The tensor is neither `[count]` nor `[count, 1]`, or not float.
    """
    value = outputs["outputs"]
    if value.shape not in ((count,), (count, 1)):
        raise ServeError(
            f"Expected output Tensor shape [{count}] or [{count}, 1], received {list(value.shape)}"
        )
    if value.dtype != np.float32:
        raise ServeError(f"Expected output Tensor of type float, received {value.dtype}")
    return value.ravel()


def classification_answer(results: list[list[tuple[bytes, float]]]) -> bytes:
    """Returns the body that answers a classify request."""
    if not results:
        raise ServeError("empty ClassificationResults")
    rows = []
    for classes in results:
        scores = json_numbers.float_texts(np.array([score for _, score in classes], np.float32))
        labels = [json_text.text(label.decode("utf-8", "replace")) for label, _ in classes]
        rows.append(
            ", ".join(f"[{label}, {score}]" for label, score in zip(labels, scores, strict=True))
        )
    return ('{"results": [' + ", ".join(f"[{row}]" for row in rows) + "]}").encode()


def regression_answer(values: Array) -> bytes:
    """Returns the body that answers a regress request."""
    if not len(values):
        raise ServeError("empty RegressionResults")
    texts = json_numbers.float_texts(values.astype(np.float32))
    return ('{"results": [' + ", ".join(texts) + "]}").encode()
