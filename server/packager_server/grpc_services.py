"""TensorFlow Serving's gRPC services over the same core as REST."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import grpc
import numpy as np
from google.protobuf import json_format
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from packager_server import examples_json, text_config
from packager_server.codes import MESSAGE_LIMIT, Code, ServeError
from packager_server.core import Call, ServingCore
from packager_server.model import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    REGRESS_METHOD,
    Array,
    Signature,
    Tensors,
    find_signature,
)
from packager_server.reader import EngineError
from packager_server.saved_model import import_tensorflow
from packager_server.versions import Lease

_STATUS_CODES = {code: status for status in grpc.StatusCode for code in [Code(status.value[0])]}
_SIGNATURE_DEF = "signature_def"
_VERBS = {CLASSIFY_METHOD: "classify", REGRESS_METHOD: "regress"}


class _Rpc:
    """One call: turns errors into gRPC's status and counts the request."""

    def __init__(self, core: ServingCore, entrypoint: str, context: Any) -> None:
        self._core = core
        self._entrypoint = entrypoint
        self._context = context
        self._started = time.monotonic()

    def timeout_s(self, longest_s: float) -> float:
        """Returns the client's deadline, or `longest_s` if that is sooner or the only one."""
        left = self._context.time_remaining()
        return longest_s if left is None else min(left, longest_s)

    @contextlib.contextmanager
    def answering(self, model: str) -> Iterator[None]:
        code = Code.OK
        try:
            yield
        except ServeError as error:
            code = error.code
            self._abort(error)
        finally:
            seconds = time.monotonic() - self._started
            name = self._entrypoint
            self._core.count_request(model, name, "GRPC", code.name, seconds)

    def _abort(self, error: ServeError) -> NoReturn:
        text = error.message
        if len(text) > MESSAGE_LIMIT:
            text = text[:MESSAGE_LIMIT] + "...TRUNCATED"
        self._context.abort(_STATUS_CODES[error.code], text)
        raise error  # not reached: abort raises


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):  # type: ignore[misc]
    """Predict, Classify, Regress, MultiInference, GetModelMetadata."""

    def __init__(self, core: ServingCore, timeout_s: float) -> None:
        self._core = core
        self._timeout_s = timeout_s
        self._tf = import_tensorflow()

    def Predict(self, request: Any, context: Any) -> Any:
        """Runs a signature on tensors."""
        rpc = _Rpc(self._core, "Predict", context)
        with rpc.answering(request.model_spec.name):
            lease = _lease(self._core, request)
            version = lease.version
            with _released_on_error(lease):
                signature = _predict_signature(lease, request.model_spec.signature_name)
                inputs = {name: _array(self._tf, proto) for name, proto in request.inputs.items()}
                signature.check_inputs(inputs)
                signature.check_outputs(request.output_filter)
                outputs = tuple(request.output_filter) or tuple(signature.outputs)
                call = Call(lease, signature, inputs, outputs, api="Predict")
            found = self._core.run(call, rpc.timeout_s(self._timeout_s))
            answer = predict_pb2.PredictResponse()
            _describe(answer.model_spec, request.model_spec.name, signature.name, version)
            for name, value in found.items():
                answer.outputs[name].CopyFrom(self._tf.make_tensor_proto(value))
            return answer

    def Classify(self, request: Any, context: Any) -> Any:
        """Classifies examples."""
        rpc = _Rpc(self._core, "Classify", context)
        with rpc.answering(request.model_spec.name):
            answer = classification_pb2.ClassificationResponse()
            self._examples(rpc, request, "classify", answer, answer.result)
            return answer

    def Regress(self, request: Any, context: Any) -> Any:
        """Regresses examples."""
        rpc = _Rpc(self._core, "Regress", context)
        with rpc.answering(request.model_spec.name):
            answer = regression_pb2.RegressionResponse()
            self._examples(rpc, request, "regress", answer, answer.result)
            return answer

    def _examples(self, rpc: _Rpc, request: Any, verb: str, answer: Any, result: Any) -> None:
        examples = _serialized_examples(request.input)
        lease = _lease(self._core, request)
        version = lease.version
        signature = self._run_examples(rpc, lease, request, verb, examples, result)
        _describe(answer.model_spec, request.model_spec.name, signature.name, version)

    def _run_examples(
        self, rpc: _Rpc, lease: Lease, task: Any, verb: str, examples: Array, result: Any
    ) -> Signature:
        """Runs one signature on examples and fills `result`; the lease ends with it."""
        with _released_on_error(lease):
            signature = find_signature(lease.model, task.model_spec.signature_name, method=verb)
            outputs = examples_json.check_signature(signature, verb)
            inputs = {examples_json.INPUT: examples}
            call = Call(lease, signature, inputs, outputs, api=verb.capitalize())
        found = self._core.run(call, rpc.timeout_s(self._timeout_s))
        _fill(verb, found, len(examples), result)
        return signature

    def MultiInference(self, request: Any, context: Any) -> Any:
        """Runs several classify and regress signatures of one version on the same examples."""
        rpc = _Rpc(self._core, "MultiInference", context)
        names = {task.model_spec.name for task in request.tasks}
        with rpc.answering(next(iter(names), "")):
            _check_tasks(request.tasks, names)
            examples = _serialized_examples(request.input)
            answer = inference_pb2.MultiInferenceResponse()
            lease = _lease(self._core, request.tasks[0])
            try:
                for task in request.tasks:
                    verb = _VERBS[task.method_name]
                    entry = answer.results.add()
                    field = "classification_result" if verb == "classify" else "regression_result"
                    result = getattr(entry, field)
                    signature = self._run_examples(rpc, lease.share(), task, verb, examples, result)
                    name = task.model_spec.name
                    _describe(entry.model_spec, name, signature.name, lease.version)
            finally:
                lease.release()
            return answer

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """Answers the signatures of a version."""
        rpc = _Rpc(self._core, "GetModelMetadata", context)
        with rpc.answering(request.model_spec.name):
            _check_fields(request.metadata_field)
            lease = _lease(self._core, request)
            try:
                answer = get_model_metadata_pb2.GetModelMetadataResponse()
                _describe(answer.model_spec, request.model_spec.name, "", lease.version)
                definitions = get_model_metadata_pb2.SignatureDefMap()
                json_format.ParseDict({_SIGNATURE_DEF: lease.model.metadata()}, definitions)
                answer.metadata[_SIGNATURE_DEF].Pack(definitions)
                return answer
            finally:
                lease.release()


