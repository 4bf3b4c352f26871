"""Reads what `edgetpu_compiler` prints, and the operation log that it writes.

Formats of releases 2.0 to 16.0, as published in issues of google-coral/edgetpu (#393, #420, #433,
#512, #708) and in Coral's documentation of the compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAPPED = "Mapped to Edge TPU"
# All texts known, and the reason that a prediction may give for the same operator.
STATUSES = (
    MAPPED,
    "More than one subgraph is not supported",
    "Operation is working on an unsupported data type",
    "Operation is otherwise supported, but not mapped due to some unspecified limitation",
    "Operation version not supported",
    "Operation not supported",
    "Tensor has unsupported rank (up to 3 innermost dimensions mapped)",
)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZES = {
    "Input size": "input_bytes",
    "Output size": "output_bytes",
    "On-chip memory used for caching model parameters": "cached_bytes",
    "On-chip memory available for caching model parameters": "remaining_bytes",
    "On-chip memory remaining for caching model parameters": "remaining_bytes",
    "Off-chip memory used for streaming uncached model parameters": "streamed_bytes",
}
_COUNTS = {
    "Number of Edge TPU subgraphs": "subgraphs",
    "Total number of operations": "operations",
    "Number of operations that will run on Edge TPU": "on_edge_tpu",
    "Number of operations that will run on CPU": "on_cpu",
}
_ROW = re.compile(r"^(?P<op>[A-Za-z0-9_.-]+)\s+(?P<count>\d+)\s+(?P<status>\S.*?)\s*$", re.M)
_VERSION = re.compile(r"Edge TPU Compiler version (\S+)")
_MILLISECONDS = re.compile(r"compiled successfully in (\d+) ?ms")
# Sometimes a second run succeeds (edgetpu#173, #211).
_WORTH_A_RETRY = "Internal compiler error"


@dataclass(frozen=True)
class Mapping:
    """One line of the operation log: how many operators of a kind have one status."""

    op: str
    count: int
    status: str

    @property
    def mapped(self) -> bool:
        """Whether they run on the Edge TPU."""
        return self.status == MAPPED

    @property
    def known(self) -> bool:
        """Whether the status is one of the documented texts."""
        return self.status in STATUSES


@dataclass(frozen=True)
class Log:
    """What the compiler said.

    Attributes:
        version: Its version; empty where it does not tell.
        compiled: Whether it wrote a model.
        error: Why not, in its words.
        worth_a_retry: It is an error that a second run may not have.
        compile_ms: Its own time, or None.
        sizes: Bytes: `input_bytes`, `output_bytes`, `cached_bytes`, `remaining_bytes`,
            `streamed_bytes`, as far as they are printed.
        subgraphs: Number of mapped regions.
        operations: Number of operators.
        on_edge_tpu: How many of them are mapped.
        on_cpu: How many are not.
        mapping: The lines of the operation log.
    """

    version: str = ""
    compiled: bool = False
    error: str = ""
    worth_a_retry: bool = False
    compile_ms: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    subgraphs: int | None = None
    operations: int | None = None
    on_edge_tpu: int | None = None
    on_cpu: int | None = None
    mapping: tuple[Mapping, ...] = ()


def parse(printed: str, operations: str = "") -> Log:
    """Reads both texts.

    Args:
        printed: Standard output and standard error.
        operations: The `.log` file, or nothing: `-s` prints its table.
    """
    version = _VERSION.search(printed) or _VERSION.search(operations)
    took = _MILLISECONDS.search(printed)
    lines = dict(
        (key.strip(), value.strip())
        for key, separator, value in (
            x.partition(":") for x in f"{operations}\n{printed}".splitlines()
        )
        if separator
    )
    counts = {
        name: int(lines[key]) for key, name in _COUNTS.items() if lines.get(key, "").isdecimal()
    }
    sizes = {
        name: size
        for key, name in _SIZES.items()
        if (size := _bytes(lines.get(key, ""))) is not None
    }
    mapping = _mapping(operations) or _mapping(printed)
    # Where everything is mapped, the two counts are left out.
    total = counts.get("operations")
    if total is not None and "on_edge_tpu" not in counts and not any(not m.mapped for m in mapping):
        counts |= {"on_edge_tpu": total, "on_cpu": 0}
    compiled = took is not None or "Model successfully compiled" in printed
    error = "" if compiled else _error(printed)
    return Log(
        version=version[1] if version else "",
        compiled=compiled,
        error=error,
        worth_a_retry=_WORTH_A_RETRY in error,
        compile_ms=int(took[1]) if took else None,
        sizes=sizes,
        mapping=mapping,
        **counts,
    )


def _mapping(text: str) -> tuple[Mapping, ...]:
    _, header, table = text.partition("Operator")
    if not header:
        return ()
    return tuple(Mapping(m["op"], int(m["count"]), m["status"]) for m in _ROW.finditer(table))


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"([\d.]+)(B|KiB|MiB|GiB)", text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def _error(printed: str) -> str:
    words = ("error", "invalid", "not quantized", "fail", "abort", "timeout")
    lines = [line.strip() for line in printed.splitlines()]
    found = [line for line in lines if any(word in line.lower() for word in words)]
    found = [line for line in found if "compilation timeout timer" not in line]
    return "; ".join(dict.fromkeys(found)) or "the compiler wrote no model and no reason"
