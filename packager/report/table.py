"""What `packager build` prints at its end: the plan, the table, snippets, the next command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager import bundle, opening
from packager.bundle import Artifact, Manifest
from packager.config import Config
from packager.console import Reporter, human_size
from packager.report import HTML_NAME, page
from packager.targets import select

if TYPE_CHECKING:
    from packager.pipeline import BuildResult

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def show_plan(config: Config, reporter: Reporter) -> None:
    """Prints what a build would do, after checking what can be checked without TensorFlow."""
    found = opening.recognise(config.model)
    selection = select(
        config.targets,
        calibrated=config.calibration is not None,
        trained=config.train is not None,
    )
    name = config.name or found.name
    lines = [
        f"model        {found.source} ({found.format}, {found.saved_by})",
        f"bundle       {Path(config.output) / name / str(config.version)}",
        f"calibration  {config.calibration.source if config.calibration else 'none: no int8'}",
        f"evaluation   {config.evaluation.source if config.evaluation else 'none: no accuracy'}",
        f"training     {config.train.source if config.train else 'none: no qat_int8'}",
        *(f"artifact     {target.id}" for target in selection.targets),
    ]
    for line in lines:
        reporter.rich.print(line, markup=False)


def show_result(result: BuildResult, reporter: Reporter) -> None:
    """Prints the result on standard output."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(result.manifest))
    for text in _remarks(result):
        console.print(text, markup=False)
    if result.rejected:
        console.print(
            f"A gate failed: not published, kept for a look at {result.path}", style="red"
        )
    else:
        for title, text in snippets(result.path, result.manifest):
            console.print(f"\n[bold]{title}[/bold]")
            console.print(text, markup=False)
    if reporter.cache and reporter.cache.hits:
        known, made = reporter.cache.hits, reporter.cache.misses
        console.print(f"\ncache   {known} of {known + made} results are those of earlier builds")
    console.print(f"\nbundle  {result.path.resolve()}", markup=False)
    console.print(f"report  {(result.path / HTML_NAME).resolve()}", markup=False)
    if not result.rejected:
        flag = " --allow-model-code" if _is_code(result.manifest) else ""
        console.print(
            f"next    packager verify {shlex.quote(str(result.path))}{flag}", markup=False
        )


def result_json(result: BuildResult) -> dict[str, Any]:
    """The same for machines."""
    described = bundle.to_json(result.manifest)
    return {
        "bundle": str(result.path.resolve()),
        "exit_code": result.exit_code,
        "rejected": result.rejected,
        "artifacts": described["artifacts"],
        "refused": described["refused"],
        "failures": [
            {"id": f.id, "error": f.error.message, "hint": f.error.hint} for f in result.failures
        ],
    }


def snippets(path: Path, manifest: Manifest) -> list[tuple[str, str]]:
    """Paste-in lines per target: title and text."""
    here = shlex.quote(str(path))
    kinds = {artifact.runtime.kind for artifact in manifest.artifacts}
    image = any(spec.image is not None for spec in manifest.inputs)
    sample = "image.png" if image else "input.npy"
    found = []
    if "tflite" in kinds:
        found.append(("On a device", f"python {here}/edge/run.py predict {here} {sample}"))
    if "saved_model" in kinds:
        call = f'tf.saved_model.load("{path}").signatures["serving_default"]'
        names = ", ".join(f"{s.name}={s.name}" for s in manifest.inputs)
        found.append(("On a server", f"predict = {call}\nanswer = predict({names})"))
    if "keras" in kinds and "saved_model" not in kinds:
        flag = " --allow_model_code" if _is_code(manifest) else ""
        found.append(("On a server", f"packager serve {here}{flag}"))
    if any(path.startswith("web/") for path in manifest.files):
        return [*found, ("In a browser", f"packager web {here}")]
    for kind, load in (("tfjs-layers", "loadLayersModel"), ("tfjs-graph", "loadGraphModel")):
        for artifact in (a for a in manifest.artifacts if a.runtime.kind == kind):
            script = f'<script src="{artifact.script}"></script>\n' if artifact.script else ""
            html = (
                f'<script src="tf.min.js"></script>\n{script}'
                f'<script type="module">const model = await tf.{load}("{artifact.path}");</script>'
            )
            found.append(("In a browser", html))
    return found


def _is_code(manifest: Manifest) -> bool:
    return any(a.code or a.custom_objects for a in manifest.artifacts)


def _remarks(result: BuildResult) -> list[str]:
    """Why gates failed or were skipped, and why artifacts are missing."""
    found = [
        f"{a.id}: {a.gate.status}: {a.gate.reason}"
        for a in result.manifest.artifacts
        if a.gate.reason
    ]
    refusals: dict[tuple[str, str], list[str]] = {}
    for r in result.manifest.refused:
        refusals.setdefault((r.reason, r.hint), []).append(r.id)
    found += [
        f"{', '.join(ids)}: refused: {reason}\n  fix: {hint}"
        for (reason, hint), ids in refusals.items()
    ]
    known = {a.id for a in result.manifest.artifacts} | {r.id for r in result.manifest.refused}
    found += [
        f"{f.id}: failed: {f.error.message}\n  fix: {f.error.hint or 'see --verbose'}"
        for f in result.failures
        if f.id not in known
    ]
    return found


def _table(manifest: Manifest) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("artifact", "size", "ratio", "accuracy", "agreement", "max diff", "gate"):
        left = column in ("artifact", "gate")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    base = next((a.size_bytes for a in manifest.artifacts if a.id == "tflite/float32"), None)
    for artifact in manifest.artifacts:
        table.add_row(*_row(artifact, base))
    for refusal in manifest.refused:
        table.add_row(refusal.id, "", "", "", "", "", "[red]refused[/red]")
    return table


def _row(artifact: Artifact, base: int | None) -> tuple[str, ...]:
    metrics, gate = artifact.metrics, artifact.gate
    style = _STYLES[gate.status]
    return (
        artifact.id,
        human_size(artifact.size_bytes),
        f"{artifact.size_bytes / base:.2f}" if base else "",
        page.percent(metrics.get("accuracy")),
        page.percent(metrics.get("agreement")),
        page.number(metrics.get("max_abs_diff")),
        f"[{style}]{gate.status}[/{style}]",
    )
