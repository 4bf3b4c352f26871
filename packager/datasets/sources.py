"""Where samples come from: image files, or arrays that stay on disk."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from packager.errors import DataError
from packager.user_code import load_function

Array = np.ndarray[Any, Any]
Raw = Mapping[str, "Path | Array"]

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
NO_LIMIT = sys.maxsize
# How text is stored: UTF-8, or the bytes as they are. Longer ones are refused.
TEXT = "S4096"


class Source(Protocol):
    """Samples in their raw form; an image file or an array per input name."""

    @property
    def count(self) -> int:
        """Number of samples."""

    def raw(self, index: int) -> Raw:
        """Returns sample `index`: a path, uint8 pixels or a tensor, by input name."""

    def where(self, index: int) -> str:
        """Returns words that name sample `index` in an error message."""

    def digest(self, index: int) -> bytes:
        """Returns a hash of the content of sample `index`."""


@dataclass(frozen=True)
class FileSource:
    """Image files for the only input."""

    input_name: str
    paths: tuple[Path, ...]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.paths)

    def raw(self, index: int) -> dict[str, Path]:
        """Returns the path of sample `index`."""
        return {self.input_name: self.paths[index]}

    def where(self, index: int) -> str:
        """Returns the path as text."""
        return str(self.paths[index])

    def digest(self, index: int) -> bytes:
        """Returns the SHA-256 of the file."""
        try:
            with self.paths[index].open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise DataError(f"{self.paths[index]}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class ArraySource:
    """Arrays `[N, ...]` by input name, memory-mapped where they come from a file."""

    name: str
    arrays: Mapping[str, Array]

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(next(iter(self.arrays.values())))

    def raw(self, index: int) -> dict[str, Array]:
        """Returns the arrays of sample `index`, without the batch axis."""
        values = {name: np.array(array[index]) for name, array in self.arrays.items()}
        for array in self.arrays.values():
            _drop_pages(array)
        return values

    def where(self, index: int) -> str:
        """Returns the source and the number of the sample."""
        return f"{self.name}, sample {index}"

    def digest(self, index: int) -> bytes:
        """Returns a SHA-256 over names, dtypes, shapes and bytes."""
        digest = hashlib.sha256()
        for name, value in sorted(self.raw(index).items()):
            digest.update(f"{name} {value.dtype} {value.shape}\0".encode())
            digest.update(value.tobytes())
        return digest.digest()


def _drop_pages(array: Array) -> None:
    """Gives the pages of a mapped file back: they count as this process's memory."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap):
        owner.madvise(mmap.MADV_DONTNEED)


def read_npy(path: Path) -> Array:
    """Returns the array in `path`, memory-mapped; never unpickles.

    Raises:
        DataError: Not a readable `.npy` file, an object array, or no batch axis.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise DataError(
            f"{path}: cannot be read as a NumPy array: {error}",
            hint="Save plain numeric arrays; object arrays are never loaded.",
        ) from error
    return _checked_array(array, str(path))


def read_npz(path: Path) -> dict[str, Array]:
    """Returns the arrays in `path` by name, memory-mapped from unpacked copies.

    Raises:
        DataError: Not a readable `.npz` file, or an object array in it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name[:-4]: _unpack(archive, name, path) for name in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read as an .npz file: {error}") from error


def _unpack(archive: zipfile.ZipFile, member: str, path: Path) -> Array:
    # The mapping outlives the file's name, so memory stays flat and nothing is left behind.
    with tempfile.NamedTemporaryFile(suffix=".npy") as copy:
        with archive.open(member) as packed:
            shutil.copyfileobj(packed, copy)
        copy.flush()
        try:
            array: Array = np.load(copy.name, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, SyntaxError) as error:
            raise DataError(
                f"{path}: the array {member[:-4]!r} cannot be read: {error}",
                hint="Save plain numeric arrays; object arrays are never loaded.",
            ) from error
    return _checked_array(array, f"{path}: the array {member[:-4]!r}")


def encode_text(array: Array, where: str) -> Array:
    """Returns texts as an array of `TEXT`.

    Raises:
        DataError: These are no texts, or one is too long.
    """
    if array.dtype.kind not in "US":
        raise DataError(f"{where} expects text, received {array.dtype}")
    encoded = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
    limit = np.dtype(TEXT).itemsize
    if encoded.dtype.itemsize > limit and int(np.char.str_len(encoded).max()) > limit:
        raise DataError(f"{where}: a text has more than {limit} bytes", hint="shorten it")
    return np.asarray(encoded, TEXT)