class ModelService(model_service_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, core: ServingCore) -> None:
        self._core = core

    def GetModelStatus(self, request: Any, context: Any) -> Any:
        """Answers the state of each version."""
        rpc = _Rpc(self._core, "GetModelStatus", context)
        with rpc.answering(request.model_spec.name):
            spec = _spec(request)
            version = spec.version.value if spec.HasField("version") else None
            answer = get_model_status_pb2.GetModelStatusResponse()
            for one in self._core.versions.status(spec.name, version):
                entry = answer.model_version_status.add(version=one.version)
                entry.state = entry.State.Value(one.state)
                entry.status.error_code = int(one.code)
                entry.status.error_message = one.message
            return answer

    def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Replaces the list of models; what went wrong stands in the answer's status."""
        answer = model_management_pb2.ReloadConfigResponse()
        try:
            self._core.versions.reload(_reload_configs(request.config))
        except ServeError as error:
            answer.status.error_code = int(error.code)
            answer.status.error_message = error.message
        return answer


def _reload_configs(config: Any) -> Any:
    if config.WhichOneof("config") != "model_config_list":
        raise ServeError("ServerCore expects a model_config_list to reload")
    try:
        return text_config.models_from(config)
    except EngineError as error:
        raise ServeError(str(error)) from error


@contextlib.contextmanager
def _released_on_error(lease: Lease) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lease.release()
        raise


def _spec(request: Any) -> Any:
    if not request.HasField("model_spec"):
        raise ServeError("Missing ModelSpec")
    if not request.model_spec.name:
        raise ServeError("ModelSpec has no name specified.")
    return request.model_spec


def _lease(core: ServingCore, request: Any) -> Lease:
    spec = _spec(request)
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    label = spec.version_label if choice == "version_label" else None
    return core.versions.acquire(spec.name, version, label)


def _predict_signature(lease: Lease, name: str) -> Signature:
    name = name or DEFAULT_SIGNATURE
    if name not in lease.model.signatures:
        message = f'Serving signature key "{name}" not found.'
        raise ServeError(message, Code.FAILED_PRECONDITION)
    return lease.model.signatures[name]


def _array(tensorflow: Any, proto: Any) -> Array:
    try:
        value: Array = tensorflow.make_ndarray(proto)
    # Protobuf messages of any content come in; TensorFlow answers them with many types.
    except Exception as error:
        raise ServeError(f"a TensorProto cannot be read: {error}") from error
    return value


def _describe(spec: Any, name: str, signature: str, version: int) -> None:
    spec.name = name
    spec.signature_name = signature
    spec.version.value = version


def _check_fields(fields: Any) -> None:
    if not fields:
        raise ServeError("GetModelMetadataRequest must specify at least one metadata_field")
    for field in fields:
        if field != _SIGNATURE_DEF:
            raise ServeError(f"Metadata field {field} is not supported")


def _check_tasks(tasks: Any, names: set[str]) -> None:
    if not tasks:
        raise ServeError("Inference request must contain at least one task: it is empty")
    seen: set[str] = set()
    for task in tasks:
        _spec(task)
        signature = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if len(names) != 1:
            raise ServeError(
                "All ModelSpecs in a MultiInferenceRequest must access the same model, received "
                f"{sorted(names)}"
            )
        if signature in seen:
            raise ServeError(f"Duplicate evaluation of signature: {signature}")
        if task.method_name not in _VERBS:
            message = f"Unsupported signature method_name: {task.method_name}"
            raise ServeError(message, Code.UNIMPLEMENTED)
        seen.add(signature)


def _serialized_examples(given: Any) -> Array:
    kind = given.WhichOneof("kind")
    if kind == "example_list":
        found = [one.SerializeToString() for one in given.example_list.examples]
    elif kind == "example_list_with_context":
        listed = given.example_list_with_context
        context = listed.context.SerializeToString()
        # Two serialized messages in a row are their merged message.
        found = [one.SerializeToString() + context for one in listed.examples]
    else:
        found = []
    if not found:
        raise ServeError("Input is empty.")
    examples = np.empty(len(found), object)
    examples[:] = found
    return examples


def _fill(verb: str, outputs: Tensors, count: int, result: Any) -> None:
    if verb == "regress":
        for value in examples_json.regressions(outputs, count).tolist():
            result.regressions.add(value=value)
        return
    for classes in examples_json.classifications(outputs, count):
        entry = result.classifications.add()
        for label, score in classes:
            entry.classes.add(label=label.decode("utf-8", "replace"), score=score)
