"""What `packager explain --edgetpu` answers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from packager import bundle as bundles
from packager.console import human_size
from packager.edgetpu import checker
from packager.edgetpu.checker import CPU, ON_CHIP_BYTES, TPU, UNKNOWN, Prediction
from packager.errors import BundleError

Json = dict[str, Any]
SCHEMA = 1
# The artifact that is meant, best first.
_PREFERRED = ("tflite/edgetpu", "tflite/int8")
# Operators that are named for one reason.
_NAMED = 8


def find_file(path: Path) -> Path:
    """A `.tflite` file as it is, or the integer file of a bundle.

    Raises:
        BundleError: There is no such file.
    """
    if path.is_file():
        with path.open("rb") as stream:
            if stream.read(8)[4:] != b"TFL3":
                raise BundleError(f"{path} is no .tflite file", hint="name a file or a bundle")
        return path
    folder = bundles.find_bundle(path)
    manifest = bundles.read_manifest(folder)
    artifacts = {a.id: a for a in manifest.artifacts}
    for name in _PREFERRED:
        if name in artifacts:
            return folder / artifacts[name].path
    raise BundleError(
        f"{folder} has no int8 file",
        hint="build it with --calibration and --only edgetpu",
    )


def document(path: Path) -> Json:
    """The prediction for a file, as JSON values."""
    found = checker.check(path)
    return {
        "schema": SCHEMA,
        "file": str(path),
        "compiles": found.compiles,
        "reason": found.reason,
        "counts": {place: found.count(place) for place in (TPU, CPU, UNKNOWN)},
        "parameter_bytes": found.parameter_bytes,
        "cached": found.cached,
        "on_chip_bytes": ON_CHIP_BYTES,
        "operators": [asdict(op) for op in found.operators],
    }


def show(found: Json) -> None:
    """Prints the summary, and a line for each run of operators with one reason."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    counts = found["counts"]
    total = sum(counts.values())
    head = f"{Path(found['file']).name}: {counts[TPU]} of {total} operators on the Edge TPU"
    if counts[UNKNOWN]:
        head += f", {counts[UNKNOWN]} unknown"
    if found["compiles"] == "no":
        head = f"{Path(found['file']).name}: does not compile: {found['reason']}"
    console.print(head, markup=False)
    size = human_size(found["parameter_bytes"])
    room = human_size(found["on_chip_bytes"])
    where = "fit into" if found["cached"] else "are more than"
    console.print(f"about {size} of parameters {where} the {room} on the chip", markup=False)
    for group in _groups(found["operators"]):
        first = group[0]
        names = ", ".join(f"{op['op']} ({op['index']})" for op in group[:_NAMED])
        more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
        console.print(f"{first['where']}: {names}{more}: {first['reason']}", markup=False)
        if first["advice"]:
            console.print(f"    change: {first['advice']}", markup=False)
        console.print(f"    source: {first['source']}", style="dim", markup=False)


def _groups(operators: list[Json]) -> list[list[Json]]:
    """Operators outside the Edge TPU, those with one reason together, in the order of the file."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for op in operators:
        if op["where"] != TPU:
            groups.setdefault((op["where"], op["reason"]), []).append(op)
    return list(groups.values())


def summary(found: Prediction) -> str:
    """One line for a build."""
    total = len(found.operators)
    text = f"{found.count(TPU)} of {total} operators on the Edge TPU"
    if found.count(UNKNOWN):
        text += f", {found.count(UNKNOWN)} unknown"
    return text if found.compiles != "no" else f"does not compile: {found.reason}"
