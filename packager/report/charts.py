"""The report's plots: Vega-Lite specifications, drawn as SVG when the page is made.

Colours are the page's own (`currentColor`, CSS variables), so that the pictures follow its light
and dark scheme; the page needs no script and no network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from packager.errors import EnvironmentLacks
from packager.report import results

Json = dict[str, Any]

_WIDTH = 320
_ROW = 17
_MOST_ROWS = 60
# Readable on white and on nearly black.
_PALETTE = ["#3b82d0", "#d9772b", "#2f9e62", "#b65fc4", "#c94f56", "#8a8f29", "#2a9fa8", "#8b7355"]
_INK, _LINE = "currentColor", "var(--line)"
_CONFIG = {
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": _LINE},
    "axis": {
        "labelColor": _INK, "titleColor": _INK, "domainColor": _LINE, "tickColor": _LINE,
        "gridColor": _LINE, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
        "labelLimit": 150, "titlePadding": 10,
    },
    "legend": {
        "labelColor": _INK, "titleColor": _INK, "labelFontSize": 11, "orient": "bottom",
        "columns": 2, "columnPadding": 26, "title": None, "labelLimit": 150,
    },
    "header": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 11},
    "range": {"category": _PALETTE},
}  # fmt: skip


def draw(report: Json) -> dict[str, Any]:
    """Draws every plot that the report has data for; SVG texts by name.

    Raises:
        EnvironmentLacks: vl-convert-python is not installed.
    """
    measured = report["measured"]
    specs: dict[str, Json | None] = {
        "accuracy_size": _accuracy_size(report),
        "differences": _differences(measured.get("differences")),
        "layers": _layers(measured.get("layers") or {}),
        "ranges": _ranges(measured.get("calibration_ranges") or [], measured.get("layers") or {}),
        "latency": _latency(report),
    }
    drawn: dict[str, Any] = {name: svg(spec) for name, spec in specs.items() if spec}
    labels = list(report["labels"])
    drawn["confusion"] = {
        name: svg(_confusion(found["matrix"], labels))
        for name, found in side_by_side(measured.get("confusion") or {})
        if "matrix" in found
    }
    return drawn


def svg(spec: Json) -> str:
    """Draws a Vega-Lite specification.

    Raises:
        EnvironmentLacks: vl-convert-python is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise EnvironmentLacks(
            "the report's plots need vl-convert-python", hint="pip install 'packager[build]'"
        ) from error
    full = {**spec, "config": _CONFIG, "padding": {"left": 18, "right": 18, "top": 4, "bottom": 4}}
    text = str(vl_convert.vegalite_to_svg(full, vl_version="5.20"))
    # The page describes the picture; its parts would only be noise to a screen reader.
    text = re.sub(r' (?:aria-[a-z]+|role)="[^"]*"', "", text)
    return re.sub(r"<svg ", '<svg aria-hidden="true" focusable="false" ', text, count=1)


def side_by_side(confusion: Json) -> list[tuple[str, Json]]:
    """The source, and the artifact with the coarsest numbers."""
    order = ("tflite/int8", "tflite/dynamic_int8", "tflite/float16", "tflite/float32")
    others = [name for name in order if name in confusion]
    others = others or [name for name in confusion if name != "source"]
    return [(name, confusion[name]) for name in ("source", *others[:1]) if name in confusion]


