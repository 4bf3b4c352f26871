"""TensorFlow Serving's REST protocol as plain functions; no web framework, no threads."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from packager_server import examples_json, json_text, predict_json
from packager_server.codes import Code, ServeError
from packager_server.core import Call, ServingCore
from packager_server.examples_json import ExamplesBody
from packager_server.model import Tensors, find_signature
from packager_server.predict_json import PredictBody
from packager_server.versions import Lease

PREFIX = "/v1/"
JSON_TYPE = "application/json"
_MAX_VERSION = 2**63 - 1

_MODEL = r"/v1/models/(?P<name>[^/:]+)"
_SPEC = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_POST = re.compile(rf"{_MODEL}{_SPEC}:(?P<verb>classify|regress|predict)", re.I | re.ASCII)
_GET = re.compile(
    rf"/v1/models(?:/(?P<name>[^/:]+))?{_SPEC}(?:/(?P<metadata>metadata))?", re.I | re.ASCII
)


@dataclass(frozen=True)
class Route:
    """What a path names: a model, one version of it, and a verb (POST) or `metadata` (GET)."""

    name: str
    version: int | None = None
    label: str | None = None
    verb: str | None = None
    subresource: str | None = None


@dataclass(frozen=True)
class Response:
    """An answer without its transport."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


def parse_target(method: str, target: str) -> Route:
    """Reads the raw request target, query string included, as TensorFlow Serving does.

    Raises:
        ServeError: It is not understood.
    """
    pattern = {"GET": _GET, "POST": _POST}.get(method)
    found = pattern.fullmatch(target) if pattern else None
    if found is None:
        raise ServeError(f"Malformed request: {method} {target}")
    parts = found.groupdict()
    if parts["name"] is None:
        raise ServeError("Missing model name in request.")
    return Route(
        name=_decoded(parts["name"]),
        version=_version(parts["version"]),
        label=None if parts["label"] is None else _decoded(parts["label"]),
        verb=(parts.get("verb") or "").lower() or None,
        subresource="metadata" if parts.get("metadata") else None,
    )


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")


def _version(text: str | None) -> int | None:
    if text is None:
        return None
    if len(text) > 20 or int(text) > _MAX_VERSION:
        raise ServeError(f"Failed to convert version: {text} to numeric.")
    return int(text)


def error_response(error: ServeError) -> Response:
    """Returns the answer that carries an error."""
    # A client that comes back at once meets the same queue.
    headers = (("Retry-After", "1"),) if error.code == Code.UNAVAILABLE else ()
    return Response(error.http, error_body(error.message), headers=headers)


def error_body(message: str) -> bytes:
    """Returns the body of an error."""
    return json_text.text({"error": message}).encode("utf-8", "replace")


def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """Returns the body as it was before a gzip encoding.

    What cannot be inflated, or exceeds `limit` bytes, is an empty body, as in TensorFlow Serving.
    """
    if "gzip" not in encoding.lower():
        return body
    engine = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        data = engine.decompress(body, limit)
    except zlib.error:
        return b""
    return data if engine.eof else b""


@dataclass(frozen=True)
class Prepared:
    """A call, and how its outputs become the answer."""

    call: Call
    answer: Callable[[Tensors], bytes]


@dataclass(frozen=True)
class Aliases:
    """Other paths for a model, as managed prediction services prescribe them.

    Attributes:
        model: The model's name.
        predict: Path of POST requests; empty for none.
        health: Path of GET requests that ask whether the server is ready; empty for none.
    """

    model: str = ""
    predict: str = ""
    health: str = ""


class RestApi:
    """Answers the requests below `/v1/`, and those to an alias of `:predict`."""

    def __init__(
        self, core: ServingCore, *, timeout_s: float = 30.0, aliases: Aliases | None = None
    ) -> None:
        self._core = core
        self._aliases = aliases or Aliases()
        self.timeout_s = timeout_s

    def owns(self, target: str) -> bool:
        """Whether a request target belongs to this protocol."""
        if target in (self._aliases.predict, self._aliases.health):
            return target == self._aliases.predict and bool(target)
        return target[: len(PREFIX)].lower() == PREFIX

    def route(self, method: str, target: str) -> Route:
        """Returns what a request target names.

        Raises:
            ServeError: It is not understood.
        """
        if method == "POST" and target and target == self._aliases.predict:
            return Route(self._aliases.model, verb="predict")
        return parse_target(method, target)

    def respond(self, method: str, target: str, body: bytes) -> Response:
        """Answers one request and waits for the model if it needs one."""
        try:
            route = self.route(method, target)
            if route.verb is None:
                return self.describe(route)
            prepared = self.prepare(route, body)
            outputs = self._core.run(prepared.call, self.timeout_s)
            return Response(200, prepared.answer(outputs))
        except ServeError as error:
            return error_response(error)

    def describe(self, route: Route) -> Response:
        """Answers the status of a model, or its metadata.

        Raises:
            ServeError: The model, version or label is unknown.
        """
        if route.subresource == "metadata":
            return Response(200, json_text.text(self._metadata(route)).encode())
        found = [
            {
                "version": str(one.version),
                "state": one.state,
                "status": {"error_code": one.code.name, "error_message": one.message},
            }
            for one in self._core.versions.status(route.name, route.version)
        ]
        return Response(200, json_text.text({"model_version_status": found}).encode())

    def _metadata(self, route: Route) -> dict[str, Any]:
        lease = self._core.versions.acquire(route.name, route.version, route.label)
        try:
            spec = {"name": route.name, "signature_name": "", "version": str(lease.version)}
            definitions = {"signature_def": lease.model.metadata()}
            return {"model_spec": spec, "metadata": {"signature_def": definitions}}
        finally:
            lease.release()

    def prepare(self, route: Route, body: bytes) -> Prepared:
        """Turns the body of an inference request into a call.

        Raises:
            ServeError: In TensorFlow Serving's order: JSON, model, signature, tensors.
        """
        verb = route.verb or "predict"
        parsed = predict_json.parse(body) if verb == "predict" else examples_json.parse(body, verb)
        lease = self._core.versions.acquire(route.name, route.version, route.label)
        try:
            if isinstance(parsed, PredictBody):
                return _predict(parsed, lease)
            return _examples(parsed, verb, lease)
        except BaseException:
            lease.release()
            raise


def _predict(parsed: PredictBody, lease: Lease) -> Prepared:
    signature = find_signature(lease.model, parsed.signature_name)
    inputs, rows = predict_json.tensors(parsed, signature)
    call = Call(lease, signature, inputs, tuple(signature.outputs))
    return Prepared(call, lambda outputs: predict_json.answer(outputs, rows=rows))


def _examples(parsed: ExamplesBody, verb: str, lease: Lease) -> Prepared:
    signature = find_signature(lease.model, parsed.signature_name, method=verb)
    outputs = examples_json.check_signature(signature, verb)
    inputs = {examples_json.INPUT: examples_json.serialized(parsed)}
    count = len(parsed.examples)

    def answer(found: Tensors) -> bytes:
        if verb == "regress":
            values = examples_json.regressions(found, count)
            return examples_json.regression_answer(values)
        return examples_json.classification_answer(examples_json.classifications(found, count))

    return Prepared(Call(lease, signature, inputs, outputs, api=verb), answer)
