"""Reads a bundle with the standard library and NumPy: manifest, hashes, golden samples."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Json = dict[str, Any]

SCHEMA = 1
MEGABYTE = 1 << 20


class EngineError(Exception):
    """Something a user can act on: what failed, where and why, and a hint on what to do."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


def find_bundle(path: Path) -> Path:
    """Returns the bundle for `NAME/VERSION`, or the newest version below `NAME`.

    Raises:
        EngineError: There is no bundle.
    """
    if (path / "manifest.json").is_file():
        return path
    versions = [child for child in _children(path) if (child / "manifest.json").is_file()]
    numbered = [child for child in versions if child.name.isdecimal()]
    if not numbered:
        raise EngineError(f"{path}: no bundle here: manifest.json is missing", exit_code=2)
    return max(numbered, key=lambda child: int(child.name))


def read_manifest(bundle: Path) -> Json:
    """Returns the manifest of `bundle`; keys that this version does not know are kept.

    Raises:
        EngineError: It is damaged, or its schema is newer than this program.
    """
    manifest = read_json(bundle / "manifest.json")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise EngineError(f"{bundle / 'manifest.json'}: no valid schema number: {schema!r}")
    if schema > SCHEMA:
        raise EngineError(
            f"{bundle / 'manifest.json'}: schema {schema} is newer than this program's {SCHEMA}",
            hint="Update packager-server.",
        )
    return manifest


def check_files(bundle: Path, files: Mapping[str, Json]) -> Json:
    """Returns how many `files` were checked and which are missing or changed."""
    problems = []
    for name, expected in sorted(files.items()):
        problem = _problem(bundle, name, expected)
        if problem:
            problems.append({"path": name, "problem": problem})
    return {"checked": len(files), "problems": problems}


def _problem(bundle: Path, name: str, expected: Json) -> str:
    try:
        path = inside(bundle, name)
    except EngineError as error:
        return str(error)
    if not path.is_file():
        return "missing"
    same = path.stat().st_size == expected["bytes"] and _sha256(path) == expected["sha256"]
    return "" if same else "changed"


