"""Results of earlier builds, by what they depend on, so that a rebuild repeats only what changed.

An entry is one zip file, named after a hash of everything that its result depends on: the files
that were read, the other arguments, packager's own code, the installed packages, and the
processor. It holds the answer and the files that were written. Entries appear by a rename and go by
an unlink, so that builds side by side see whole entries or none; the zip's checksums tell damaged
ones, which count as absent. The longest unused ones go when there are too many.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packager import assets
from packager.errors import ConfigError

FOLDER = "PACKAGER_CACHE"
LIMIT = "PACKAGER_CACHE_LIMIT"
DEFAULT_LIMIT = "5GB"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMG]?)B?")
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
_ANSWER = "answer.json"
_ENDING = ".zip"
# File systems stamp a change by the clock of the last tick.
_RESOLUTION_S = 0.1
# Variables that change what TensorFlow, LiteRT and their libraries compute.
_ENVIRONMENT = re.compile(r"(TF|XLA|KERAS|OMP|MKL|OPENBLAS|NODE)_.*")


class Cache:
    """A folder of entries.

    Args:
        folder: Where they are; None: nothing is remembered.
        limit_bytes: What all entries together may take.

    Attributes:
        hits: How many results came from an entry.
        misses: How many had to be made, of those that could have come from one.
    """

    def __init__(self, folder: Path | None, limit_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self._digests: dict[tuple[str, int, int], tuple[str, float]] = {}

    def key(self, description: Mapping[str, Any]) -> str:
        """The name of an entry: a hash of the description, the tools and this machine."""
        text = json.dumps([description, tools()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def digest(self, path: Path) -> str:
        """Hash of a file, or of a folder's files with their names; each is read once.

        A file that was written just before it was read is read again: a second change within the
        clock's resolution would not show.
        """
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file())
            named = [[p.relative_to(path).as_posix(), self.digest(p)] for p in files]
            return hashlib.sha256(json.dumps(named).encode()).hexdigest()
        found = path.stat()
        known = (str(path.resolve()), found.st_size, found.st_mtime_ns)
        digest, read = self._digests.get(known, ("", 0.0))
        if read - found.st_mtime < _RESOLUTION_S:
            with path.open("rb") as file:
                digest, read = hashlib.file_digest(file, "sha256").hexdigest(), time.time()
            self._digests[known] = digest, read
        return digest

    def digests(self, paths: str | Path | Mapping[str, str | Path]) -> Any:
        """`digest` of a path, or of each of several by name."""
        if isinstance(paths, Mapping):
            return {name: self.digest(Path(path)) for name, path in paths.items()}
        return self.digest(Path(paths))

    def remembered(
        self,
        key: str,
        outputs: Sequence[Path],
        make: Callable[[], Any],
        keep: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """Returns the remembered value with its files in place, or makes and remembers it.

        Args:
            key: From `key`.
            outputs: The files and folders that `make` writes.
            make: Makes them, and returns a JSON value.
            keep: Whether a value may be remembered.
        """
        found = self.restore(key, outputs)
        if found is not None:
            self.count(hit=True)
            return found["value"]
        self.count(hit=False)
        value = make()
        if keep(value):
            self.store(key, {"value": value}, outputs)
        return value

    def count(self, *, hit: bool) -> None:
        """Counts a result that came from an entry, or that could have."""
        self.hits += hit
        self.misses += not hit

    def restore(self, key: str, outputs: Sequence[Path]) -> dict[str, Any] | None:
        """Puts an entry's files in place; returns its answer, or None where there is none."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            for output in outputs:
                output.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path) as entry:
                answer: dict[str, Any] = json.loads(entry.read(_ANSWER))
                _extract(entry, outputs)
            os.utime(path)
        except OSError:
            # There is none, or no room for its files: then the stage is run, and says so.
            return None
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, IndexError, KeyError):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return answer

    def store(self, key: str, answer: Mapping[str, Any], outputs: Sequence[Path]) -> None:
        """Remembers an answer with its files; a full disk or a foreign folder is no error."""
        if self.folder is None:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            if sum(map(_size, outputs)) > self.limit_bytes / 2:
                return  # it would drive out most others
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (
                _placed(path) as file,
                zipfile.ZipFile(file, "w", strict_timestamps=False) as entry,
            ):
                entry.writestr(_ANSWER, json.dumps(answer))
                for number, output in enumerate(outputs):
                    _add(entry, str(number), output)

    def trim(self) -> None:
        """Removes the entries that were not used for longest, down to the limit."""
        entries = []
        for path in self._entries():
            with contextlib.suppress(OSError):
                found = path.stat()
                entries.append((found.st_mtime_ns, found.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def size_bytes(self) -> int:
        """What the entries take."""
        return sum(path.stat().st_size for path in self._entries())

    def _entries(self) -> list[Path]:
        # Unfinished ones count, too: what a killed build left is as old as any other.
        return [p for p in self.folder.glob("??/*") if p.is_file()] if self.folder else []

    def _path(self, key: str) -> Path:
        return (self.folder or Path()) / key[:2] / f"{key}{_ENDING}"


def from_environment(environment: Mapping[str, str] = os.environ) -> Cache:
    """The user's cache: below `$XDG_CACHE_HOME`, or where `PACKAGER_CACHE` says; empty for none.

    Raises:
        ConfigError: `PACKAGER_CACHE_LIMIT` is no size.
    """
    text = environment.get(LIMIT, DEFAULT_LIMIT)
    size = _SIZE.fullmatch(text)
    if size is None:
        raise ConfigError(f"{LIMIT}: expected a size such as 5GB, received {text!r}")
    home = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH118, PTH111
    folder = environment.get(FOLDER, os.path.join(home, "packager"))  # noqa: PTH118
    limit = int(float(size[1]) * _UNITS[size[2]])
    return Cache(Path(folder) if folder and limit else None, limit)


@functools.cache
def tools() -> list[str]:
    """What computes here: packager's and its runners' code, installed packages, the processor."""
    code = hashlib.sha256()
    vendor = assets.web_vendor()
    web = [p for p in _files(vendor.parent, "*.*js") if vendor not in p.parents]
    engine = _files(assets.server_engine().parent, "*.py")
    ours = _files(Path(__file__).parent, "*.py")
    for path in [*ours, assets.edge_runner(), *engine, *web, vendor / "VERSIONS.json"]:
        if path.is_file():
            code.update(path.read_bytes())
    node = Path(assets.node() or "")
    found = f"{node} {node.stat().st_mtime_ns}"
    packages = sorted({p.name for entry in sys.path for p in Path(entry).glob("*.dist-info")})
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(k)]
    return [code.hexdigest(), sys.version, found, *packages, *settings, _processor()]


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(p for p in folder.rglob(pattern) if "node_modules" not in p.parts)


def _processor() -> str:
    """The processor's model and features, on which kernels depend, and how many there are."""
    count = os.cpu_count()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        lines = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)
        return f"{count}, {', '.join(dict.fromkeys(lines))}"
    return f"{count}, {os.uname().machine}"


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[Any]:
    """Yields a file that gets its name at the end, and only then."""
    handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _size(output: Path) -> int:
    files = output.rglob("*") if output.is_dir() else [output]
    return sum(path.stat().st_size for path in files if path.is_file())


def _add(entry: zipfile.ZipFile, name: str, output: Path) -> None:
    if output.is_file():
        entry.write(output, name)
    elif output.is_dir():
        entry.writestr(f"{name}/", b"")
        for path in sorted(output.rglob("*")):
            inside = f"{name}/{path.relative_to(output).as_posix()}"
            entry.write(path, inside)


def _extract(entry: zipfile.ZipFile, outputs: Sequence[Path]) -> None:
    """Puts files in place once all of them have been read: a damaged entry changes nothing."""
    names = [name for name in entry.namelist() if name != _ANSWER]
    if not names:
        return
    with tempfile.TemporaryDirectory(prefix=".cached-", dir=outputs[0].parent) as folder:
        entry.extractall(folder, names)
        for name in names:
            number, _, inside = name.partition("/")
            target = outputs[int(number)] / inside
            if name.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(Path(folder) / name, target)
