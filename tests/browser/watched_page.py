"""What the browser tests share: folders, and a page with what it reported and asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SITE = Path(__file__).resolve().parent / "site"
WEB = Path(__file__).resolve().parents[2] / "web"


@dataclass
class Watched:
    """An open page.

    Attributes:
        page: Playwright's page.
        problems: Errors and warnings of the console, and uncaught exceptions.
        requests: The addresses of all requests.
    """

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
