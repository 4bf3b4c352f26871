"""The pipeline: open -> convert -> quantize -> describe -> verify -> gate -> publish."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packager import (
    assets,
    bundle,
    describe,
    hashes,
    opening,
    publish,
    report,
    runtime_profiles,
    samples,
    web,
)
from packager.bundle import Golden, Manifest
from packager.cache import Cache, from_environment
from packager.children import Child, Pending, scratch
from packager.config import Config
from packager.console import Reporter, human_size
from packager.errors import (
    BundleError,
    GateFailed,
    PackagerError,
    UnsupportedError,
)
from packager.job import Failure, Job, remove
from packager.loaders.layer_graph import LayerGraph
from packager.loaders.model_file import ModelFile
from packager.publish import Staging
from packager.quantize import settings, training_rung
from packager.report import measure
from packager.report.inside import inside_tflite
from packager.report.measure import Measured
from packager.samples import Samples
from packager.targets import TARGETS, Selection, as_python, select, tfjs
from packager.verify import tfjs_check
from packager.verify.check import UNVERIFIED, SourceOutputs, store_golden, verify_artifacts
from packager.verify.tfjs_check import Inside

# Above this, reading a file twice takes longer than it may spare.
_LARGE = 100_000_000


@dataclass(frozen=True)
class BuildResult:
    """What a build made.

    Attributes:
        path: The bundle's folder; `NAME/VERSION.rejected` when a gate failed.
        manifest: Its manifest.
        failures: Artifacts that could not be made or verified.
    """

    path: Path
    manifest: Manifest
    failures: tuple[Failure, ...] = ()

    @property
    def rejected(self) -> bool:
        """Whether a gate failed, so that the bundle did not get its version number."""
        return any(a.gate.status == "failed" for a in self.manifest.artifacts)

    @property
    def exit_code(self) -> int:
        """0, 1 when an artifact failed, 3 when a gate failed."""
        if self.failures:
            return PackagerError.exit_code
        return GateFailed.exit_code if self.rejected else 0


def run(config: Config, reporter: Reporter) -> BuildResult:
    """Builds a bundle.

    Raises:
        PackagerError: Nothing was published, and why.
    """
    selection = select(
        config.targets,
        calibrated=config.calibration is not None,
        trained=config.train is not None,
    )
    settings.check(config)
    runtime_profiles.parse_all(config.runtimes)
    if config.web:
        web.files()  # lacking runtimes are reported before the work, not after it
    with reporter.stage("recognise the model") as detail:
        found = opening.recognise(config.model)
        detail.append(f"{found.format}, {found.saved_by}, {human_size(found.size_bytes)}")
    base = Path(config.output) / (config.name or found.name)
    version = None if config.version == "next" else config.version
    described = _without_tensorflow(config, found, selection)
    if described is not None:
        with (
            _storage_errors(Path(config.output)),
            publish.staging(base, version, force=config.force) as stage,
        ):
            return _write_unverified(config, found, stage, *described, reporter)
    cache = from_environment() if config.cache else Cache(None)
    reporter.cache = cache
    with (
        _storage_errors(Path(config.output)),
        publish.staging(base, version, force=config.force) as stage,
        scratch("build") as work,
        opening.child("packager.loaders.worker", config.model, work, reporter, cache) as source,
        Child(
            "packager.quantize.worker", verbose=reporter.verbose, temporary=work, cache=cache
        ) as litert,
    ):
        keep_python = [target.id for target in selection.targets] == ["keras"]
        begun = opening.begin(config.model, found, source, keep_python=keep_python)
        if source.is_running:
            litert.start()
        early = _early(config, found, stage, work, reporter)
        opened = opening.open_source(
            config.model,
            found,
            source,
            work,
            reporter,
            keep_python=keep_python,
            cache=cache,
            begun=begun,
        )
        manifest = describe.manifest_of(config, found, stage, opened)
        job = Job(config, reporter, selection, manifest, stage.folder, work, source, litert, cache)
        if early is not None and early[0] == manifest.ends():
            job.data = early[1]
        else:
            # Samples of other ends, if there are any, must not stay in the bundle.
            remove(stage.folder / Path(bundle.GOLDEN).parent)
        if opened["no_graph"]:
            _keep_python(job, opened["no_graph"])
        manifest, measured = _make(job)
        return _publish(config, reporter, manifest, stage, job.failures, measured)


def _keep_python(job: Job, reason: str) -> None:
    """Leaves the Keras model alone to be made, and says why of each artifact that needs a graph."""
    error = UnsupportedError(
        f"the model runs Python on tensors' values, which no graph holds: {reason}",
        hint="write its call() with keras.ops or TensorFlow operators; as it is, --only keras"
        " packages it for `packager serve`",
    )
    others = [target for target in job.selection.targets if target.id != "keras"]
    if job.selection.explicit and others == list(job.selection.targets):
        raise error
    job.lose(others, error)
    job.selection = as_python(job.selection)


def _early(
    config: Config, found: ModelFile, stage: Staging, work: Path, reporter: Reporter
) -> tuple[Any, Samples] | None:
    """Prepares the samples while TensorFlow starts, so that wrong ones are told at once.

    Returns:
        The ends for which they were prepared, and the samples; None where only TensorFlow can tell
        what the model's ends are.
    """
    described = describe.from_file(found) if found.size_bytes < _LARGE else None
    if described is None:
        return None
    manifest = describe.manifest_of(config, found, stage, described[1])
    place = work / "early"
    place.mkdir()
    return manifest.ends(), _prepare(config, manifest, stage.folder, place, reporter)


def _prepare(
    config: Config, manifest: Manifest, folder: Path, work: Path, reporter: Reporter
) -> Samples:
    with reporter.stage("prepare the samples") as detail:
        data = samples.prepare(config, manifest, folder, work, reporter.warn)
        detail.append(data.summary())
    return data


def _without_tensorflow(
    config: Config, found: ModelFile, selection: Selection
) -> tuple[LayerGraph, dict[str, Any]] | None:
    """The model's layers and ends, where nothing but a TF.js layers model is to be written.

    None where TensorFlow is needed: to verify, for other targets, or to read the file.
    """
    only_layers = [target.id for target in selection.targets] == ["tfjs/layers"]
    return None if config.verify or not only_layers else describe.from_file(found)


def _write_unverified(
    config: Config,
    found: ModelFile,
    stage: Staging,
    graph: LayerGraph,
    ends: dict[str, Any],
    reporter: Reporter,
) -> BuildResult:
    """Publishes a bundle that nothing has run."""
    manifest = describe.manifest_of(config, found, stage, ends)
    with reporter.stage("tfjs/layers") as detail:
        artifact, _ = tfjs.write(graph, config, manifest, stage.folder)
        detail.append(human_size(artifact.size_bytes))
    manifest = replace(manifest, artifacts=(replace(artifact, gate=UNVERIFIED),))
    _write_around(config, manifest, stage.folder)
    return _publish(config, reporter, manifest, stage)


def _make(job: Job) -> tuple[Manifest, dict[str, Any]]:
    """Makes, describes and verifies the artifacts; also returns what the report shows of it."""
    modules = [importlib.import_module(name) for name in job.selection.modules]
    # TensorFlow works on all of this while the samples are prepared here.
    asked = [(module, module.ask(job)) for module in modules]
    data = job.data or _prepare(job.config, job.manifest, job.folder, job.work, job.reporter)
    job.data = data
    source_outputs, answers = _ask_source(job, data)
    for module, pending in asked:
        module.make(job, pending)
    if not job.artifacts:
        raise _nothing_made(job)
    manifest = _describe(job, data)
    inside = _ask_inside(job, data) if job.config.verify else None
    with job.reporter.stage("run the source model"):
        for pending in answers:
            pending.result()
        logits = inside.result() if inside else []
    # The server's engine loads TensorFlow, too; two at once are not needed.
    job.source.close()
    if not job.config.verify:
        return store_golden(manifest, job.folder, source_outputs, data), inside_tflite(job)
    verified = verify_artifacts(
        manifest,
        job.folder,
        job.work,
        source_outputs,
        data,
        job.reporter,
        job.cache,
        job.config.jobs,
    )
    job.failures += [Failure(name, error) for name, error in verified.failures.items()]
    verified = replace(verified, manifest=training_rung.replaced(job, verified.manifest))
    if inside:
        found = Inside(
            folder=job.folder,
            work=job.work,
            inputs=data.golden_inputs,
            layers=json.loads((job.work / tfjs.LAYERS).read_text(encoding="utf-8")),
            logits=logits,
            opened=job.source.again,
            cache=job.cache,
        )
        with job.reporter.stage("look into the TF.js model"):
            verified = replace(verified, manifest=tfjs_check.check(verified.manifest, found))
    with job.reporter.stage("measure for the report"):
        outputs = Measured(verified.manifest, source_outputs, job.work, data)
        measured = {**measure.collect(outputs), **inside_tflite(job)}
    return _without_failed(job, verified.manifest), measured


def _ask_inside(job: Job, data: Samples) -> Pending | None:
    """Asks for the source's logits, which a TF.js layers model is compared with, too."""
    if all(artifact.runtime.kind != tfjs_check.KIND for artifact in job.artifacts):
        return None
    folder = job.work / "logits"
    folder.mkdir()
    return job.source.submit(
        "probe",
        "computing the logits",
        reads=["inputs"],
        writes=[folder],
        inputs=data.golden_inputs,
        outputs=folder,
    )


