"""What a user sees while a command runs: one line per stage, on standard error."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from packager.cache import Cache


@dataclass(frozen=True)
class Stage:
    """A finished stage; `seconds` is wall time."""

    name: str
    seconds: float
    detail: str = ""


@dataclass
class Reporter:
    """Prints stages, warnings and results.

    Attributes:
        quiet: Print warnings and errors only.
        verbose: Let child processes' own output through.
        stages: What has been done, for the report.
        warnings: What was warned about, for the report.
        command: The command line, for the report; empty in a program.
        cache: Results of earlier builds; a stage that took all of its own from there says so.
    """

    quiet: bool = False
    verbose: bool = False
    stages: list[Stage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    command: str = ""
    cache: Cache | None = None
    _rich: RichConsole | None = None

    @property
    def rich(self) -> RichConsole:
        """The terminal; imported late, because `packager --help` must be fast."""
        if self._rich is None:
            from rich.console import Console

            self._rich = Console(stderr=True, highlight=False, soft_wrap=True)
        return self._rich

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Times a stage; what is appended to the yielded list becomes its detail."""
        detail: list[str] = []
        start = time.perf_counter()
        before = self._counts()
        animated = not self.quiet and sys.stderr.isatty()
        with self.rich.status(name) if animated else contextlib.nullcontext():
            yield detail
        after = self._counts()
        if after[0] > before[0] and after[1] == before[1]:
            detail.append("cached")
        self.done(name, time.perf_counter() - start, ", ".join(detail))

    def _counts(self) -> tuple[int, int]:
        return (self.cache.hits, self.cache.misses) if self.cache else (0, 0)

    def done(self, name: str, seconds: float, detail: str = "") -> None:
        """Prints the line of a finished stage."""
        self.stages.append(Stage(name, round(seconds, 3), detail))
        if not self.quiet:
            from rich.text import Text

            self.rich.print(
                Text.assemble(("  ✓ ", "green"), f"{name:<38}{seconds:6.1f} s  {detail}")
            )

    def warn(self, text: str) -> None:
        """Prints a warning, also with `--quiet`."""
        from rich.text import Text

        self.warnings.append(text)
        self.rich.print(Text.assemble(("warning: ", "yellow"), text))


def reporter_of(flags: Mapping[str, Any]) -> Reporter:
    """The reporter that a command's `output_options` ask for."""
    command = shlex.join(["packager", *sys.argv[1:]])
    return Reporter(quiet=flags["quiet"], verbose=flags["verbose"], command=command)


def human_size(size_bytes: int) -> str:
    """Formats a size with decimal units, as file managers do: `12.3 kB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
