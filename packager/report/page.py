"""Renders `report.json` as one self-contained HTML page."""

from __future__ import annotations

from typing import Any

from packager.console import human_size


def render(document: dict[str, Any]) -> str:
    """Returns the page; every number on it is one of `document`'s."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("packager.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = human_size
    environment.filters["number"] = number
    environment.filters["percent"] = percent
    return environment.get_template("index.html").render(report=document, base=_base(document))


def number(value: float | None) -> str:
    """Formats a measured value; nothing where nothing was measured."""
    return "" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Formats a share (0..1) as percent."""
    return "" if value is None else f"{100 * value:.2f} %"


def _base(document: dict[str, Any]) -> int | None:
    """Size of the float32 TFLite file, which ratios refer to."""
    for artifact in document["artifacts"]:
        if artifact["id"] == "tflite/float32":
            size: int = artifact["size_bytes"]
            return size
    return None
