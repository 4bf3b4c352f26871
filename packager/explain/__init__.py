"""`packager explain`: which layers lose accuracy under int8, and what to leave in float."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from packager import bundle
from packager.children import Child, scratch
from packager.console import Reporter
from packager.errors import PackagerError
from packager.explain import data
from packager.explain.data import Given
from packager.quantize import blame, exclude, halves, pool
from packager.quantize.exclude import Found, Holds, within
from packager.quantize.plan import ALGORITHMS, Plan
from packager.quantize.trials import Trial

Json = dict[str, Any]
SCHEMA = 1


def explain(folder: Path, given: Given, reporter: Reporter) -> Json:
    """Explains what int8 costs, layer by layer.

    Args:
        folder: The bundle's folder.
        given: Data that the user named.
        reporter: Where the stages are shown.

    Returns:
        The document of `packager explain --json` (docs/explain.md).

    Raises:
        BundleError: The bundle has no float32 TFLite file.
        DataError: A source cannot be used.
        UnsupportedError: The file has no int8 form.
    """
    manifest = bundle.read_manifest(folder)
    with scratch("explain") as work:
        with (
            reporter.stage("prepare samples and ranges") as detail,
            Child(pool.WORKER, verbose=reporter.verbose, temporary=work) as litert,
        ):
            found = data.find(folder, manifest, given, work, litert, halve=True)
            detail.extend(found.remarks[:1])
        with pool.opened(found.subject, work, verbose=reporter.verbose) as trials:
            with reporter.stage("quantize layer by layer") as detail:
                blamed = blame.blame(trials, Plan())
                detail.append(f"{len(blamed.layers)} layers, three ways each")
            with reporter.stage("compare ways to calibrate"):
                ways = dict(
                    zip(ALGORITHMS, trials.run(Plan(algorithm=n) for n in ALGORITHMS), strict=True)
                )
                compared = halves.compare(trials, found.subject.ranges, Plan())
            holds = within(manifest.gates)
            suggestion = None
            if not holds(blamed.trial):
                with reporter.stage("look for layers to leave in float") as detail:
                    suggestion = exclude.smallest(trials, blamed, Plan(float_io=True), holds)
                    detail.append(f"{suggestion.tried if suggestion else 0} plans tried")
            document = _document(folder, found.remarks, trials.reference, blamed, suggestion)
            document["calibration"] = _calibration(ways, compared, holds)
            return document


def _calibration(
    ways: dict[str, Trial | PackagerError], compared: halves.Comparison | None, holds: Holds
) -> Json:
    """What each way to find the scales gives, and whether half of the samples says the same."""
    made = {name: trial for name, trial in ways.items() if not isinstance(trial, PackagerError)}
    found: Json = {
        "algorithms": {
            name: {**asdict(trial), "holds": holds(trial)} for name, trial in made.items()
        }
    }
    if compared is not None:
        found["halves"] = {**asdict(compared), "sentence": halves.sentence(compared)}
    return found


def overlay(document: Json) -> Json:
    """Node data for Model Explorer, by tensor name of the float file: the noise of each layer."""
    return {
        "results": {
            name: {"value": round(100 * entry["best"]["noise"], 2)}
            for entry in document["layers"]
            for name in entry["tensors"]
        },
        "gradient": [
            {"stop": 0, "bgColor": "#ffffff"},
            {"stop": 1, "bgColor": "#d9482b"},
        ],
    }


def _document(
    folder: Path,
    remarks: tuple[str, ...],
    reference: pool.Reference,
    blamed: blame.Blame,
    suggestion: Found | None,
) -> Json:
    tensors: dict[str, list[str]] = {}
    for op in reference.ops:
        tensors.setdefault(op.layer, []).extend(op.outputs)
    layers = [
        {
            **asdict(entry),
            "best": asdict(entry.best),
            "tensors": tensors[entry.layer],
            "sentence": blame.sentence(entry, blamed),
        }
        for entry in blamed.layers
    ]
    numbers = {"size_bytes": reference.size_bytes, "samples": reference.samples}
    own = {"accuracy": reference.accuracy, "mean_abs_error": reference.mean_abs_error}
    document: Json = {
        "schema": SCHEMA,
        "bundle": str(folder),
        "metric": blamed.metric,
        "noise_floor": blamed.noise_floor,
        "remarks": list(remarks),
        "float32": {**numbers, **{k: v for k, v in own.items() if v is not None}},
        "int8": asdict(blamed.trial),
        "layers": layers,
    }
    if suggestion is not None:
        document["suggestion"] = {
            "plan": suggestion.plan.to_json(),
            "trial": asdict(suggestion.trial),
            "holds": suggestion.holds,
        }
    return document
