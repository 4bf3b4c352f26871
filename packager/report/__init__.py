"""The report of a bundle: `report/report.json`, and `report/index.html` made from it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from packager import bundle
from packager.bundle import Manifest
from packager.console import Reporter
from packager.errors import BundleError, UsageError
from packager.report import page

SCHEMA = 1
JSON_NAME = "report/report.json"
HTML_NAME = "report/index.html"

_MANIFEST_KEYS = (
    "name", "version", "created", "source", "task", "threshold", "inputs", "outputs", "labels",
    "artifacts", "refused", "golden", "calibration", "tools", "gates",
)  # fmt: skip


def write(folder: Path, manifest: Manifest, reporter: Reporter) -> None:
    """Writes both files of a new bundle.

    Args:
        folder: The bundle's folder.
        manifest: Its manifest, with metrics and gates.
        reporter: What the build showed: stages and warnings.
    """
    described = bundle.to_json(manifest)
    document = {
        "schema": SCHEMA,
        **{key: described[key] for key in _MANIFEST_KEYS if key in described},
        "machine": machine(),
        "stages": [
            {"name": s.name, "seconds": s.seconds, "detail": s.detail} for s in reporter.stages
        ],
        "warnings": list(reporter.warnings),
        "results": [],
    }
    _write(folder, document)


def merge(folder: Path, result_file: Path) -> None:
    """Adds the answer of a runner's `verify` on another machine to a bundle's report.

    Raises:
        BundleError: The bundle has no report.
        UsageError: The file is no such answer, or about another bundle.
    """
    result = bundle.read_json(result_file)
    _check_result(result, result_file)
    document = bundle.read_json(folder / JSON_NAME)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise BundleError(f"{folder / JSON_NAME} is not a report of schema {SCHEMA}")
    known = {artifact["id"] for artifact in document["artifacts"]}
    foreign = sorted({a["id"] for a in result["artifacts"]} - known)
    if foreign:
        raise UsageError(
            f"{result_file} is about other artifacts than {document['name']}/"
            f"{document['version']}: {', '.join(foreign)}",
            hint="merge it into the bundle that was verified",
        )
    others = [r for r in document["results"] if not _same_place(r, result)]
    document["results"] = [*others, result]
    _write(folder, document)


def machine() -> dict[str, str]:
    """Names this machine, as the runners do."""
    return {"system": platform.system(), "machine": platform.machine()}


def _check_result(result: Any, result_file: Path) -> None:
    types: dict[str, Any] = {
        "runner": str,
        "runtime": (dict, type(None)),
        "machine": dict,
        "artifacts": list,
    }
    is_answer = isinstance(result, dict) and all(
        key in result and isinstance(result[key], kind) for key, kind in types.items()
    )
    if not is_answer or not all(
        isinstance(a, dict) and {"id", "status"} <= set(a) for a in result["artifacts"]
    ):
        raise UsageError(
            f"{result_file} is not the JSON answer of a runner's verify",
            hint="make it on the device: python run.py verify BUNDLE --json > device.json",
        )


def _same_place(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in ("runner", "runtime", "machine"))


def _write(folder: Path, document: dict[str, Any]) -> None:
    text = page.render(document)  # first: a document that cannot be shown is not stored
    bundle.write_json(document, folder / JSON_NAME)
    (folder / HTML_NAME).write_text(text, encoding="utf-8")
