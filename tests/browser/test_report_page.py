"""report/index.html of the digits bundle, opened as a file as a user opens it."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.browser.watched_page import Watched

pytestmark = [pytest.mark.browser, pytest.mark.tf]

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "KiB": 1024, "MiB": 1024**2}


# Rules about whole sites; a report is one page.
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture(
    params=[(size, scheme) for size in SIZES for scheme in ("light", "dark")], ids="-".join
)
def report(
    request: pytest.FixtureRequest, digits_bundle: Path, open_page: Callable[..., Watched]
) -> Watched:
    """The page at one size and in one colour scheme; PACKAGER_SHOTS names a folder for pictures."""
    size, scheme = request.param
    width, height = SIZES[size]
    address = (digits_bundle / "report" / "index.html").as_uri()
    viewport = {"width": width, "height": height}
    watched = open_page(address, viewport=viewport, color_scheme=scheme)
    if folder := os.environ.get("PACKAGER_SHOTS"):
        path = Path(folder) / f"report-{size}-{scheme}.png"
        watched.page.screenshot(path=path, full_page=True)
    return watched


def cells_by_artifact(watched: Watched) -> dict[str, dict[str, str]]:
    """The rows of the table of artifacts: the texts of the cells by the column's heading."""
    table = watched.page.locator("table").first
    headings = table.locator("thead th").all_inner_texts()
    rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    return {row[0].strip(): dict(zip(headings, row, strict=True)) for row in rows}


def shown(text: str) -> tuple[float, float]:
    """The number in a cell, in bytes or as a fraction, and half a unit of its last digit."""
    digits, exponent, unit = re.fullmatch(
        r"(-?\d+(?:\.\d+)?)(e[+-]?\d+)?\s*(\S*)", text.strip()
    ).groups("")
    factor = {"": 1.0, "%": 0.01, **UNITS}[unit] * float(f"1{exponent}")
    decimals = len(digits.partition(".")[2])
    return float(digits) * factor, 0.5001 * 10.0**-decimals * factor


def test_the_page_opens_and_fits(report: Watched) -> None:
    assert report.problems == []
    assert all(address.startswith("file://") for address in report.requests)
    wide, seen = report.page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= seen == report.page.viewport_size["width"]


def test_the_text_can_be_read(report: Watched) -> None:
    with Image.open(io.BytesIO(report.page.screenshot())) as picture:
        ground = luminance(picture.convert("RGB").getpixel((2, 2)))
    is_dark = report.page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
    assert ground < 0.1 if is_dark else ground > 0.9
    for selector in ("h1", "td", "p.dim", "td.passed"):
        style = report.page.locator(selector).first.evaluate("(e) => getComputedStyle(e).color")
        text = luminance([float(part) for part in re.findall(r"[\d.]+", style)[:3]])
        light, dark = max(text, ground), min(text, ground)
        # The contrast ratio and the limit for text of WCAG 2.2, 1.4.3.
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (selector, style)


def luminance(colour: Sequence[float]) -> float:
    """The relative luminance of an sRGB colour (0..255), by WCAG 2.2."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_artifact_is_shown_with_its_numbers(report: Watched, digits_bundle: Path) -> None:
    described: dict[str, Any] = json.loads((digits_bundle / "report/report.json").read_text())
    rows = cells_by_artifact(report)
    artifacts = {artifact["id"]: artifact for artifact in described["artifacts"]}
    refused = {refusal["id"] for refusal in described["refused"]}
    assert set(rows) == set(artifacts) | refused
    assert len(artifacts) == 8
    base = artifacts["tflite/float32"]["size_bytes"]
    for name, artifact in artifacts.items():
        metrics, cells = artifact["metrics"], rows[name]
        wanted = {
            "Size": artifact["size_bytes"],
            "Ratio": artifact["size_bytes"] / base,
            "Accuracy": metrics["accuracy"],
            "Drop": metrics["drop"],
            "Agreement": metrics["agreement"],
            "Max diff": metrics["max_abs_diff"],
            "Mean diff": metrics["mean_abs_diff"],
        }
        for heading, value in wanted.items():
            number, half_digit = shown(cells[heading])
            assert number == pytest.approx(value, abs=half_digit), (name, heading)
        assert cells["Gate"].split()[0] == artifact["gate"]["status"] == "passed"


@pytest.mark.parametrize(
    "report", [("desktop", "dark"), ("phone", "light")], indirect=True, ids="-".join
)
def test_axe_finds_nothing(report: Watched) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make setup")
    for details in report.page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    found = axe.Axe().run(report.page, options=AXE)
    assert found.violations_count == 0, found.generate_report()
    assert len(found.response["passes"]) > 20


@pytest.mark.parametrize("report", [("desktop", "light")], indirect=True, ids="-".join)
def test_every_other_number_is_the_json_s(report: Watched, digits_bundle: Path) -> None:
    described: dict[str, Any] = json.loads((digits_bundle / "report/report.json").read_text())
    measured = described["measured"]
    for details in report.page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    for name, entries in measured["layers"].items():
        rows = table_rows(report, f"Errors by layer of {name}")
        assert [row[0] for row in rows] == [entry["layer"] for entry in entries]
        for row, entry in zip(rows, entries, strict=True):
            number, half_digit = shown(row[1])
            assert number == pytest.approx(entry["error"], abs=half_digit)
    rows = table_rows(report, "Calibrated ranges")
    for row, entry in zip(rows, measured["calibration_ranges"], strict=True):
        for text, key in zip(row[1:], ("min", "max"), strict=True):
            number, half_digit = shown(text)
            assert number == pytest.approx(entry[key], abs=half_digit)
    for name in ("source", "tflite/int8"):
        picture = report.page.locator(f'[aria-label^="Confusion matrix of {name};"] svg')
        texts = picture.locator(".mark-text.role-mark text").all_text_contents()
        counts = [n for row in measured["confusion"][name]["matrix"] for n in row if n]
        assert sorted(map(int, filter(str.isdigit, texts))) == sorted(counts)


def table_rows(watched: Watched, label: str) -> list[list[str]]:
    """The cells of the table in the region with this name."""
    rows = watched.page.get_by_role("region", name=label, exact=True).locator("tbody tr").all()
    assert rows
    return [row.locator("td").all_inner_texts() for row in rows]