def _checked_array(array: Array, where: str) -> Array:
    if array.dtype.kind not in "biufUS":
        raise DataError(f"{where}: expected numbers or text, received {array.dtype}")
    if array.ndim == 0:
        raise DataError(f"{where}: expected [N, ...], received a single value")
    return array


class Spool:
    """Collects the samples of a stream in a file without a name, for access by number.

    A context manager; the array of `finish` outlives it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._count = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, sample: Array) -> None:
        """Adds one sample; all must have the first one's shape and dtype.

        Raises:
            DataError: They differ, or these are neither numbers nor text.
        """
        if sample.dtype.kind in "US":
            sample = encode_text(sample, self._where)
        if self._count == 0:
            _checked_array(sample[None], self._where)
            self._shape, self._dtype = sample.shape, sample.dtype
        if (sample.shape, sample.dtype) != (self._shape, self._dtype):
            raise DataError(
                f"{self._where}, sample {self._count}: expected {self._dtype} {self._shape} as in "
                f"sample 0, received {sample.dtype} {sample.shape}"
            )
        self._file.write(np.ascontiguousarray(sample).tobytes())
        self._count += 1

    def finish(self) -> Array:
        """Returns all samples `[N, ...]`, memory-mapped."""
        shape = (self._count, *self._shape)
        if 0 in shape:
            return np.zeros(shape, self._dtype)
        self._file.flush()
        mapped: Array = np.memmap(self._file, self._dtype, "r", shape=shape)
        return mapped


def call_function(spec: str, names: list[str], limit: int) -> tuple[ArraySource, Array | None]:
    """Collects the samples that `package.module:function` yields.

    A sample is an array (for the only input) or a dict by input name, alone or in a tuple with
    its target. The function is called once; at most `limit` samples are taken.

    Returns:
        The source, and the targets `[N, ...]` or None.

    Raises:
        DataError: The function cannot be imported, fails, or yields something else.
    """
    function = load_function(spec, DataError)
    targets: list[Array | None] = []
    with ExitStack() as stack:
        spools = {name: stack.enter_context(Spool(f"{spec}, input {name!r}")) for name in names}
        for sample in islice(_called(function, spec), limit):
            values, target = _split_sample(sample, names, f"{spec}, sample {len(targets)}")
            for name in names:
                spools[name].append(np.asarray(values[name]))
            targets.append(None if target is None else np.asarray(target))
        arrays = {name: spool.finish() for name, spool in spools.items()}
    return ArraySource(spec, arrays), _stack_targets(targets, spec)


def _called(function: Callable[[], Iterable[Any]], spec: str) -> Iterable[Any]:
    try:
        yield from function()
    # This is the user's code: it may raise anything, and leave.
    except (Exception, SystemExit) as error:
        raise DataError(f"{spec}: failed: {type(error).__name__}: {error}") from error


def _split_sample(
    sample: object, names: list[str], where: str
) -> tuple[Mapping[str, Any], object | None]:
    values, target = sample if isinstance(sample, tuple) and len(sample) == 2 else (sample, None)
    if not isinstance(values, Mapping):
        values = {names[0]: values} if len(names) == 1 else {}
    if not set(names) <= set(values):
        raise DataError(
            f"{where}: expected {_sample_form(names)}, received {_describe(sample)}",
            hint="Yield the sample alone, or a tuple (sample, target).",
        )
    return values, target


def _sample_form(names: list[str]) -> str:
    return f"an array for {names[0]!r}" if len(names) == 1 else f"a dict with {names}"


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {sorted(map(str, value))}"
    return f"a {type(value).__name__}"


def _stack_targets(targets: list[Array | None], spec: str) -> Array | None:
    given = [target for target in targets if target is not None]
    if not given:
        return None
    if len(given) != len(targets):
        raise DataError(
            f"{spec}: {len(given)} of {len(targets)} samples have a target; all or none"
        )
    if len({target.shape for target in given}) != 1:
        raise DataError(f"{spec}: the targets have different shapes")
    return np.stack(given)
