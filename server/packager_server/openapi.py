"""The OpenAPI document of the server."""

from __future__ import annotations

from typing import Any

from packager_server import __doc__ as package_doc
from packager_server.core import ServingCore

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def document(core: ServingCore) -> dict[str, Any]:
    """Returns the document for the models that are configured."""
    names = core.versions.names()
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "packager server",
            "version": "1",
            "description": (package_doc or "").splitlines()[0],
        },
        "paths": {
            "/healthz": {"get": _text_operation("Whether the process lives", {})},
            "/readyz": {
                "get": _text_operation(
                    "Whether every model answers", {"503": "loading or draining"}
                )
            },
            "/v1/models/{name}": _get(names, "Status of a model's versions"),
            "/v1/models/{name}/metadata": _get(names, "Signatures of a model"),
            "/v1/models/{name}:predict": _post(names, "Run a model", _PREDICT),
            "/v1/models/{name}:classify": _post(names, "Classify examples", _EXAMPLES),
            "/v1/models/{name}:regress": _post(names, "Regress examples", _EXAMPLES),
            "/api/v1/models/{name}:image": _image(names),
        },
    }


_PREDICT = {
    "type": "object",
    "properties": {
        "signature_name": {"type": "string"},
        "instances": {"type": "array", "items": {}},
        "inputs": {},
    },
}
_EXAMPLES = {
    "type": "object",
    "required": ["examples"],
    "properties": {
        "signature_name": {"type": "string"},
        "context": {"type": "object"},
        "examples": {"type": "array", "items": {"type": "object"}},
    },
}


def _name(names: list[str]) -> list[dict[str, Any]]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if names:
        schema["example"] = names[0]
    return [{"name": "name", "in": "path", "required": True, "schema": schema}]


def _responses(kinds: tuple[str, ...], schema: dict[str, Any]) -> dict[str, Any]:
    texts = {
        "400": "the request is not understood, or the model refuses it",
        "404": "no such model or version",
        "408": "the body did not arrive in time",
        "413": "too large",
        "503": "the queue is full; try again after Retry-After",
        "504": "the time limit passed",
    }
    good = {"description": "the answer", "content": {"application/json": {"schema": schema}}}
    bad = {
        code: {
            "description": texts[code],
            "content": {"application/json": {"schema": _ERROR}},
        }
        for code in kinds
    }
    return {"200": good, **bad}


def _get(names: list[str], summary: str) -> dict[str, Any]:
    responses = _responses(("400", "404"), {"type": "object"})
    return {"get": {"summary": summary, "parameters": _name(names), "responses": responses}}


def _post(names: list[str], summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "post": {
            "summary": summary,
            "parameters": _name(names),
            "requestBody": body,
            # Not always valid JSON: NaN and Infinity are written as TensorFlow Serving writes them.
            "responses": _responses(("400", "404", "408", "413", "503", "504"), {}),
        }
    }


def _image(names: list[str]) -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    form = {
        "schema": {
            "type": "object",
            "properties": {"image": {"type": "string", "format": "binary"}},
        }
    }
    text = {"schema": {"type": "object", "properties": {"image": {}}}}
    top = {
        "name": "top",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000},
    }
    return {
        "post": {
            "summary": "Label and score of a picture",
            "parameters": [*_name(names), top],
            "requestBody": {
                "required": True,
                "content": {
                    "image/png": binary,
                    "image/jpeg": binary,
                    "multipart/form-data": form,
                    "application/json": text,
                },
            },
            "responses": _responses(("400", "404", "408", "413", "503", "504"), {"type": "object"}),
        }
    }


def _text_operation(summary: str, others: dict[str, str]) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "yes"}}
    responses |= {code: {"description": text} for code, text in others.items()}
    return {"summary": summary, "responses": responses}
