"""One data set: samples as model inputs, in constant memory, and their targets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from packager.datasets.files import open_csv, open_folder
from packager.datasets.sources import (
    IMAGE_SUFFIXES,
    NO_LIMIT,
    TEXT,
    ArraySource,
    Raw,
    Source,
    call_function,
    encode_text,
    read_npy,
    read_npz,
)
from packager.datasets.targets import Answer, check_targets
from packager.errors import DataError
from packager.loaders.model_file import FUNCTION
from packager.preprocess import PreprocessError, preprocess
from packager.presets import PRESETS

Array = np.ndarray[Any, Any]
InputSpec = Mapping[str, Any]

LIMIT_SEED = 0


class Dataset:
    """Samples of a model, in a fixed order; nothing is kept in memory.

    Attributes:
        source: The source's last path part, or `module:function`.
        count: Number of samples.
        targets: As `targets.check_targets` returns them, or None.
        classes: Names of the class folders, sorted; empty for other sources.
    """

    def __init__(
        self,
        source: str,
        samples: Source,
        indices: Sequence[int],
        inputs: Sequence[InputSpec],
        targets: Array | None,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.count = len(indices)
        self.targets = targets
        self.classes = classes
        self._samples = samples
        self._indices = indices
        self._inputs = inputs
        self._digests: dict[int, bytes] = {}

    @property
    def sha256(self) -> str:
        """A hash of samples and targets that does not depend on their order or file names."""
        digests = sorted(
            self._samples.digest(self._indices[i])
            + (b"" if self.targets is None else self.targets[i].tobytes())
            for i in range(self.count)
        )
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def raw(self, index: int) -> Raw:
        """Returns sample `index` as it came, by input name: a path, pixels or a tensor."""
        return self._samples.raw(self._indices[index])

    def images(self) -> Iterator[Raw]:
        """Yields `raw` of each sample."""
        return (self.raw(index) for index in range(self.count))

    def where(self, index: int) -> str:
        """Returns words that name sample `index` in a message."""
        return self._samples.where(self._indices[index])

    def sample(self, index: int) -> dict[str, Array]:
        """Returns the model's inputs by name, without the batch axis, in their dtypes.

        Raises:
            DataError: An unreadable image, or an array of the wrong shape, dtype or range.
        """
        raw = self.raw(index)
        where = self.where(index)
        values = {spec["name"]: to_input(raw[spec["name"]], spec, where) for spec in self._inputs}
        self._digests[index] = _digest(values)
        return values

    def digest(self, index: int) -> bytes:
        """Returns a hash of `sample(index)`: equal inputs from any two sources are equal."""
        if index not in self._digests:
            self.sample(index)
        return self._digests[index]

    def write_inputs(self, folder: Path, indices: Sequence[int] | None = None) -> dict[str, Path]:
        """Writes `<input name>.npy` [N, ...] for the runners, sample by sample.

        Args:
            folder: An existing folder.
            indices: Which samples, in this order; default: all.

        Returns:
            The files by input name.

        Raises:
            DataError: As `sample` does.
        """
        chosen = range(self.count) if indices is None else indices
        paths = {spec["name"]: folder / f"{spec['name']}.npy" for spec in self._inputs}
        with ExitStack() as stack:
            files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}
            for position, index in enumerate(chosen):
                for name, value in self.sample(index).items():
                    if position == 0:
                        _write_header(files[name], value, len(chosen))
                    files[name].write(value.tobytes())
        return paths


def open_dataset(
    source: str,
    *,
    inputs: Sequence[InputSpec],
    labels: Sequence[str],
    limit: int | None = None,
    answer: Answer | None = None,
) -> Dataset:
    """Opens a calibration or evaluation set.

    Args:
        source: A folder of images (flat, or one folder per class), an `.npz`, `.npy` or `.csv`
            file, or `package.module:function`.
        inputs: The manifest's `inputs`.
        labels: The manifest's labels; may be empty.
        limit: At most so many samples: a seeded choice, or the first ones of a function.
        answer: What the targets are compared with; None: they are not read. A source without
            targets has `targets` None.

    Raises:
        DataError: The source is missing, empty, unreadable or does not fit the model.
    """
    name, samples, targets, classes = _open(source, inputs, labels, limit, answer)
    if samples.count == 0:
        raise DataError(f"{source}: no samples in it")
    if targets is not None and answer is not None:
        targets = check_targets(targets, samples.count, labels, answer, source)
    indices: Sequence[int] = range(samples.count)
    if limit is not None and limit < samples.count:
        # The first ones would be a single class where the source is sorted by class.
        chosen = np.random.default_rng(LIMIT_SEED).choice(samples.count, limit, replace=False)
        indices = sorted(chosen.tolist())
        targets = None if targets is None else targets[indices]
    dataset = Dataset(name, samples, indices, inputs, targets, classes)
    dataset.sample(0)
    return dataset


def _open(
    source: str,
    inputs: Sequence[InputSpec],
    labels: Sequence[str],
    limit: int | None,
    answer: Answer | None,
) -> tuple[str, Source, Array | None, tuple[str, ...]]:
    path = Path(source)
    if FUNCTION.fullmatch(source) and not path.exists():
        names = [spec["name"] for spec in inputs]
        called, targets = call_function(source, names, NO_LIMIT if limit is None else limit)
        return source, called, targets if answer else None, ()
    if not path.exists():
        raise DataError(
            f"{source}: no such file or folder",
            hint="Give a folder of images, an .npz, .npy or .csv file, or module:function.",
        )
    if path.is_dir():
        name = _only_input(inputs, source)["name"]
        return path.name, *open_folder(path, name, labels, answer)
    return path.name, *_open_file(path, inputs, labels, with_targets=answer is not None), ()


def _open_file(
    path: Path, inputs: Sequence[InputSpec], labels: Sequence[str], *, with_targets: bool
) -> tuple[Source, Array | None]:
    with path.open("rb") as file:
        start = file.read(6)
    if not start:
        raise DataError(f"{path}: the file is empty")
    if start == b"\x93NUMPY":
        return ArraySource(str(path), {_only_input(inputs, path)["name"]: read_npy(path)}), None
    if start.startswith(b"PK") or path.suffix == ".npz":
        return _open_npz(path, inputs, with_targets=with_targets)
    if path.suffix.lower() == ".csv":
        return open_csv(path, _only_input(inputs, path), labels, with_targets=with_targets)
    image = path.suffix.lower() in IMAGE_SUFFIXES
    raise DataError(
        f"{path}: not a data set",
        hint="Give the folder of the images."
        if image
        else "Give a folder of images, an .npz, .npy or .csv file, or module:function.",
    )


def _open_npz(
    path: Path, inputs: Sequence[InputSpec], *, with_targets: bool
) -> tuple[Source, Array | None]:
    arrays = read_npz(path)
    names = [spec["name"] for spec in inputs]
    if len(names) == 1 and "x" in arrays and names[0] not in arrays:
        arrays[names[0]] = arrays.pop("x")
    expected = "x" if len(names) == 1 else ", ".join(names)
    missing = sorted(set(names) - set(arrays))
    # A misspelt `y` must not pass as a data set without targets.
    unknown = sorted(set(arrays) - {*names, "y"}) if with_targets and "y" not in arrays else []
    if missing or unknown:
        held = ", ".join(sorted({*arrays} - {*names} | ({"x"} if not missing else set())))
        raise DataError(
            f"{path}: expected the arrays {expected} (and y for labels or targets), found {held}"
        )
    counts = {name: len(arrays[name]) for name in names}
    if len(set(counts.values())) != 1:
        raise DataError(f"{path}: the inputs have different numbers of samples: {counts}")
    samples = ArraySource(str(path), {name: arrays[name] for name in names})
    return samples, arrays.get("y") if with_targets else None


def _only_input(inputs: Sequence[InputSpec], source: object) -> InputSpec:
    if len(inputs) != 1:
        names = ", ".join(spec["name"] for spec in inputs)
        raise DataError(
            f"{source}: this kind of data set feeds one input, but the model has {names}",
            hint="Give an .npz with one array per input, or module:function yielding dicts.",
        )
    return inputs[0]


def to_input(raw: Path | Array, spec: InputSpec, where: str) -> Array:
    """Returns one sample of an input, without the batch axis, in the input's dtype.

    Images and uint8 arrays of an image input are pixels and run through the declaration; every
    other array is the model's input already.

    Raises:
        DataError: It cannot become that.
    """
    is_pixels = isinstance(raw, Path) or (raw.dtype == np.uint8 and _takes_pixels(spec, raw))
    if is_pixels:
        _check_declared(spec, where)
        try:
            value = preprocess(raw, spec)
        except PreprocessError as error:
            prefix = "" if isinstance(raw, Path) else f"{where}: "
            hint = error.hint or "replace the file or remove it from the data set"
            raise DataError(f"{prefix}{error}", hint=hint) from error
    else:
        value = _to_tensor(np.asarray(raw), spec, where)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise DataError(f"{where}: the input {spec['name']!r} holds NaN or infinities")
    # Not ascontiguousarray(), which gives a single value an axis.
    return np.array(value, order="C")


def _takes_pixels(spec: InputSpec, raw: Array) -> bool:
    return bool(spec.get("image")) or (raw.ndim >= 2 and spec["dtype"].startswith("float"))


def _check_declared(spec: InputSpec, where: str) -> None:
    if spec.get("image"):
        return
    presets = ", ".join(PRESETS)
    raise DataError(
        f"{where}: these are pixels, but how they become the input {spec['name']!r} of shape "
        f"{spec['shape']} is not declared",
        hint=f"Give --preprocess with what the model was trained on: {presets}.",
    )


def _to_tensor(array: Array, spec: InputSpec, where: str) -> Array:
    is_text = spec["dtype"] == "string"
    expected = np.dtype(TEXT if is_text else spec["dtype"])
    shape = spec["shape"][1:]
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    fits = array.ndim == len(shape) and all(
        own in (None, given) for own, given in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise DataError(
            f"{where}: the input {spec['name']!r} expects {spec['dtype']} {shape}, received "
            f"{array.dtype} {list(array.shape)}"
        )
    if is_text:
        return encode_text(array, f"{where}: the input {spec['name']!r}")
    if not np.can_cast(array.dtype, expected, "same_kind"):
        raise DataError(
            f"{where}: the input {spec['name']!r} expects {expected}, received {array.dtype}"
        )
    value = array.astype(expected)
    if array.dtype.kind in "biu" and not np.array_equal(value, array):
        raise DataError(f"{where}: values of {array.dtype} do not fit into {expected}")
    return value


def _digest(values: Mapping[str, Array]) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(f"{name} {value.shape}\0".encode())
        digest.update(value.tobytes())
    return digest.digest()


def _write_header(file: IO[bytes], value: Array, count: int) -> None:
    header = np.lib.format.header_data_from_array_1_0(value)
    header["shape"] = (count, *value.shape)
    np.lib.format.write_array_header_1_0(file, header)
