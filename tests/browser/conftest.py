"""An installed Chromium, pages that note what goes wrong in them, and a static server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

from packager import web
from packager.bench.browser import FLAGS, PROGRAMS
from tests.browser.watched_page import WEB, Watched
from tests.conftest import DIGITS, loaded

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIMIT_MS = 120_000


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser, with a camera that films a digit: see `filmed_digit`."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is missing: pip install .[browser]"
    )
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("Chromium is missing: sh tests/browser/ensure-chromium.sh")
    with sync_api.sync_playwright() as playwright:
        film = write_film(tmp_path_factory.mktemp("camera") / "film.y4m")
        camera = ["--use-fake-device-for-media-stream", f"--use-file-for-fake-video-capture={film}"]
        browser = playwright.chromium.launch(
            executable_path=program, headless=True, args=[*FLAGS, *camera]
        )
        yield browser
        browser.close()


FILM = (320, 240)


def filmed_digit() -> tuple[np.ndarray[Any, Any], int]:
    """A digit of the evaluation set: uint8 [28, 28], and its label."""
    with loaded(DIGITS / "data" / "evaluation.npz") as stored:
        number = int(np.flatnonzero(stored["y"] == 4)[0])
        return stored["x"][number].reshape(28, 28), 4


def write_film(path: Path) -> Path:
    """Writes `filmed_digit` as the frames of an uncompressed video, gray."""
    width, height = FILM
    picture = Image.fromarray(filmed_digit()[0]).resize(FILM, Image.Resampling.BILINEAR)
    # Video has black at 16 and white at 235; colours are around 128.
    luma = (16 + np.asarray(picture, np.float64) * (235 - 16) / 255).round().astype(np.uint8)
    frame = b"FRAME\n" + luma.tobytes() + bytes([128]) * (width * height // 2)
    path.write_bytes(f"YUV4MPEG2 W{width} H{height} F30:1 Ip A1:1 C420\n".encode() + frame * 4)
    return path


@pytest.fixture(scope="module")
def web_app() -> Iterator[Callable[[Path], str]]:
    """Serves a bundle with the app as `packager web` does; returns the address."""
    if not (WEB / "vendor" / "VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")
    with contextlib.ExitStack() as running:

        def start(bundle: Path) -> str:
            return running.enter_context(web.serving(bundle))

        yield start


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens an address in a context of its own, with Playwright's context options."""
    contexts = []

    def open_(address: str, **options: Any) -> Watched:
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(LIMIT_MS)
        watched = Watched(page)

        def note(message: Any) -> None:
            if message.type in ("error", "warning"):
                watched.problems.append(f"{message.type}: {message.text}")

        page.on("console", note)
        page.on("pageerror", lambda error: watched.problems.append(f"exception: {error}"))
        page.on("request", lambda request: watched.requests.append(request.url))
        page.goto(address)
        return watched

    yield open_
    for context in contexts:
        context.close()


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


class ForAll(MountedFiles):
    """A host whose files pages of other origins may read."""

    def end_headers(self) -> None:
        """Adds the header that allows it."""
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves folders on a free port of this machine; returns the address of the root."""
    servers = []

    def start(mounts: dict[str, Path], *, to_all: bool = False) -> str:
        handler = functools.partial(ForAll if to_all else MountedFiles, mounts=mounts)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
