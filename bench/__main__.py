"""Runs every benchmark in turn and writes all tables to bench/results.md.

    python -m bench [--only NAME ...]     (or `make bench`)

bench/README.md discusses figures; this file is only what one run on one machine printed. Each
benchmark is a process of its own. One that fails is named in the page, the others go on, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packager import report
from packager.report import results

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results.md"
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Job:
    """One benchmark: the heading of its tables, and the arguments of its Python command."""

    title: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """What `--only` calls it."""
        return self.arguments[1].removeprefix("bench.")


JOBS = (
    Job("Build time", ("-m", "bench.build")),
    Job("int8, --auto and search", ("-m", "bench.quantize")),
    Job("Quantization-aware training", ("-m", "bench.qat")),
    Job("TF.js formats", ("-m", "bench.tfjs")),
    Job("Web app", ("-m", "bench.web")),
    Job("Server beside others", ("-m", "bench.server")),
    Job("Server: limits", ("-m", "bench.server_limits")),
    Job("Edge runner", ("-m", "bench.edge", "dist/digits")),
    Job("Every artifact on every runtime", ("-m", "packager", "bench", "dist/digits")),
)


def machine() -> str:
    """The machine in one line, as reports name it, with its memory and Python."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name = results.machine_name(report.machine())
    return f"{name}, {size / 2**30:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the checkout, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "no commit"


def run(job: Job) -> tuple[bool, str]:
    """Runs a benchmark; whether it worked, and its section of the page."""
    print(f"{job.title}: python {' '.join(job.arguments)}", flush=True)
    started = time.monotonic()
    try:
        ran = subprocess.run(
            [sys.executable, *job.arguments], cwd=ROOT, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        output, code = ran.stdout.strip(), ran.returncode
        reason = (ran.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        output, code, reason = "", 1, f"it took longer than {LIMIT_S:.0f} s"
    took = f"{time.monotonic() - started:.0f} s"
    failed = [f"**Failed** with {code}: {reason}", ""] if code else []
    print(f"  {took}" + (f", failed with {code}: {reason}" if code else ""), flush=True)
    body = output if _is_markdown(output) else f"```\n{output}\n```"
    head = f"`python {' '.join(job.arguments)}`, {took}"
    return code == 0, "\n".join([f"## {job.title}", "", head, "", *failed, body])


def _is_markdown(text: str) -> bool:
    return re.search(r"^\|[ :-]*-", text, re.MULTILINE) is not None


def main() -> int:
    """Writes the page; 1 when a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    names = [job.name for job in JOBS]
    parser.add_argument("--only", action="append", choices=names, default=[])
    only = parser.parse_args().only
    chosen = [job for job in JOBS if not only or job.name in only]
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    head = f"# Benchmarks of one run\n\n{machine()}; {now}, commit {commit()}.\n"
    sections, worked = [head], True
    for job in chosen:
        fine, section = run(job)
        worked = worked and fine
        sections.append(section + "\n")
        RESULTS.write_text("\n".join(sections), encoding="utf-8")
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
