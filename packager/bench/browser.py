"""Times an artifact in an installed Chromium, headless, with the shipped web app's engine.

Run as `python -m packager.bench.browser FOLDER ORDER`; prints one JSON document. A process of its
own, because a page that hangs cannot be interrupted from outside its browser.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

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
    with web.serving(folder, web.files()) as root, sync_api.sync_playwright() as playwright:
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


if __name__ == "__main__":
    try:
        found = run(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except EnvironmentLacks as missing:
        found = {"skipped": missing.message}
    except PackagerError as failure:
        sys.exit(failure.message)
    print(json.dumps(found))
