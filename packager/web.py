"""The web app of a bundle: copied beside it, exported for a static host, or served from here."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import json
import os
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packager import assets, bundle
from packager.errors import BundleError, EnvironmentLacks, UsageError

APP = "web"
# What the service worker keeps for use without a network, and its version: a change of either makes
# browsers take the app again.
LIST = "app-files.js"
# Artifacts that browsers run; with the manifest and the golden samples, all that the app reads.
BROWSER_ARTIFACTS = ("tflite/float32", "tflite/int8_float_io")
_TFJS_KINDS = ("tfjs-layers", "tfjs-graph")
# What checks files in Node and fills vendor/.
_NOT_SHIPPED = ("node/", "vendor.mjs", "package.json", "package-lock.json", LIST)

# With both, a page may use threads in WebAssembly.
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {
    "": "text/plain",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".ts": "text/plain",
}
_COMPRESSED = (".js", ".json", ".html", ".css", ".wasm", ".svg", ".webmanifest")
_REDIRECT = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Model</title>'
    '<meta http-equiv="refresh" content="0; url=web/"><a href="web/">Open the model</a></html>\n'
)


def files() -> dict[str, Path]:
    """Returns the app's files by their path below `web/`.

    Raises:
        EnvironmentLacks: The runtimes are not in `web/vendor`.
    """
    folder = assets.path() / "web"
    if not (assets.web_vendor() / "VERSIONS.json").is_file():
        raise EnvironmentLacks("the browser runtimes are not here (web/vendor)", hint="make vendor")
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: paths[name] for name in sorted(paths) if not name.startswith(_NOT_SHIPPED)}


def file_list(app: dict[str, Path]) -> bytes:
    """Returns the script that tells the service worker which files the app has."""
    version = hashlib.sha256()
    for name, path in app.items():
        version.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    shell = [name for name in app if not name.startswith("vendor/") and name != "sw.js"]
    document = {"version": version.hexdigest()[:16], "shell": shell}
    return f"self.APP = {json.dumps(document)};\n".encode()


def files_of(folder: Path) -> dict[str, Path]:
    """Returns the files of the app in a bundle, or those installed here where it has none.

    Raises:
        EnvironmentLacks: The runtimes are not in `web/vendor`.
    """
    own = folder / APP
    found = {p.relative_to(own).as_posix(): p for p in own.rglob("*") if p.is_file()}
    found.pop(LIST, None)
    return dict(sorted(found.items())) or files()


def copy_app(app: dict[str, Path], target: Path) -> None:
    """Copies the app with its runtimes into a new folder."""
    for name, path in app.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name)
    (target / LIST).write_bytes(file_list(app))


def export(folder: Path, target: Path) -> None:
    """Writes what a browser needs of a bundle, for any static host.

    Args:
        folder: The bundle's folder.
        target: A folder that does not exist, or is empty; it appears whole or not at all.

    Raises:
        BundleError: The bundle has nothing that a browser can run.
        UsageError: The target is taken.
    """
    manifest = bundle.read_manifest(folder)
    wanted = _wanted(manifest)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty", hint="remove it, or name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name in [bundle.MANIFEST, *wanted]:
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, staging / name)
        copy_app(files_of(folder), staging / APP)
        (staging / "index.html").write_text(_REDIRECT, encoding="utf-8")
        # GitHub Pages leaves out files that its site generator does not know.
        (staging / ".nojekyll").touch()
        staging.chmod(0o755)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _wanted(manifest: bundle.Manifest) -> list[str]:
    """Returns the paths of the files that the app may load."""
    prefixes = ["golden/"]
    for artifact in manifest.artifacts:
        if artifact.runtime.kind in _TFJS_KINDS:
            prefixes.append(artifact.path.rpartition("/")[0] + "/")
        elif artifact.id in BROWSER_ARTIFACTS:
            prefixes.append(artifact.path)
    if len(prefixes) == 1:
        raise BundleError(
            f"{manifest.name}/{manifest.version} has no artifact that a browser can run",
            hint="build it again with --only tfjs",
        )
    return [path for path in manifest.files if path.startswith(tuple(prefixes))]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves `/web/` from the app and everything else from the bundle."""

    protocol_version = "HTTP/1.1"
    app: dict[str, Path]
    bundle: Path

    def do_GET(self) -> None:
        """Answers one file, or sends the root to the app."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answers the headers of `do_GET`."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if path in ("/", f"/{APP}"):
            self._send(302, b"", {"Location": f"/{APP}/"}, with_body=with_body)
            return
        name = "index.html" if path == f"/{APP}/" else path.removeprefix(f"/{APP}/")
        content = self._app_file(name) if path.startswith(f"/{APP}/") else self._bundle_file(path)
        if content is None:
            text = {"Content-Type": "text/plain"}
            self._send(404, f"{path} is not here\n".encode(), text, with_body=with_body)
            return
        suffix = Path(name).suffix
        kind = _TYPES.get(suffix) or self.guess_type(name)
        headers = {"Content-Type": kind, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self._send(304, b"", headers, with_body=False)
            return
        if suffix in _COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = _gzipped(content)
            headers["Content-Encoding"] = "gzip"
        self._send(200, content, headers, with_body=with_body)

    def _app_file(self, name: str) -> bytes | None:
        if name == LIST:
            return file_list(self.app)
        path = self.app.get(name)
        return None if path is None else path.read_bytes()

    def _bundle_file(self, path: str) -> bytes | None:
        found = (self.bundle / path.lstrip("/")).resolve()
        inside = found.is_relative_to(self.bundle.resolve())
        return found.read_bytes() if inside and found.is_file() else None

    def _send(self, code: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(code)
        for name, value in {**HEADERS, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Nothing: the address that was printed is enough."""


_cache: dict[str, bytes] = {}


def _gzipped(content: bytes) -> bytes:
    key = hashlib.sha256(content).hexdigest()
    if key not in _cache:
        _cache[key] = gzip.compress(content, compresslevel=6)
    return _cache[key]


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a browser that stops loading closes its connection."""


@contextlib.contextmanager
def serving(folder: Path, app: dict[str, Path] | None = None) -> Iterator[str]:
    """Serves a bundle and the app on a free port of this machine; yields the address.

    Args:
        folder: As for `server`.
        app: As for `server`.
    """
    with server(folder, "127.0.0.1", 0, app) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()


@contextlib.contextmanager
def server(
    folder: Path, host: str, port: int, app: dict[str, Path] | None = None
) -> Iterator[_Server]:
    """Makes a server of a bundle and the app; `serve_forever` of it answers requests.

    Args:
        folder: The bundle's folder; a copy of the app in it comes before the installed one.
        app: The app's files instead of these.
        host: The address to listen at.
        port: The port; 0 takes a free one.

    Raises:
        EnvironmentLacks: The runtimes are missing, or the port is taken.
    """
    handler = type("Handler", (_Handler,), {"app": app or files_of(folder), "bundle": folder})
    try:
        made = _Server((host, port), handler)
    except OSError as error:
        raise EnvironmentLacks(
            f"cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}",
            hint="name another one: --port 0 takes a free one",
        ) from error
    with made:
        yield made