def _accuracy_size(report: Json) -> Json | None:
    values = [
        {"artifact": a["id"], "kB": a["size_bytes"] / 1000, "accuracy": a["metrics"]["accuracy"]}
        for a in report["artifacts"]
        if "accuracy" in a["metrics"]
    ]
    if not values:
        return None
    order = [v["artifact"] for v in values]
    source = report["measured"].get("source_accuracy")
    ticks = _log_ticks([v["kB"] for v in values])
    accuracies = [v["accuracy"] for v in values] + ([] if source is None else [source])
    low, high = min(accuracies), max(accuracies)
    # Tenths of a point are noise on a thousand samples: they must not look large.
    margin = max(0.005, 0.1 * (high - low))
    scale = {"domain": [max(0.0, low - margin), min(1.0, high + margin)], "zero": False}
    points = {
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 0.9},
        "encoding": {
            "x": {"field": "kB", "type": "quantitative", "title": "size, kB (logarithmic)",
                  "scale": {"type": "log", "domain": [ticks[0], ticks[-1]], "nice": False},
                  "axis": {"values": ticks, "format": "~s" if ticks[-1] >= 1e4 else "~g"}},
            "y": {"field": "accuracy", "type": "quantitative", "title": "accuracy",
                  "scale": scale,
                  "axis": {"format": ".1%", "tickCount": 6}},
            "color": {"field": "artifact", "type": "nominal", "sort": order},
            "shape": {"field": "artifact", "type": "nominal", "sort": order, "legend": None},
        },
    }  # fmt: skip
    line = {
        "data": {"values": [{"accuracy": source}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": _INK},
        "encoding": {"y": {"field": "accuracy", "type": "quantitative", "scale": scale}},
    }
    layers = [line, points] if source is not None else [points]
    return {"width": _WIDTH - 50, "height": 210, "layer": layers}


def _log_ticks(values: list[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the smallest value to above the largest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in (1, 2, 5)]
    below = [t for t in ticks if t <= min(values)]
    above = [t for t in ticks if t >= max(values)]
    return [t for t in ticks if below[-1] <= t <= above[0]]


def _confusion(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Json:
    names = [label[:12] for label in labels] or [str(i) for i in range(len(matrix))]
    if len(set(names)) < len(matrix):
        names = [str(i) for i in range(len(matrix))]
    values = [
        {"class": names[t], "answer": names[a], "count": count, "share": count / max(1, sum(row))}
        for t, row in enumerate(matrix)
        for a, count in enumerate(row)
    ]
    cell = 26 if len(matrix) <= 12 else max(9, 312 // len(matrix))
    axes: Json = {
        "x": {"field": "answer", "type": "ordinal", "sort": names, "title": "answer",
              "axis": {"labelAngle": 0 if max(map(len, names)) < 4 else -60}},
        "y": {"field": "class", "type": "ordinal", "sort": names, "title": "label"},
    }  # fmt: skip
    heat = {
        "mark": {"type": "rect", "color": _PALETTE[0]},
        "encoding": {
            **axes,
            "opacity": {"field": "share", "type": "quantitative", "legend": None,
                        "scale": {"domain": [0, 1], "range": [0.0, 0.75]}},
        },
    }  # fmt: skip
    text = {
        "transform": [{"filter": "datum.count > 0"}],
        "mark": {"type": "text", "fontSize": 10, "color": _INK},
        "encoding": {**axes, "text": {"field": "count", "type": "quantitative"}},
    }
    return {
        "data": {"values": values},
        "width": {"step": cell},
        "height": {"step": cell},
        "layer": [heat, text] if cell >= 20 else [heat],
    }


def _differences(found: Json | None) -> Json | None:
    if not found or not found["shares"]:
        return None
    edges = found["edges"]
    values = [
        {"artifact": name, "low": edges[i], "high": edges[i + 1], "share": share}
        for name, shares in found["shares"].items()
        for i, share in enumerate(shares)
        if share > 0
    ]
    scale = {"type": "log", "domain": [edges[0], edges[-1]], "nice": False}
    bars = {
        "mark": {"type": "rect", "color": _PALETTE[0]},
        "encoding": {
            "x": {"field": "low", "type": "quantitative", "scale": scale,
                  "title": "absolute difference", "axis": {"format": ".0e", "tickCount": 6}},
            "x2": {"field": "high"},
            "y": {"field": "share", "type": "quantitative", "title": None, "axis": None,
                  "scale": {"zero": True}},
            "y2": {"datum": 0},
        },
    }  # fmt: skip
    return {
        "data": {"values": values},
        "facet": {
            "row": {
                "field": "artifact", "type": "nominal", "sort": list(found["shares"]),
                "title": None,
                "header": {"labelOrient": "top", "labelAnchor": "start", "labelPadding": 1},
            }
        },
        "spec": {"width": _WIDTH - 20, "height": 26, **bars},
        "resolve": {"scale": {"y": "independent"}},
        "spacing": 4,
    }  # fmt: skip


def _layers(found: dict[str, list[Json]]) -> Json | None:
    values = [
        {"artifact": name, "layer": entry["layer"], "error": entry["error"]}
        for name, entries in found.items()
        for entry in _by_layer(entries)
    ]
    if not values:
        return None
    order = list(dict.fromkeys(v["layer"] for v in values))
    if len(order) > _MOST_ROWS:
        worst = sorted(values, key=lambda v: -float(v["error"]))
        kept = set(list(dict.fromkeys(v["layer"] for v in worst))[:_MOST_ROWS])
        order = [layer for layer in order if layer in kept]
        values = [v for v in values if v["layer"] in kept]
    return {
        "data": {"values": values},
        "width": _WIDTH - 130,
        "height": {"step": _ROW},
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "y": {"field": "layer", "type": "nominal", "sort": order, "title": None,
                  "axis": {"grid": True}},
            "x": {"field": "error", "type": "quantitative", "title": "relative error",
                  "axis": {"format": ".1%", "tickCount": 4}},
            "color": {"field": "artifact", "type": "nominal", "sort": list(found)},
            "shape": {"field": "artifact", "type": "nominal", "sort": list(found), "legend": None},
        },
    }  # fmt: skip


def _by_layer(entries: list[Json]) -> list[Json]:
    """The last tensor of each layer, which is what the next one gets."""
    return list({entry["layer"]: entry for entry in entries}.values())


def _ranges(found: list[Json], layers: dict[str, list[Json]]) -> Json | None:
    if not found:
        return None
    # In the order of execution, as far as it is known.
    known = [e["layer"] for entries in list(layers.values())[:1] for e in entries]
    places = {layer: i for i, layer in enumerate(known)}
    found = sorted(found, key=lambda r: places.get(r["layer"], -1))
    widest = sorted(found, key=lambda r: min(r["min"], -r["max"]))[:_MOST_ROWS]
    by_layer = _by_layer([entry for entry in found if entry in widest])
    return {
        "data": {"values": by_layer},
        "width": _WIDTH - 130,
        "height": {"step": _ROW},
        "mark": {"type": "bar", "height": 7, "color": _PALETTE[2]},
        "encoding": {
            "y": {"field": "layer", "type": "nominal", "sort": None, "title": None,
                  "axis": {"grid": True}},
            "x": {"field": "min", "type": "quantitative", "title": "minimum to maximum",
                  "axis": {"tickCount": 5}},
            "x2": {"field": "max"},
        },
    }  # fmt: skip


def _latency(report: Json) -> Json | None:
    values = []
    for number, result in enumerate(report["results"]):
        for entry in result["artifacts"]:
            times = results.latency(entry)
            if times:
                where = f"{number + 1}: {result['runner']}"
                values.append({"artifact": entry["id"], "place": where, "p50": times["p50"]})
    if not values:
        return None
    order = [a["id"] for a in report["artifacts"]]
    places = list(dict.fromkeys(v["place"] for v in values))
    return {
        "data": {"values": values},
        "width": _WIDTH - 130,
        "height": {"step": 11 if len(places) > 1 else _ROW},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "artifact", "type": "nominal", "sort": order, "title": None},
            "yOffset": {"field": "place", "type": "nominal", "sort": places},
            "x": {"field": "p50", "aggregate": "min", "type": "quantitative",
                  "title": "median time, ms"},
            "color": {"field": "place", "type": "nominal", "sort": places,
                      **({"legend": None} if len(places) == 1 else {})},
        },
    }  # fmt: skip
