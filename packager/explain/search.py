"""The command `packager search`: samples, trials, and what is printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packager import bundle
from packager.children import Child, scratch
from packager.console import Reporter, human_size
from packager.explain import data
from packager.explain.data import Given
from packager.quantize import pool
from packager.quantize import search as searches
from packager.quantize.search import Limits
from packager.report import charts

Json = dict[str, Any]
# A search looks at fewer samples than `explain`: it runs many more files.
SAMPLES = 300


def run(
    folder: Path, given: Given, limits: Limits, storage: Path | None, reporter: Reporter
) -> Json:
    """Searches for a bundle's best configurations.

    Args:
        folder: The bundle's folder.
        given: Data that the user named.
        limits: Limits and budget.
        storage: As in `searches.search`.
        reporter: Where the stages are shown.

    Returns:
        The document of `searches.to_json`, with the bundle and remarks on the samples.
    """
    manifest = bundle.read_manifest(folder)
    chosen = Given(given.calibration, given.evaluation, given.samples or SAMPLES)
    with scratch("search") as work:
        with (
            reporter.stage("prepare samples and ranges"),
            Child(pool.WORKER, verbose=reporter.verbose, temporary=work) as litert,
        ):
            found = data.find(folder, manifest, chosen, work, litert)
        with pool.opened(found.subject, work, verbose=reporter.verbose) as trials:
            with reporter.stage("search") as detail:
                result = searches.search(trials, found.subject, limits, storage)
                result = searches.time_front(trials, result)
                detail.append(f"{len(result.entries)} configurations: {result.reason}")
            document = searches.to_json(result, limits, trials.reference)
    return {"bundle": str(folder), "remarks": list(found.remarks), **document}


def show(document: Json, target: Path | None) -> None:
    """Prints the Pareto front as a table, and the next command."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("trial", "size", "ratio", "loss", "agreement", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("within limits")
    table.add_column("configuration", overflow="fold")
    whole = document["float32"]["size_bytes"]
    for entry in _front(document):
        table.add_row(
            f"#{entry['number']}",
            human_size(entry["size_bytes"]),
            f"{entry['size_bytes'] / whole:.2f}",
            f"{100 * entry['loss']:.2f} %",
            f"{100 * entry['metrics'].get('agreement', 0.0):.2f} %",
            f"{entry['latency_ms']:.3g}" if "latency_ms" in entry else "",
            "yes" if entry["within"] else "no",
            entry["summary"],
        )
    console.print(table)
    console.print(advice(document, target), markup=False)
    for text in document["remarks"]:
        console.print(f"note: {text}", style="dim", markup=False)


def advice(document: Json, target: Path | None) -> str:
    """What was found, and the next command."""
    if document["best"] is None:
        nearest = _by_number(document, document["nearest"])
        if nearest is None:
            return "no configuration could be made; --json has the errors"
        return (
            f"nothing within the limits; nearest is #{nearest['number']}: loss"
            f" {100 * nearest['loss']:.2f} %, {human_size(nearest['size_bytes'])},"
            f" {nearest['summary']}"
        )
    best = _by_number(document, document["best"]) or {}
    text = f"best: #{best['number']}, {human_size(best['size_bytes'])}, {best['summary']}"
    if target is not None:
        text += f"\nnext: packager build MODEL ... --from-search {target}"
    return text


def draw(document: Json) -> str:
    """The trials by size and loss, with the Pareto front, as SVG.

    Raises:
        EnvironmentLacks: vl-convert-python is not installed.
    """
    made = [t for t in document["trials"] if "size_bytes" in t]
    points = [
        {
            "kB": t["size_bytes"] / 1000,
            "loss": t["loss"],
            "limits": "kept" if t["within"] else "not kept",
        }
        for t in made
    ]
    front = [{"kB": t["size_bytes"] / 1000, "loss": t["loss"]} for t in _front(document)]
    x: Json = {"field": "kB", "type": "quantitative", "scale": {"zero": False}, "title": "size, kB"}
    y: Json = {
        "field": "loss", "type": "quantitative", "title": "loss against float32",
        "axis": {"format": ".1%"},
    }  # fmt: skip
    line = {
        "data": {"values": front},
        "mark": {"type": "line", "interpolate": "step-after", "point": True},
        "encoding": {"x": x, "y": y},
    }
    dots = {
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 40},
        "encoding": {"x": x, "y": y, "color": {"field": "limits", "type": "nominal"}},
    }
    return charts.svg({"width": 420, "height": 260, "layer": [line, dots]})


def _front(document: Json) -> list[Json]:
    return [t for n in document["pareto"] if (t := _by_number(document, n)) is not None]


def _by_number(document: Json, number: int | None) -> Json | None:
    return next((t for t in document["trials"] if t["number"] == number), None)
