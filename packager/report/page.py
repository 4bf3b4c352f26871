"""Renders `report.json` as one self-contained HTML page, and as Markdown for a pull request."""

from __future__ import annotations

import html
import re
from typing import Any

from packager.console import human_size
from packager.report import charts, results

Json = dict[str, Any]


def render(document: Json) -> str:
    """Returns the page; every number on it is one of `document`'s."""
    text: str = (
        _environment(autoescape=True)
        .get_template("index.html")
        .render(
            report=document,
            charts=charts.draw(document),
            confusions=charts.side_by_side(document["measured"].get("confusion") or {}),
            **_summary(document),
        )
    )
    return text


def render_markdown(document: Json) -> str:
    """Returns the summary: verdict, table of artifacts, what was checked elsewhere."""
    text: str = (
        _environment(autoescape=False)
        .get_template("summary.md")
        .render(report=document, **_summary(document))
    )
    return text


def number(value: float | None) -> str:
    """Formats a measured value; nothing where nothing was measured."""
    return "" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Formats a share (0..1) as percent."""
    return "" if value is None else f"{100 * value:.2f} %"


def markdown(value: object) -> str:
    """Makes a text harmless in a Markdown table cell."""
    escaped = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escaped)


def _environment(*, autoescape: bool) -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("packager.report", "templates"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": human_size,
        "number": number,
        "percent": percent,
        "md": markdown,
        "machine": results.machine_name,
        "latency": results.latency,
        "memory": results.memory,
        "by_status": results.by_status,
    }
    return environment


def _summary(document: Json) -> Json:
    """What several places of the page need and `document` says only in parts."""
    statuses = [artifact["gate"]["status"] for artifact in document["artifacts"]]
    counts = {status: statuses.count(status) for status in ("passed", "failed", "skipped")}
    labels = document["labels"]
    return {
        "base": _base(document),
        "counts": counts,
        "verdict": "failed"
        if counts["failed"]
        else "passed"
        if counts["passed"] == len(statuses)
        else "skipped",
        "medians": _medians(document),
        "runtime": results.runtime_name,
        "label": lambda i: labels[i] if i < len(labels) else str(i),
    }


def _medians(document: Json) -> dict[str, float]:
    """The smallest median time of each artifact on any machine, ms."""
    found: dict[str, float] = {}
    for result in document["results"]:
        for entry in result["artifacts"]:
            times = results.latency(entry)
            if times:
                found[entry["id"]] = min(times["p50"], found.get(entry["id"], times["p50"]))
    return found


def _base(document: Json) -> int | None:
    """Size of the float32 TFLite file, which ratios refer to."""
    for artifact in document["artifacts"]:
        if artifact["id"] == "tflite/float32":
            size: int = artifact["size_bytes"]
            return size
    return None
