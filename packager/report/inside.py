"""What the report shows of the inside of TFLite files: operators, ranges, errors by layer."""

from __future__ import annotations

import json
from typing import Any

from packager.errors import PackagerError
from packager.job import Job
from packager.quantize import ladder
from packager.quantize.decide import RANGES
from packager.tflite_names import layer_of, plain

# The artifacts whose layers are compared with the float file's, where they were made.
_COMPARED = ("tflite/int8", "tflite/dynamic_int8")


def inside_tflite(job: Job) -> dict[str, Any]:
    """Returns what `report.json` shows of the inside: `report.json` (docs/report.md)."""
    ranges = job.work / RANGES
    climbs = {name: ladder.to_json(climb) for name, climb in job.climbs.items()}
    return {
        "operators": {a.id: job.operators[a.id] for a in job.artifacts if a.id in job.operators},
        "calibration_ranges": _ranges(json.loads(ranges.read_text(encoding="utf-8")))
        if ranges.is_file()
        else [],
        **({"edgetpu": job.edgetpu} if job.edgetpu else {}),
        "layer_names": list(job.layer_names),
        **({"auto": climbs} if climbs else {}),
        "layers": _layers(job) if job.config.verify else {},
    }


def _ranges(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"tensor": plain(name), "layer": layer_of(plain(name)), "min": low, "max": high}
        for name, (low, high) in found.items()
    ]


def _layers(job: Job) -> dict[str, Any]:
    found = {}
    for artifact in job.artifacts:
        if artifact.id not in _COMPARED or job.data is None:
            continue
        try:
            found[artifact.id] = job.litert.call(
                "layers",
                f"comparing the layers of {artifact.id}",
                reads=["model", "other", "samples"],
                model=job.float_files[artifact.id],
                other=job.folder / artifact.path,
                samples=job.data.golden_inputs,
            )
        except PackagerError as error:
            # The report is poorer for it; the artifact is not.
            job.reporter.warn(f"{artifact.id}: {error.message}")
    return found
