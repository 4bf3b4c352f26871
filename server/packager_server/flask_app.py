"""The Flask application: pages, probes, metrics, pictures, and the REST protocol for WSGI servers.

`create_app` is complete by itself: gunicorn and other WSGI servers can run it. The project's own
server answers `/v1/` on its event loop instead (`asgi.py`), because that is several times faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flask import Flask, abort, request, send_from_directory
from flask import Response as FlaskResponse
from werkzeug.exceptions import HTTPException

from packager_server import images, openapi, rest
from packager_server.codes import ServeError
from packager_server.core import ServingCore
from packager_server.flags import DEFAULT_METRICS_PATH
from packager_server.guard import Guard
from packager_server.images import ImageService
from packager_server.rest import Aliases, RestApi

log = logging.getLogger(__name__)

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_DEFAULT_TOP = 5
# What the web app reads, below a bundle; it finds the bundle at `../`.
_BROWSER_FILES = ("web/", "golden/", "tfjs/", "tflite/")
# With these a page may use threads in WebAssembly.
_ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Pages:
    """What the application serves beside the protocol.

    Attributes:
        metrics_path: URL path of the metrics; None for none.
        web_dir: Folder of the page at `/`; None shows the web app of the first bundle that has
            one, at `/web/`.
        max_body_bytes: Largest body.
        max_inflated_bytes: Largest body after gzip.
    """

    metrics_path: str | None = DEFAULT_METRICS_PATH
    web_dir: Path | None = None
    max_body_bytes: int = 64 << 20
    max_inflated_bytes: int = 100 << 20


@dataclass
class Readiness:
    """Whether the server wants requests; it stops wanting them before it stops."""

    core: ServingCore
    draining: bool = False

    def __bool__(self) -> bool:
        return not self.draining and self.core.versions.ready()


def create_app(
    core: ServingCore,
    api: RestApi,
    image_service: ImageService,
    *,
    pages: Pages | None = None,
    aliases: Aliases | None = None,
    readiness: Readiness | None = None,
    guard: Guard | None = None,
) -> Flask:
    """Returns the application.

    Args:
        core: What runs the models.
        api: The REST protocol.
        image_service: The image endpoint.
        pages: Paths and limits.
        aliases: Paths of a managed prediction service.
        readiness: What `/readyz` answers.
        guard: Checks every request, where no server in front of the application does.
    """
    pages = pages or Pages()
    ready = Readiness(core) if readiness is None else readiness
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = pages.max_body_bytes
    app.url_map.strict_slashes = False
    _add_errors(app)
    if guard is not None:
        _add_guard(app, guard)
    _add_probes(app, probes(ready, aliases or Aliases()))
    _add_rest(app, api, pages)
    _add_images(app, image_service)
    _add_pages(app, core, pages)
    return app


def _json(body: Any, status: int = 200) -> FlaskResponse:
    from packager_server import json_text

    return FlaskResponse(json_text.text(body), status, content_type=rest.JSON_TYPE)


def _flask_response(answer: rest.Response) -> FlaskResponse:
    made = FlaskResponse(answer.body, answer.status, content_type=answer.content_type)
    made.headers.extend(list(answer.headers))
    return made


def _add_errors(app: Flask) -> None:
    @app.errorhandler(ServeError)
    def refused(error: ServeError) -> FlaskResponse:
        return _flask_response(rest.error_response(error))

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> FlaskResponse:
        return _json({"error": error.description or error.name}, error.code or 500)

    @app.errorhandler(Exception)
    def broken(error: Exception) -> FlaskResponse:
        log.exception("a request failed unexpectedly")
        return _json({"error": f"unexpected {type(error).__name__}"}, 500)


def _add_guard(app: Flask, guard: Guard) -> None:
    def headers() -> dict[bytes, bytes]:
        return {
            name.lower().encode("latin-1"): value.encode("latin-1", "replace")
            for name, value in request.headers.items()
        }

    @app.before_request
    def check() -> FlaskResponse | None:
        refused = guard.check(request.method, _raw_target(), headers())
        return None if refused is None else _flask_response(refused)

    @app.after_request
    def mark(response: FlaskResponse) -> FlaskResponse:
        for name, value in guard.response_headers(headers()):
            response.headers[name.decode()] = value.decode("latin-1")
        return response


def probes(ready: Readiness, aliases: Aliases) -> dict[str, Callable[[], rest.Response]]:
    """Returns what answers the probes, by path; none of it waits for anything."""

    def healthz() -> rest.Response:
        return rest.Response(200, b"ok\n", "text/plain")

    def readyz() -> rest.Response:
        if ready:
            return rest.Response(200, b"ready\n", "text/plain")
        text = b"draining\n" if ready.draining else b"loading\n"
        return rest.Response(503, text, "text/plain")

    alias = {aliases.health: readyz} if aliases.health else {}
    return {"/healthz": healthz, "/readyz": readyz, **alias}


def _add_probes(app: Flask, answers: Mapping[str, Callable[[], rest.Response]]) -> None:
    for path, answer in answers.items():
        app.add_url_rule(
            path, endpoint=f"probe{path}", view_func=lambda answer=answer: _flask_response(answer())
        )


def _add_rest(app: Flask, api: RestApi, pages: Pages) -> None:
    def protocol(**_: str) -> FlaskResponse:
        body = request.get_data(cache=False, parse_form_data=False)
        encoding = request.headers.get("Content-Encoding", "")
        body = rest.inflate(body, encoding, pages.max_inflated_bytes)
        return _flask_response(api.respond(request.method, _raw_target(), body))

    app.add_url_rule(
        "/v1/<path:rest>", endpoint="v1", view_func=protocol, methods=METHODS,
        provide_automatic_options=False,
    )  # fmt: skip


def _raw_target() -> str:
    """Returns the target before percent-decoding, where the WSGI server tells it."""
    raw: str | None = request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI")
    if raw is not None:
        return raw
    query = request.query_string.decode("latin-1")
    return quote(request.path, safe="/:!$&'()*+,;=@") + (f"?{query}" if query else "")


def _add_images(app: Flask, service: ImageService) -> None:
    @app.post("/api/v1/models/<name>:image")
    @app.post("/api/v1/models/<name>/versions/<int:version>:image")
    def image(name: str, version: int | None = None) -> FlaskResponse:
        top = request.args.get("top", str(_DEFAULT_TOP))
        if not (top.isascii() and top.isdigit() and len(top) < 6):
            raise ServeError(f"top must be a number, received {top!r}")
        request.environ.get("asgi.scope", {})["packager.model"] = name
        return _json(service.answer(name, version, _picture(), int(top)))


def _picture() -> bytes:
    if request.mimetype == "multipart/form-data":
        files = list(request.files.values())
        if len(files) != 1:
            raise ServeError(f"Expected one file in the form, received {len(files)}")
        return bytes(files[0].read())
    body = request.get_data(cache=False, parse_form_data=False)
    # Images begin with other bytes; a content type is often forgotten.
    if request.mimetype == rest.JSON_TYPE or body.lstrip()[:1] == b"{":
        return images.picture_from_json(body)
    return body


def _add_pages(app: Flask, core: ServingCore, pages: Pages) -> None:
    @app.get("/openapi.json")
    def openapi_document() -> FlaskResponse:
        return _json(openapi.document(core))

    if pages.metrics_path is not None:

        @app.get(pages.metrics_path)
        def metrics() -> FlaskResponse:
            made = FlaskResponse(core.metrics.text())
            made.headers["Content-Type"] = "text/plain"
            return made

    @app.get("/")
    @app.get("/<path:name>")
    def web(name: str = "") -> FlaskResponse:
        if pages.web_dir is not None:
            return send_from_directory(pages.web_dir.resolve(), name or "index.html")
        bundle = _bundle_with_web(core)
        if bundle is not None and name in ("", "web"):
            return _redirect("/web/")
        if bundle is not None and _is_for_browsers(name):
            return _browser_file(bundle, name)
        if name:
            abort(404)
        return FlaskResponse(_start_page(core), content_type="text/html; charset=utf-8")


def _redirect(location: str) -> FlaskResponse:
    return FlaskResponse(status=302, headers={"Location": location})


def _is_for_browsers(name: str) -> bool:
    if ".." in name.split("/"):
        return False
    return name == "manifest.json" or name.startswith(_BROWSER_FILES)


def _browser_file(bundle: Path, name: str) -> FlaskResponse:
    path = f"{name}index.html" if name.endswith("/") else name
    answer = send_from_directory(bundle.resolve(), path)
    answer.headers.update(_ISOLATED)
    return answer


def _bundle_with_web(core: ServingCore) -> Path | None:
    """Returns the newest bundle that has a web app, by the models' names."""
    for name in core.versions.names():
        try:
            lease = core.versions.acquire(name)
        except ServeError:
            continue
        lease.release()
        if (Path(lease.path) / "web" / "index.html").is_file():
            return Path(lease.path)
    return None


def _start_page(core: ServingCore) -> str:
    from markupsafe import escape

    rows = "".join(
        f'<li><a href="/v1/models/{quote(name, safe="")}">{escape(name)}</a></li>'
        for name in core.versions.names()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>packager server</title>'
        f"<h1>Models</h1><ul>{rows}</ul>"
        '<p><a href="/openapi.json">OpenAPI</a>, <a href="/readyz">readiness</a></p></html>'
    )