def _children(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def read_json(path: Path) -> Json:
    """Returns the JSON object in `path`; anything else is an `EngineError`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: expected a JSON object, received {type(value).__name__}")
    return value


def inside(bundle: Path, name: str) -> Path:
    """Returns the path of a bundle's file; a name that leads out of the bundle is an error."""
    path = (bundle / name).resolve()
    if Path(name).is_absolute() or not path.is_relative_to(bundle.resolve()):
        raise EngineError(f"{bundle}: the path {name!r} leads out of the bundle")
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(MEGABYTE):
            digest.update(block)
    return digest.hexdigest()


def map_npy(path: Path, dimensions: int = 1) -> Array:
    """Returns the array in an `.npy` file, memory-mapped, with at least so many `dimensions`.

    Raises:
        EngineError: The file is missing, is no `.npy` file or holds Python objects.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise EngineError(f"{path}: this input file is missing", exit_code=2) from error
    except (OSError, ValueError) as error:
        message = f"{path}: not a readable .npy file: {first_line(error)}"
        raise EngineError(message, exit_code=2) from error
    if array.ndim < dimensions:
        raise EngineError(f"{path}: expected [N, ...], received a single value", exit_code=2)
    return array


def npy_path(folder: Path, tensor: str) -> Path:
    """Returns the `.npy` file of a tensor; a name that leads to another folder is an error."""
    if "/" in tensor or "\\" in tensor:
        raise EngineError(f"{tensor!r} is the name of a tensor and cannot be that of a file")
    return folder / f"{tensor}.npy"


def map_inputs(folder: Path, names: Iterable[str]) -> tuple[dict[str, Array], int]:
    """Returns the arrays in `folder/<name>.npy` by name, `[N, ...]`, and N.

    Raises:
        EngineError: A file is missing or unreadable, or they differ in N.
    """
    arrays = {name: map_npy(npy_path(folder, name)) for name in names}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        message = f"expected the same number of samples, at least 1, for each input: {counts}"
        raise EngineError(message, exit_code=2)
    return arrays, next(iter(counts.values()))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its class name if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def choose_artifacts(artifacts: list[Json], wanted: str | None) -> list[Json]:
    """Returns what this program runs among `artifacts`; with `wanted` only the one of that id."""
    own = [one for one in artifacts if one["runtime"]["kind"] in ("saved_model", "keras")]
    chosen = [one for one in own if wanted in (None, one["id"])]
    if wanted is not None and not chosen:
        ids = ", ".join(one["id"] for one in own) or "none"
        message = f"no artifact {wanted!r} that this program runs; the bundle has: {ids}"
        raise EngineError(message, exit_code=2)
    return chosen


def check_runtime(package: str, version: str, artifact: Json) -> None:
    """Raises `EngineError` (exit code 4) if this `package` must not run the artifact."""
    supported = artifact["runtime"].get("min_version")
    if supported is None:
        return
    oldest = supported.get(package)
    if oldest is None or _version_key(version) < _version_key(oldest):
        needed = f"{package} {oldest} or newer" if oldest else " or ".join(sorted(supported))
        raise EngineError(
            f"{artifact['id']} needs {needed}; this is {package} {version}", exit_code=4
        )


def _version_key(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


def golden_input(path: Path, spec: Json) -> Array:
    """Returns one golden input `[1, ...]`: an `.npy` as it is, a picture preprocessed."""
    if path.suffix == ".npy":
        return map_npy(path, dimensions=0)[None]
    # Only pictures need Pillow, which a server may lack.
    from packager_server.preprocess import PreprocessError, preprocess

    if importlib.util.find_spec("PIL") is None:
        message = f"{path}: reading a picture needs Pillow, which is not installed"
        raise EngineError(message, hint="pip install pillow", exit_code=4)
    try:
        return preprocess(path, spec)[None]
    except PreprocessError as error:
        raise EngineError(f"{path}: {first_line(error)}") from error


def compare_golden(bundle: Path, golden: Json, artifact: str, values: Json) -> Json:
    """Compares an artifact's values on the golden samples with the stored ones.

    Args:
        bundle: The folder of the bundle.
        golden: The content of `golden/samples.json`.
        artifact: The id.
        values: Flat lists by sample and output.

    Returns:
        The artifact's entry in the answer of `verify`, without its id.

    Raises:
        EngineError: The stored values have another size, or cannot be read.
    """
    count = len(values)
    if not all_finite(values):
        return outcome("failed", samples=count, reason="an output is NaN or infinite")
    stored = {one["id"]: one.get("artifacts", {}).get(artifact) for one in golden["samples"]}
    differences = [
        (_max_abs_diff(values[sample][name], _stored_values(bundle, expected)), sample, name)
        for sample, outputs in stored.items()
        for name, expected in (outputs or {}).items()
    ]
    if not differences:
        return outcome("recorded", samples=count)
    limits = golden["tolerances"][artifact]
    above = [one for one in differences if one[0] > limits[one[2]]]
    reason = f"sample {above[0][1]}, output {above[0][2]}: outside the tolerance" if above else ""
    entry = outcome("failed" if above else "passed", samples=count, reason=reason)
    largest, worst, _ = max(differences)
    return {**entry, "max_abs_diff": largest, "worst_sample": worst}


def all_finite(values: Json) -> bool:
    """Whether no value of any sample and output is NaN or infinite."""
    return all(np.isfinite(output).all() for one in values.values() for output in one.values())


def finite_only(values: Json) -> Json:
    """Returns the values of the artifacts that are finite: JSON has no NaN."""
    return {key: samples for key, samples in values.items() if all_finite(samples)}


def outcome(status: str, *, samples: int = 0, reason: str = "") -> Json:
    """Returns an artifact's entry in the answer of `verify` when nothing was compared."""
    entry: Json = {"status": status, "samples": samples}
    return {**entry, "max_abs_diff": None, "worst_sample": None, "reason": reason}


def _stored_values(bundle: Path, stored: list[float] | Json) -> Array:
    if isinstance(stored, dict):
        return np.ravel(map_npy(inside(bundle, stored["npy"]))[stored["index"]])
    return np.asarray(stored, np.float64)


def _max_abs_diff(values: list[float], expected: Array) -> float:
    if len(values) != expected.size:
        raise EngineError(f"expected {expected.size} values, received {len(values)}")
    difference = np.abs(np.asarray(values, np.float64) - expected)
    return float(difference.max(initial=0.0))
