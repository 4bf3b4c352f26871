"""Opens a version folder: chooses the engine, checks a bundle's files, warms the model up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager_server import eager_model, saved_model, signature, storage
from packager_server.codes import Code, ServeError
from packager_server.lifecycle import Loaded, ModelConfig
from packager_server.metrics import Metrics
from packager_server.model import Model, find_signature
from packager_server.reader import EngineError, Json, check_files, read_manifest
from packager_server.saved_model import LoadOptions

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
MAX_WARMUP_RECORDS = 1000
# What the engines read of a bundle; its other files are for devices and browsers.
_READ = ("saved_model.pb", "variables/", "assets/", "assets.extra/", "keras/")


@dataclass(frozen=True)
class VersionLoader:
    """Loads one version of a model.

    Attributes:
        options: How TensorFlow runs it.
        metrics: Where the warm-up is counted.
        warmup: Whether the recorded requests are run before the version counts as loaded.
        allow_code: Whether a model may be Python code.
        key: The public key of who must have signed every bundle; see signature.py.
    """

    options: LoadOptions
    metrics: Metrics
    warmup: bool = True
    allow_code: bool = False
    key: Any = None

    def __call__(self, config: ModelConfig, number: int, path: str) -> Loaded:
        """Returns the model in the folder `path`, warmed up.

        Raises:
            ServeError: Files of a bundle are missing, changed or not signed, or a warm-up request
                failed.
            Exception: Whatever TensorFlow raises for a damaged SavedModel.
        """
        if self.key is not None:
            # A remote folder has no manifest here, and is refused.
            signature.check(Path(path), self.key)
        manifest = check_bundle(path)
        model = self._open(path, manifest)
        try:
            if self.warmup:
                self._warm_up(model, path)
        except BaseException:
            model.close()
            raise
        return Loaded(model, manifest)

    def _open(self, path: str, manifest: Json) -> Model:
        # A graph is faster and runs on every machine: it comes first.
        graph = storage.exists(f"{path.rstrip('/')}/saved_model.pb")
        if not graph and eager_model.artifact(manifest) is not None:
            return eager_model.load(path, manifest, allow_code=self.allow_code)
        return saved_model.load(path, self.options)

    def _warm_up(self, model: Model, path: str) -> None:
        started, count, status = time.monotonic(), 0, "success"
        try:
            for record in _warmup_records(path):
                count += 1
                _replay(model, record)
        except ServeError as error:
            status = "failure"
            raise ServeError(
                f"warm-up request {count} failed: {error.message}", error.code
            ) from error
        finally:
            if count:
                self.metrics.warmup(path, status, count, time.monotonic() - started)


def check_bundle(path: str) -> Json:
    """Compares a bundle's files with its manifest; a folder without one is not looked at.

    Returns:
        The manifest; empty without one.

    Raises:
        ServeError: A file is missing or changed: perhaps the folder is still being copied.
    """
    if storage.is_remote(path) or not (Path(path) / "manifest.json").is_file():
        return {}
    try:
        manifest = read_manifest(Path(path))
    except EngineError as error:
        raise ServeError(str(error), Code.DATA_LOSS) from error
    files = manifest.get("files") or {}
    own = {name: entry for name, entry in files.items() if name.startswith(_READ)}
    problems = check_files(Path(path), own)["problems"]
    if problems:
        first = problems[0]
        raise ServeError(
            f"{path}: {first['path']} is {first['problem']} (of {len(problems)} such files): copy "
            "the bundle to a name that is no number, then rename it",
            Code.DATA_LOSS,
        )
    return manifest


def _warmup_records(path: str) -> Iterator[Any]:
    tensorflow = saved_model.import_tensorflow()
    file = f"{path.rstrip('/')}/{WARMUP_FILE}"
    if not tensorflow.io.gfile.exists(file):
        return
    from tensorflow_serving.apis import prediction_log_pb2

    dataset = tensorflow.data.TFRecordDataset(file).take(MAX_WARMUP_RECORDS + 1)
    for index, record in enumerate(dataset):
        if index == MAX_WARMUP_RECORDS:
            raise ServeError(f"{file}: more than {MAX_WARMUP_RECORDS} records")
        yield prediction_log_pb2.PredictionLog.FromString(record.numpy())


def _replay(model: Model, record: Any) -> None:
    kind = record.WhichOneof("log_type")
    if kind != "predict_log":
        raise ServeError(f"unsupported log type: {kind}", Code.UNIMPLEMENTED)
    tensorflow = saved_model.import_tensorflow()
    request = record.predict_log.request
    signature = find_signature(model, request.model_spec.signature_name)
    inputs = {name: tensorflow.make_ndarray(proto) for name, proto in request.inputs.items()}
    signature.check_inputs(inputs)
    outputs = tuple(request.output_filter) or tuple(signature.outputs)
    model.run(signature.name, inputs, outputs)
