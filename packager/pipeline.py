"""The pipeline: open -> convert -> quantize -> describe -> verify -> gate -> publish."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import packager
from packager import assets, bundle, declare, publish, report, samples
from packager.bundle import Artifact, Golden, Manifest, Refusal, Runtime
from packager.children import Child, Pending, scratch
from packager.config import Config
from packager.console import Reporter, human_size
from packager.errors import (
    BundleError,
    ChildCrashed,
    GateFailed,
    PackagerError,
    UnsupportedError,
)
from packager.labels import check_labels, read_labels
from packager.loaders import layer_graph
from packager.loaders.model_file import ModelFile, identify
from packager.publish import Staging
from packager.samples import Samples
from packager.targets import Selection, Target, saved_model, select, tfjs_layers, tflite
from packager.verify.check import SourceOutputs, verify_artifacts

# The version that web/package-lock.json pins and that verification runs.
TFJS_VERSION = "4.22.0"


@dataclass(frozen=True)
class Failure:
    """An artifact that could not be made or verified."""

    id: str
    error: PackagerError


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
    selection = select(config.targets, calibrated=config.calibration is not None)
    with reporter.stage("recognise the model") as detail:
        found = identify(config.model.source, allow_unsafe_code=config.model.allow_unsafe_code)
        detail.append(f"{found.format}, {found.saved_by}, {human_size(found.size_bytes)}")
    name = config.name or found.name
    version = None if config.version == "next" else config.version
    with (
        _storage_errors(Path(config.output)),
        publish.staging(Path(config.output) / name, version, force=config.force) as stage,
        scratch("build") as work,
        Child("packager.loaders.worker", verbose=reporter.verbose) as source,
        Child("packager.quantize.worker", verbose=reporter.verbose) as litert,
    ):
        job = _Job(config, reporter, selection, found, name, stage, work, source, litert)
        manifest = job.make()
        return _publish(job, manifest)


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


@dataclass
class _Job:
    """One build under way: its inputs, folders, child processes, and what it has made."""

    config: Config
    reporter: Reporter
    selection: Selection
    found: ModelFile
    name: str
    stage: Staging
    work: Path
    source: Child
    litert: Child
    artifacts: list[Artifact] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def make(self) -> Manifest:
        """Runs all stages but publishing."""
        with self.reporter.stage("open it in TensorFlow"):
            manifest = self._open()
        asked = self._ask_tensorflow()
        with self.reporter.stage("prepare the samples") as detail:
            data = samples.prepare(
                self.config, manifest, self.stage.folder, self.work, self.reporter.warn
            )
            detail.append(data.summary())
        outputs = _SourceOutputs(self.source, data, self.work)
        self._make_saved_model(asked, manifest, data)
        self._make_tflite(asked, manifest, data)
        self._make_tfjs(asked, manifest)
        if not self.artifacts:
            raise self._nothing_made()
        manifest = self._describe(manifest, data)
        with self.reporter.stage("run the source model"):
            outputs.wait()
        return self._verify(manifest, data, outputs)

    def _open(self) -> Manifest:
        model = self.config.model
        opened = self.source.call(
            "open",
            "opening the model",
            source=self.found.source,
            format=self.found.format,
            saved_by=self.found.saved_by,
            signature=model.signature,
            custom_objects=list(model.custom_objects),
            allow_unsafe_code=model.allow_unsafe_code,
            keep=True,
        )
        declared = declare.declare(
            opened,
            task=self.config.task,
            threshold=self.config.threshold,
            labels=self._labels(),
            preprocess=self.config.preprocess,
        )
        check_labels(
            list(declared.labels), [bundle.to_json(o) for o in declared.outputs], declared.task
        )
        is_path = self.found.format != "callable"
        file = Path(self.found.source).resolve().name if is_path else self.found.source
        return Manifest(
            name=self.name,
            version=self.stage.version,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            source=bundle.Source(file, self.found.sha256, self.found.format, opened["saved_by"]),
            task=declared.task,
            threshold=declared.threshold,
            inputs=declared.inputs,
            outputs=declared.outputs,
            labels=declared.labels,
            gates=self.config.gates,
            tools={
                "packager": packager.__version__,
                "python": platform.python_version(),
                **opened["tools"],
            },
        )

    def _labels(self) -> tuple[str, ...]:
        labels = self.config.labels
        return tuple(read_labels(Path(labels))) if isinstance(labels, str) else tuple(labels or ())

    @property
    def _ranges(self) -> Path:
        return self.work / "ranges.json"

    def _ask_tensorflow(self) -> dict[str, Pending]:
        """Asks the TensorFlow child for what only it can do; the answers are taken later."""
        asked = {}
        if self.selection.of("tflite"):
            asked["tflite"] = self.source.submit(
                "convert_tflite",
                "converting tflite/float32",
                path=self.work / "converter.tflite",
                input_shapes={k: list(v) for k, v in self.config.model.input_shape.items()},
            )
        if self.selection.of("tfjs"):
            asked["tfjs"] = self.source.submit(
                "write_layer_graph", "describing the layers", folder=self.work / "layers"
            )
        if self.selection.of("saved_model"):
            asked["saved_model"] = self.source.submit(
                "write_saved_model", "writing the SavedModel", folder=self.stage.folder
            )
        return asked

    @contextlib.contextmanager
    def _making(self, targets: Sequence[Target], stage: str) -> Iterator[list[str]]:
        """Turns an error into a refusal or failure of these targets, and goes on."""
        try:
            with self.reporter.stage(stage) as detail:
                yield detail
        except PackagerError as error:
            for target in targets:
                self._lost(target, error)

    def _lost(self, target: Target, error: PackagerError) -> None:
        refused = isinstance(error, UnsupportedError)
        if refused:
            self.refused.append(Refusal(target.id, error.message, error.hint))
        if not refused or self.selection.explicit:
            self.failures.append(Failure(target.id, error))
        self.reporter.warn(f"{target.id} {'refused' if refused else 'failed'}: {error.message}")

    def _make_saved_model(
        self, asked: dict[str, Pending], manifest: Manifest, data: Samples
    ) -> None:
        targets = self.selection.of("saved_model")
        if not targets:
            return
        with self._making(targets, "SavedModel") as detail:
            asked["saved_model"].result()
            self.source.call(
                "write_warmup",
                "writing warm-up requests",
                folder=self.stage.folder,
                model_name=self.name,
                samples=data.golden_inputs,
            )
            artifact = saved_model.artifact(self.stage.folder, manifest.tools["tensorflow"])
            detail.append(human_size(artifact.size_bytes))
            self.artifacts.append(artifact)

    def _make_tflite(self, asked: dict[str, Pending], manifest: Manifest, data: Samples) -> None:
        targets = self.selection.of("tflite")
        if not targets:
            return
        base = self.work / f"{self.name}.float32.tflite"
        with self._making(targets, "convert to TFLite") as detail:
            ends = asked["tflite"].result()
            described = self.litert.call(
                "complete",
                "completing tflite/float32",
                source=self.work / "converter.tflite",
                target=base,
                **ends,
            )
            detail.append(human_size(base.stat().st_size))
        if not base.exists():
            return
        if any(t.calibrated for t in targets):
            calibrated = [t for t in targets if t.calibrated]
            constant: list[str] = []
            with self._making(calibrated, "calibrate") as detail:
                constant = self.litert.call(
                    "calibrate",
                    "calibrating",
                    model=base,
                    samples=data.calibration_inputs,
                    ranges=self._ranges,
                )
                detail.append("true minimum and maximum of every tensor")
            if constant:
                self.reporter.warn(
                    f"{len(constant)} tensors never change over the calibration samples (the first:"
                    f" {constant[0]}); integer files are right only where that stays so"
                )
        lost = {failure.id for failure in self.failures}
        for target in targets:
            if target.id not in lost:
                self._make_variant(target, base, described)

    def _make_variant(self, target: Target, base: Path, described: dict[str, Any]) -> None:
        path = self.stage.folder / "tflite" / f"{self.name}.{target.mode}.tflite"
        path.parent.mkdir(exist_ok=True)
        with self._making([target], target.id) as detail:
            if target.mode == "float32":
                path.write_bytes(base.read_bytes())
            else:
                described = self.litert.call(
                    "quantize",
                    f"quantizing {target.id}",
                    model=base,
                    target=path,
                    mode=target.mode,
                    ranges=self._ranges if target.calibrated else None,
                )
            artifact = tflite.artifact(self.name, target.mode, path, described)
            detail.append(human_size(artifact.size_bytes))
            if target.calibrated:
                detail.append(f"{described['integer_op_share']:.0%} integer operators")
            self.artifacts.append(artifact)

    def _make_tfjs(self, asked: dict[str, Pending], manifest: Manifest) -> None:
        targets = self.selection.of("tfjs")
        if not targets:
            return
        with self._making(targets, "tfjs/layers") as detail:
            if not asked["tfjs"].result():
                raise UnsupportedError(
                    f"{manifest.source.file} has no Keras layers, so the TF.js layers format"
                    " cannot hold it",
                    hint="give the .keras file that it was exported from",
                )
            written = tfjs_layers.write(
                layer_graph.load(self.work / "layers"),
                self.stage.folder / "tfjs" / "layers",
                card=manifest.card(),
            )
            artifact = Artifact(
                id="tfjs/layers",
                path=written.model_json.relative_to(self.stage.folder).as_posix(),
                runtime=Runtime("tfjs-layers", {"@tensorflow/tfjs": TFJS_VERSION}),
                size_bytes=written.size_bytes,
            )
            detail.append(human_size(artifact.size_bytes))
            self.artifacts.append(artifact)

    def _describe(self, manifest: Manifest, data: Samples) -> Manifest:
        """Adds what is known before verification, and what explains the files."""
        folder = self.stage.folder
        manifest = replace(
            manifest,
            artifacts=tuple(self.artifacts),
            refused=tuple(self.refused),
            golden=Golden(bundle.GOLDEN, len(data.golden), data.synthetic),
            calibration=data.calibration,
        )
        files = [str(folder / a.path) for a in self.artifacts if a.runtime.kind == "tflite"]
        self.litert.call("embed_card", "embedding the card", paths=files, card=manifest.card())
        (folder / "package.yaml").write_text(self.config.to_yaml(), encoding="utf-8")
        if manifest.labels:
            text = "".join(f"{label}\n" for label in manifest.labels)
            (folder / "labels.txt").write_text(text, encoding="utf-8")
        if files:
            _copy_edge(folder)
        return manifest

    def _verify(self, manifest: Manifest, data: Samples, outputs: _SourceOutputs) -> Manifest:
        verified = verify_artifacts(
            manifest,
            self.stage.folder,
            self.work,
            SourceOutputs(outputs.golden, outputs.evaluation),
            data,
            self.reporter,
        )
        self.failures += [Failure(name, error) for name, error in verified.failures.items()]
        return verified.manifest

    def _nothing_made(self) -> PackagerError:
        if self.failures:
            return self.failures[0].error
        first = self.refused[0]
        return UnsupportedError(f"{first.id}: {first.reason}", hint=first.hint)


class _SourceOutputs:
    """The source model's outputs on all samples, being computed in the TensorFlow child."""

    def __init__(self, source: Child, data: Samples, work: Path) -> None:
        self.golden = work / "golden-source"
        self.evaluation = work / "evaluation-source" if data.evaluation_inputs else None
        self._source = source
        self._ways = [(data.golden_inputs, self.golden)]
        if data.evaluation_inputs and self.evaluation:
            self._ways.append((data.evaluation_inputs, self.evaluation))
        self._pending = self._ask()

    def wait(self) -> None:
        """Waits for them; asks once more if a conversion took the child down with it."""
        try:
            for pending in self._pending:
                pending.result()
        except ChildCrashed:
            for pending in self._ask():
                pending.result()

    def _ask(self) -> list[Pending]:
        asked = []
        for inputs, outputs in self._ways:
            outputs.mkdir(exist_ok=True)
            stage = "running the source model"
            asked.append(self._source.submit("predict", stage, inputs=inputs, outputs=outputs))
        return asked


def _copy_edge(folder: Path) -> None:
    """Puts the device runner into the bundle."""
    target = folder / "edge"
    target.mkdir()
    for path in sorted((assets.path() / "edge").iterdir()):
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def _publish(job: _Job, manifest: Manifest) -> BuildResult:
    """Hashes, reports, and gives the bundle its number, or sets it aside."""
    folder = job.stage.folder
    manifest = replace(manifest, files=bundle.hash_bundle(folder))
    bundle.write_json(manifest, folder / bundle.MANIFEST)
    report.write(folder, manifest, job.reporter)
    result = BuildResult(job.stage.target, manifest, tuple(job.failures))
    if result.rejected:
        return replace(result, path=publish.reject(job.stage))
    publish.publish(job.stage, force=job.config.force)
    return result
