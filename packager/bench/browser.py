"""Times a TF.js artifact in an installed Chromium, headless, with the shipped JavaScript."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from packager import assets
from packager.errors import EnvironmentLacks, PackagerError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_LIMIT_MS = 300_000
_PAGE = """<!doctype html>
<meta charset="utf-8"><title>bench</title><link rel="icon" href="data:,">
<script src="/web/vendor/tf.min.js"></script>
<script src="/web/vendor/tf-backend-wasm.min.js"></script>
"""
_RUN = """async ({model, feeds, backend, settings}) => {
  const [{ readTfjs }, { load }, { timed }] = await Promise.all(
    ['/web/bundle.js', '/web/runtimes/tfjs.js', '/web/timing.js'].map((path) => import(path)));
  window.tf.enableProdMode();
  window.tf.wasm.setWasmPaths('/web/vendor/');
  const at = model.lastIndexOf('/') + 1;
  const fetched = async (name) => (await fetch(model.slice(0, at) + name)).arrayBuffer();
  const read = async (name) => new Uint8Array(await fetched(name));
  const source = await readTfjs(model.slice(at), read);
  const card = source.json.userDefinedMetadata.packager;
  const started = performance.now();
  const runtime = await load(window.tf, source, card, { backend });
  const load_ms = performance.now() - started;
  const typed = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array };
  const inputs = feeds.map((feed) => Object.fromEntries(Object.entries(feed).map(
    ([name, { data, shape, dtype }]) => [name, { data: typed[dtype].from(data), shape, dtype }])));
  const times = await timed((number) => runtime.run(inputs[number % inputs.length]), settings);
  return { runtime: runtime.describe(), load_ms, times };
}"""


def run(folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Measures one artifact in a browser of its own.

    Args:
        folder: The bundle's folder.
        order: As the other children get it.

    Raises:
        EnvironmentLacks: Playwright, Chromium or web/vendor is missing.
        PackagerError: The page failed.
    """
    try:
        from playwright import sync_api
    except ImportError:
        raise EnvironmentLacks(
            "Playwright is not installed", hint="pip install 'packager[browser]'"
        ) from None
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise EnvironmentLacks("Chromium is not installed", hint="apt-get install chromium")
    argument = {
        "model": "/bundle/" + Path(order["model"]).relative_to(folder).as_posix(),
        "feeds": _feeds(Path(order["inputs"]), order["samples"]),
        "backend": order["backend"],
        "settings": {key: order[key] for key in ("warm_up", "runs", "seconds")},
    }
    with _served(folder) as root, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, headless=True, args=list(FLAGS)
        )
        try:
            page = browser.new_page()
            page.set_default_timeout(_LIMIT_MS)
            page.goto(f"{root}/page")
            answer: dict[str, Any] = page.evaluate(_RUN, argument)
            return answer
        except sync_api.Error as error:
            raise PackagerError(f"the page failed: {error.message.splitlines()[0]}") from None
        finally:
            browser.close()


def _feeds(folder: Path, count: int) -> list[dict[str, Any]]:
    arrays = {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))}
    return [
        {
            name: {
                "data": array[row].reshape(-1).tolist(),
                "shape": [1, *array.shape[1:]],
                "dtype": array.dtype.name,
            }
            for name, array in arrays.items()
        }
        for row in range(count)
    ]


class MountedFiles(http.server.SimpleHTTPRequestHandler):
    """Serves the files below some folders by the first part of their path."""

    extensions_map = {  # noqa: RUF012 - the base class has it so
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, *arguments: Any, mounts: dict[str, Path], **options: Any) -> None:
        self._mounts = {name: folder.resolve() for name, folder in mounts.items()}
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        """Maps `/NAME/…` to a file below the folder of that name; nothing outside of them."""
        _, first, *rest = unquote(urlsplit(path).path).split("/")
        root = self._mounts.get(first)
        if root is None:
            return "/nowhere"
        found = root.joinpath(*rest).resolve()
        return str(found) if found.is_relative_to(root) else "/nowhere"

    def log_message(self, *arguments: Any) -> None:
        """Nothing: a missing file shows as an error in the page."""


class _Handler(MountedFiles):
    def do_GET(self) -> None:
        """Answers the page itself, or a file below a mounted folder."""
        if self.path != "/page":
            super().do_GET()
            return
        body = _PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serves the bundle and the web files on a free port of this machine."""
    mounts = {"web": assets.path() / "web", "bundle": folder}
    handler = functools.partial(_Handler, mounts=mounts)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
