"""Times repeated calls; the children run this file by path, so it imports nothing of packager."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST_RUNS = 5


def repeat(call: Callable[[int], object], settings: dict[str, Any]) -> list[float]:
    """Calls `call(number)` and returns the times in ms, without the warm-up's.

    Args:
        call: Does one inference.
        settings: `warm_up` and `runs`, counts, and `seconds`, after which no more are made once
            there are `LEAST_RUNS`.
    """
    for number in range(settings["warm_up"]):
        call(number)
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < settings["runs"]:
        before = time.perf_counter()
        if len(times) >= LEAST_RUNS and before - started > settings["seconds"]:
            break
        call(len(times))
        times.append((time.perf_counter() - before) * 1000)
    return times


def peak_memory() -> int | None:
    """The largest resident memory of this process so far, bytes; None where it is not known."""
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.is_file() else ""
    found = re.search(r"VmHWM:\s*(\d+) kB", text)
    return int(found[1]) * 1024 if found else None


def arguments() -> dict[str, Any]:
    """What the parent asks for: one JSON document as the only argument."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def why_not(package: str, version: str, allowed: dict[str, str]) -> str:
    """Why a runtime must not run an artifact; empty when it may (docs/bundle.md, min_version)."""
    if package not in allowed:
        return f"{package} is not among the runtimes that were seen to give right numbers"
    if _release(version) < _release(allowed[package]):
        return f"{package} {version} is older than {allowed[package]}"
    return ""


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])
