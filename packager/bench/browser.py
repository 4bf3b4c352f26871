"""Times an artifact in an installed Chromium, headless, with the shipped web app's engine."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packager import web
from packager.errors import EnvironmentLacks, PackagerError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_LIMIT_MS = 300_000
# A document without code of its own, with the headers that threads need.
_BLANK = "/manifest.json"
_RUN = """async ({candidate, threads, settings}) => {
  const [{ Session }, { openBundle }] = await Promise.all(
    ['/web/session.js', '/web/bundle.js'].map((path) => import(path)));
  const { base, manifest } = await openBundle('/');
  const session = new Session();
  try {
    await session.open({ base, manifest, candidate, threads });
    return { runtime: session.described, ...await session.call('measure', [settings]) };
  } finally {
    session.close();
  }
}"""


def run(folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Measures one artifact in a browser of its own, in the worker of the web app.

    Args:
        folder: The bundle's folder.
        order: `candidate` as in web/candidates.js, `threads`, and `settings` as in web/timing.js.

    Raises:
        EnvironmentLacks: Playwright, Chromium or web/vendor is missing.
        PackagerError: The page failed, or the numbers there are not the golden samples'.
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
    with _served(folder) as root, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, headless=True, args=list(FLAGS)
        )
        try:
            page = browser.new_page()
            page.set_default_timeout(_LIMIT_MS)
            page.goto(f"{root}{_BLANK}")
            answer: dict[str, Any] = page.evaluate(_RUN, order)
            return answer
        except sync_api.Error as error:
            raise PackagerError(f"the page failed: {error.message.splitlines()[0]}") from None
        finally:
            browser.close()


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


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serves the bundle and the installed app on a free port of this machine."""
    with web.server(folder, "127.0.0.1", 0, web.files()) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
