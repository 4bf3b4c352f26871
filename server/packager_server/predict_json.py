"""The bodies of `:predict`: a request becomes arrays by input name, arrays become the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from packager_server import json_numbers, json_tensors, json_text
from packager_server.codes import Code, ServeError
from packager_server.model import Array, Signature, TensorInfo, Tensors

Inputs = Mapping[str, TensorInfo]


@dataclass(frozen=True)
class PredictBody:
    """A parsed request whose tensors are not made yet: that needs the model's signature.

    Attributes:
        root: The JSON object.
        signature_name: Empty when the request names none.
        numbers_only: The body holds no boolean, no null and no string beside its keys.
    """

    root: dict[str, Any]
    signature_name: str
    numbers_only: bool


def parse(body: bytes) -> PredictBody:
    """Parses the body of a predict request.

    Raises:
        ServeError: Not JSON, not an object, or `signature_name` is not a string.
    """
    root, quick = _root(body)
    if not isinstance(root, dict):
        raise ServeError(f"JSON Value: {json_text.shown(root)} Is not object")
    return PredictBody(root, signature_name(root), quick)


def _root(body: bytes) -> tuple[Any, bool]:
    # orjson refuses what only tolerant parsers take, and lets the last of equal keys win: it is
    # used where every quote of the body belongs to a top-level key or to the signature's name.
    if b"true" not in body and b"false" not in body and b"null" not in body:
        quotes = body.count(b'"')
        if quotes <= 6:
            try:
                root = orjson.loads(body)
            except orjson.JSONDecodeError:
                return json_text.parse(body), False
            if isinstance(root, dict):
                strings = len(root) + isinstance(root.get("signature_name"), str)
                if quotes == 2 * strings:
                    return root, True
    return json_text.parse(body), False


def signature_name(root: Mapping[str, Any]) -> str:
    """Returns the signature that a request names, or an empty string."""
    name = root.get("signature_name", "")
    if not isinstance(name, str):
        raise ServeError("'signature_name' key must be a string value.")
    return name


def tensors(body: PredictBody, signature: Signature) -> tuple[Tensors, bool]:
    """Makes the model's inputs from a request.

    Returns:
        The arrays by input name, and whether the request was in the row format.

    Raises:
        ServeError: As TensorFlow Serving would refuse it.
    """
    has_rows, has_columns = "instances" in body.root, "inputs" in body.root
    if has_rows and has_columns:
        raise ServeError(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    if has_rows:
        return _rows(body.root["instances"], signature.inputs, body.numbers_only), True
    if has_columns:
        return _columns(body.root["inputs"], signature.inputs, body.numbers_only), False
    raise ServeError("Missing 'inputs' or 'instances' key")


def _columns(value: Any, inputs: Inputs, quick: bool) -> Tensors:
    if not json_tensors.is_object(value):
        if len(inputs) != 1:
            raise ServeError(
                "inputs is a plain value/list, but expecting an object as multiple input "
                "tensors required as per tensorinfo_map"
            )
        name, info = next(iter(inputs.items()))
        return {name: json_tensors.array(value, info, numbers_only=quick)}
    found = {}
    for name, info in inputs.items():
        if name not in value:
            raise ServeError(f"Missing named input: {name} in 'inputs' object.")
        found[name] = json_tensors.array(value[name], info)
    return found


def _rows(value: Any, inputs: Inputs, quick: bool) -> Tensors:
    if not isinstance(value, list):
        raise ServeError(
            f"JSON Value: {json_text.shown(value)} Expecting 'instances' to be an list/array"
        )
    if not value:
        raise ServeError("JSON Value: [] No values in 'instances' array")
    if json_tensors.is_object(value[0]):
        return _named_rows(value, inputs)
    if quick and len(inputs) == 1:
        name, info = next(iter(inputs.items()))
        found = json_tensors.quick_array(value, info.dtype)
        if found is not None:
            return {name: found}
    return _plain_rows(value, inputs)


def _plain_rows(rows: list[Any], inputs: Inputs) -> Tensors:
    for index, row in enumerate(rows):
        if json_tensors.is_object(row):
            raise ServeError(f"Expecting value/list but got object at item {index} of input list")
        if len(inputs) != 1:
            raise ServeError(
                "instances is a plain list, but expecting list of objects as multiple input "
                "tensors required as per tensorinfo_map"
            )
    name, info = next(iter(inputs.items()))
    stack = _Stack(info)
    for index, row in enumerate(rows):
        stack.add(row, f"Failed to process element: {index} of 'instances' list.")
    return {name: stack.array()}


def _named_rows(rows: list[Any], inputs: Inputs) -> Tensors:
    stacks = {name: _Stack(info) for name, info in inputs.items()}
    for index, row in enumerate(rows):
        if not json_tensors.is_object(row):
            kind = "list" if isinstance(row, list) else "value"
            raise ServeError(f"Expecting object but got {kind} at item {index} of input list")
        for key, value in row.items():
            where = f"Failed to process element: {index} key: {key} of 'instances' list."
            if key not in inputs:
                raise ServeError(
                    f"{where} Error: INVALID_ARGUMENT: JSON object: does not have named input: "
                    f"{key}"
                )
            stacks[key].add(value, where)
        if len(row) != len(inputs):
            names = ",".join(inputs)
            raise ServeError(
                f"Failed to process element: {index} of 'instances' list. JSON object: "
                f"{json_text.shown(row)} keys must be equal to: {names}"
            )
    return {name: stack.array() for name, stack in stacks.items()}


class _Stack:
    """Rows of one input, which must all have the shape of the first."""

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        self._rows: list[Array] = []

    def add(self, value: Any, where: str) -> None:
        try:
            row = json_tensors.array(value, self._info)
        except ServeError as error:
            # Whatever the code was: TensorFlow Serving wraps it as an invalid argument.
            message = f"{where} Error: {error.code.name}: {error.message}"
            raise ServeError(message, Code.INVALID_ARGUMENT) from None
        if self._rows:
            self._compare(row, where)
        self._rows.append(row)

    def _compare(self, row: Array, where: str) -> None:
        first = self._rows[0]
        prefix = f"{where} Error: INVALID_ARGUMENT:"
        if row.size != first.size:
            raise ServeError(f"{prefix} Expecting tensor size: {first.size} but got: {row.size}")
        if row.shape != first.shape:
            raise ServeError(
                f"{prefix} Expecting shape {list(first.shape)} but got: {list(row.shape)}"
            )

    def array(self) -> Array:
        return np.stack(self._rows)


def answer(outputs: Tensors, *, rows: bool) -> bytes:
    """Returns the body that answers a predict request.

    Args:
        outputs: Arrays by output alias.
        rows: The request was in the row format.

    Raises:
        ServeError: An output has no form in JSON, or no common batch axis in the row format.
    """
    if rows:
        return b'{"predictions": [' + ", ".join(_row_texts(outputs)).encode() + b"]}"
    texts = {name: json_numbers.tensor_text(name, value) for name, value in outputs.items()}
    if len(texts) == 1:
        return f'{{"outputs": {next(iter(texts.values()))}}}'.encode()
    return f'{{"outputs": {_object_text(texts)}}}'.encode()


def _row_texts(outputs: Tensors) -> list[str]:
    batch: int | None = None
    for name, value in sorted(outputs.items()):
        if value.ndim == 0:
            raise ServeError(f"Tensor name: {name} has no shape information ")
        if batch is not None and len(value) != batch:
            raise ServeError(
                f"Tensor name: {name} has inconsistent batch size: {len(value)} expecting: {batch}"
            )
        batch = len(value)
    rows = {name: json_numbers.row_texts(name, value) for name, value in outputs.items()}
    if len(rows) == 1:
        return next(iter(rows.values()))
    return [
        _object_text({name: texts[index] for name, texts in rows.items()})
        for index in range(batch or 0)
    ]


def _object_text(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json_text.text(k)}: {v}" for k, v in members.items()) + "}"
