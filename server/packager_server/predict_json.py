"""The bodies of `:predict`: a request becomes arrays by input name, arrays become the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager_server import json_numbers, json_tensors, json_text, quick_json
from packager_server.codes import Code, ServeError
from packager_server.model import Array, Signature, TensorInfo, Tensors
from packager_server.quick_json import QuickBody

Inputs = Mapping[str, TensorInfo]


@dataclass(frozen=True)
class PredictBody:
    """A parsed request whose tensors are not made yet: that needs the model's signature.

    Attributes:
        signature_name: Empty when the request names none.
        body: The text.
        quick: Its numbers, if it has the commonest form.
        root: Its JSON object otherwise.
    """

    signature_name: str
    body: bytes
    quick: QuickBody | None = None
    root: Mapping[str, Any] | None = None


def parse(body: bytes) -> PredictBody:
    """Parses the body of a predict request.

    Raises:
        ServeError: Not JSON, not an object, or `signature_name` is not a string.
    """
    quick = quick_json.read(body)
    if quick is not None:
        return PredictBody(quick.signature_name, body, quick)
    root = _object(json_text.parse(body))
    return PredictBody(signature_name(root), body, None, root)


def _object(root: Any) -> dict[str, Any]:
    if not isinstance(root, dict):
        raise ServeError(f"JSON Value: {json_text.shown(root)} Is not object")
    return root


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
    if body.quick is not None:
        found = body.quick.array(signature.inputs)
        if found is not None:
            return found, body.quick.rows
    root = _object(json_text.parse(body.body)) if body.root is None else body.root
    numbers_only = not any(word in body.body for word in (b"true", b"false", b"null"))
    has_rows, has_columns = "instances" in root, "inputs" in root
    if has_rows and has_columns:
        raise ServeError(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    if has_rows:
        return _rows(root["instances"], signature.inputs, numbers_only), True
    if has_columns:
        return _columns(root["inputs"], signature.inputs, numbers_only), False
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
        found[name] = json_tensors.array(value[name], info, numbers_only=quick)
    return found


def _rows(value: Any, inputs: Inputs, quick: bool) -> Tensors:
    if not isinstance(value, list):
        raise ServeError(
            f"JSON Value: {json_text.shown(value)} Expecting 'instances' to be an list/array"
        )
    if not value:
        raise ServeError("JSON Value: [] No values in 'instances' array")
    if json_tensors.is_object(value[0]):
        return _named_rows(value, inputs, quick)
    if quick and len(inputs) == 1:
        name, info = next(iter(inputs.items()))
        found = json_tensors.quick_array(value, info.dtype)
        if found is not None:
            return {name: found}
    return _plain_rows(value, inputs, quick)


def _plain_rows(rows: list[Any], inputs: Inputs, quick: bool) -> Tensors:
    for index, row in enumerate(rows):
        if json_tensors.is_object(row):
            raise ServeError(f"Expecting value/list but got object at item {index} of input list")
        if len(inputs) != 1:
            raise ServeError(
                "instances is a plain list, but expecting list of objects as multiple input "
                "tensors required as per tensorinfo_map"
            )
    name, info = next(iter(inputs.items()))
    stack = _Stack(info, quick)
    for index, row in enumerate(rows):
        stack.add(row, f"Failed to process element: {index} of 'instances' list.")
    return {name: stack.array()}


def _named_rows(rows: list[Any], inputs: Inputs, quick: bool) -> Tensors:
    stacks = {name: _Stack(info, quick) for name, info in inputs.items()}
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

    def __init__(self, info: TensorInfo, numbers_only: bool) -> None:
        self._info = info
        self._numbers_only = numbers_only
        self._rows: list[Array] = []

    def add(self, value: Any, where: str) -> None:
        try:
            row = json_tensors.array(value, self._info, numbers_only=self._numbers_only)
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
