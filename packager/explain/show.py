"""What `packager explain` prints."""

from __future__ import annotations

from typing import Any

from packager.console import human_size

Json = dict[str, Any]
# Layers with a sentence of their own, and with a line in the table.
_SENTENCES = 3
_ROWS = 15
# Narrower, the names of layers would be broken.
_WIDTH = 120


def show(document: Json) -> None:
    """Prints the table, a sentence for each of the worst layers, and what to exclude."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)
    console.print(_heading(document), markup=False)
    console.print(_table(document))
    hidden = len(document["layers"]) - _ROWS
    if hidden > 0:
        console.print(f"and {hidden} layers that matter less (--json lists all)", markup=False)
    for entry in document["layers"][:_SENTENCES]:
        if entry["best"]["noise"] > 0:
            console.print(entry["sentence"], markup=False)
    console.print(_calibration(document), markup=False)
    console.print(_advice(document), markup=False)
    for text in document["remarks"]:
        console.print(f"note: {text}", style="dim", markup=False)


def _heading(document: Json) -> str:
    ours, theirs, metric = document["int8"], document["float32"], document["metric"]
    size = f"{human_size(theirs['size_bytes'])} -> {human_size(ours['size_bytes'])}"
    found = ours["metrics"]
    if found.get("non_finite"):
        return f"int8 gives NaN or infinity; {size}"
    if metric == "accuracy":
        change = f"accuracy {theirs['accuracy']:.2%} -> {found['accuracy']:.2%}"
    elif metric == "mean_abs_error":
        change = f"mean error {theirs[metric]:.4g} -> {found[metric]:.4g}"
    else:
        change = f"agreement with float32 {found['agreement']:.2%}"
    snr = "" if ours["snr_db"] is None else f", signal to noise {ours['snr_db']:.1f} dB"
    return f"float32 -> int8: {change}{snr}, {size}, {theirs['samples']} samples"


def _table(document: Json) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    unit = {"accuracy": "accuracy", "agreement": "agreement", "mean_abs_error": "error"}
    for name in ("", "layer", "operators"):
        table.add_column(name, overflow="fold")
    for name in ("alone int8", "in float: noise", unit[document["metric"]], "kB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("with its readers", overflow="fold")
    for entry in document["layers"][:_ROWS]:
        best = entry["best"]
        together = best == entry["with_readers"] and best != entry["in_float"]
        table.add_row(
            str(entry["rank"]),
            entry["layer"],
            ", ".join(entry["ops"]),
            "" if entry["alone_snr_db"] is None else f"{entry['alone_snr_db']:.1f} dB",
            f"{-100 * best['noise']:+.0f} %",
            f"{100 * best['points']:+.2f}",
            f"{best['size_bytes'] / 1000:+.1f}",
            ", ".join(entry["readers"]) if together else "",
        )
    return table


def _calibration(document: Json) -> str:
    found = document["calibration"]
    ways = []
    for name, way in found["algorithms"].items():
        metrics = way["metrics"]
        value = metrics.get("accuracy", metrics.get("agreement", 0.0))
        ways.append(f"{name} {value:.2%}" + (" (keeps the gates)" if way["holds"] else ""))
    text = f"ways to calibrate: {', '.join(ways)}"
    return text + (f"\n{found['halves']['sentence']}" if "halves" in found else "")


def _advice(document: Json) -> str:
    suggestion = document.get("suggestion")
    if suggestion is None:
        return "int8 keeps the bundle's gates: nothing needs to stay in float"
    names = ",".join(suggestion["plan"]["layers"])
    size = human_size(suggestion["trial"]["size_bytes"])
    if not suggestion["holds"]:
        return f"no set of layers was found that keeps the gates; the best: {names} ({size})"
    return f"leave in float: {names} ({size})\nnext: packager build ... --keep-float {names}"