def _without_failed(job: Job, manifest: Manifest) -> Manifest:
    """Drops the artifacts that could not be run, and keeps the rest."""
    failed = {failure.id for failure in job.failures}
    for artifact in manifest.artifacts:
        if artifact.id in failed:
            target = TARGETS[artifact.id]
            for path in importlib.import_module(target.module).files(job, target):
                remove(path)
    kept = tuple(a for a in manifest.artifacts if a.id not in failed)
    if not kept:
        raise job.failures[0].error
    return replace(manifest, artifacts=kept)


def _ask_source(job: Job, data: Samples) -> tuple[SourceOutputs, list[Pending]]:
    """Asks for the source model's outputs on all samples."""
    outputs = SourceOutputs(
        job.work / "golden-source",
        job.work / "nudged-source",
        job.work / "evaluation-source" if data.evaluation_inputs else None,
    )
    ways = [
        ("predict", data.golden_inputs, outputs.golden),
        ("predict_nudged", data.golden_inputs, outputs.nudged),
        ("predict", data.evaluation_inputs, outputs.evaluation),
    ]
    pending = []
    for method, inputs, folder in ways:
        if inputs is not None and folder is not None:
            folder.mkdir()
            stage = "running the source model"
            asked = job.source.submit(
                method, stage, reads=["inputs"], writes=[folder], inputs=inputs, outputs=folder
            )
            pending.append(asked)
    return outputs, pending


