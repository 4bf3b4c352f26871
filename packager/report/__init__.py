"""The report of a bundle: `report/report.json`, and `report/index.html` made from it.

The JSON's keys are described in docs/report.md.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from packager import bundle
from packager.bundle import Manifest
from packager.console import Reporter
from packager.errors import BundleError
from packager.report import page, results

SCHEMA = 2
JSON_NAME = "report/report.json"
HTML_NAME = "report/index.html"

_MANIFEST_KEYS = (
    "name", "version", "created", "source", "task", "threshold", "inputs", "outputs", "labels",
    "artifacts", "refused", "golden", "calibration", "tools", "gates", "files",
)  # fmt: skip


def write(folder: Path, manifest: Manifest, reporter: Reporter, measured: dict[str, Any]) -> None:
    """Writes both files of a new bundle.

    Args:
        folder: The bundle's folder, with its manifest.
        manifest: The manifest, with metrics and gates.
        reporter: What the build showed: stages and warnings.
        measured: What `measure.collect` and `inside.inside_tflite` found.
    """
    described = bundle.to_json(manifest)
    configuration = folder / "package.yaml"
    document = {
        "schema": SCHEMA,
        **{key: described[key] for key in _MANIFEST_KEYS if key in described},
        "manifest_sha256": results.manifest_sha256(folder),
        "machine": machine(),
        "command": reporter.command,
        "configuration": configuration.read_text(encoding="utf-8"),
        "stages": [
            {"name": s.name, "seconds": s.seconds, "detail": s.detail} for s in reporter.stages
        ],
        "warnings": list(reporter.warnings),
        "measured": measured,
        "results": [],
    }
    _write(folder, document)


def read(folder: Path) -> dict[str, Any]:
    """Reads `report.json` of a bundle.

    Raises:
        BundleError: There is none, or it is of another schema.
    """
    path = folder / JSON_NAME
    if not path.is_file():
        raise BundleError(
            f"{folder} has no report: {JSON_NAME} is missing",
            hint="copy the bundle with its folder report/, or build it again with --force",
        )
    document = bundle.read_json(path)
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or schema != SCHEMA:
        raise BundleError(
            f"{path} has schema {schema!r}; this packager reads {SCHEMA}",
            hint="use the packager that built the bundle, or build it again with --force",
        )
    return document


def to_markdown(document: dict[str, Any]) -> str:
    """Returns a summary for a pull request."""
    return page.render_markdown(document)


def merge(folder: Path, result_file: Path) -> None:
    """Adds results from another machine to a bundle's report; see `results`.

    Raises:
        BundleError: The bundle has no report.
        UsageError: The file holds no such results, or some about another bundle.
    """
    document = read(folder)
    add(folder, results.read(result_file, folder, document))


def add(folder: Path, result: dict[str, Any]) -> None:
    """Adds results that are known to be about this bundle, and draws the page again."""
    document = read(folder)
    _write(folder, {**document, "results": results.merged(document["results"], result)})


def machine() -> dict[str, Any]:
    """Names this machine, as the runners do."""
    cpu = ""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu,
        "cpus": os.cpu_count() or 1,
    }


def _write(folder: Path, document: dict[str, Any]) -> None:
    text = page.render(document)  # first: a document that cannot be shown is not stored
    bundle.write_json(document, folder / JSON_NAME)
    partial = folder / f"{HTML_NAME}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / HTML_NAME)
