"""The table of `packager bench`."""

from __future__ import annotations

import sys
from typing import Any

from packager.console import human_size

_PIPE_WIDTH = 160


def show(document: dict[str, Any]) -> None:
    """Prints the table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    numbers = ("threads", "p50 ms", "p90 ms", "p99 ms", "load ms", "peak memory", "runs")
    for column in ("artifact", "runtime", *numbers):
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for row in document["artifacts"]:
        table.add_row(*_cells(row))
    # Rich takes 80 columns for a pipe, and would cut the numbers.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(highlight=False, soft_wrap=True, width=width)
    console.print(table)
    for row in document["artifacts"]:
        if row.get("reason"):
            console.print(f"{row['id']}: {row['status']}: {row['reason']}", markup=False)
    machine = document["machine"]
    console.print(
        f"one sample at a time, on {machine['cpu'] or machine['machine']}, {machine['cpus']} CPUs",
        markup=False,
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    runtime = row.get("runtime") or {}
    name = f"{runtime.get('name', '')} {runtime.get('version') or ''}".strip()
    latency = row.get("latency_ms")
    if latency is None:
        return row["id"], name, "", row["status"]
    memory = row.get("peak_memory_bytes") or row.get("memory_bytes")
    return (
        row["id"], name, str(row["threads"]),
        *(f"{latency[key]:.3f}" for key in ("p50", "p90", "p99")),
        f"{row['load_ms']:.1f}", human_size(memory) if memory else "", str(row["timed"]),
    )  # fmt: skip