def _describe(job: Job, data: Samples) -> Manifest:
    """Adds what is known before verification, and the files that explain the others."""
    _write_around(job.config, job.manifest, job.folder)
    if any(artifact.runtime.kind == "tflite" for artifact in job.artifacts):
        _copy_edge(job.folder)
    return replace(
        job.manifest,
        artifacts=tuple(job.artifacts),
        refused=tuple(job.refused),
        golden=Golden(bundle.GOLDEN, len(data.golden), data.synthetic),
        calibration=data.calibration,
    )


def _write_around(config: Config, manifest: Manifest, folder: Path) -> None:
    if manifest.labels:
        text = "".join(f"{label}\n" for label in manifest.labels)
        (folder / "labels.txt").write_text(text, encoding="utf-8")
    (folder / "package.yaml").write_text(
        replace(config, version=manifest.version).to_yaml(folder), encoding="utf-8"
    )
    if config.web:
        web.copy_app(web.files(), folder / web.APP)


def _copy_edge(folder: Path) -> None:
    """Puts the device runner into the bundle."""
    target = folder / "edge"
    target.mkdir()
    for path in sorted((assets.path() / "edge").iterdir()):
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def _nothing_made(job: Job) -> PackagerError:
    if job.failures:
        return job.failures[0].error
    first = job.refused[0]
    return UnsupportedError(f"{first.id}: {first.reason}", hint=first.hint)


def _publish(
    config: Config,
    reporter: Reporter,
    manifest: Manifest,
    stage: Staging,
    failures: Sequence[Failure] = (),
    measured: dict[str, Any] | None = None,
) -> BuildResult:
    """Hashes, reports, and gives the bundle its number, or sets it aside."""
    manifest = replace(manifest, files=hashes.hash_bundle(stage.folder))
    manifest = replace(manifest, checksum=hashes.checksum(bundle.to_json(manifest)))
    bundle.write_json(manifest, stage.folder / bundle.MANIFEST)
    report.write(stage.folder, manifest, reporter, measured or {})
    result = BuildResult(stage.target, manifest, tuple(failures))
    if reporter.cache:
        reporter.cache.trim()
    if result.rejected:
        return replace(result, path=publish.reject(stage))
    publish.publish(stage, force=config.force)
    return result


@contextlib.contextmanager
def _storage_errors(output: Path) -> Iterator[None]:
    """Turns the operating system's errors into one that says where and what to do."""
    try:
        yield
    except OSError as error:
        where = error.filename or output
        raise BundleError(
            f"{where}: {error.strerror or error}; nothing was published",
            hint=f"make room or permission below {output} and the folder for temporary files"
            " (TMPDIR), or choose another folder with --output",
        ) from error
