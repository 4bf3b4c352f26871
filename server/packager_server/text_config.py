"""Reads TensorFlow Serving's configuration files, which are protobuf messages in text format.

`tensorflow-serving-api` carries the message of the model list. Those of the batching, monitoring
and TLS files are not in it: they are described here, and protobuf's own reader does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from tensorflow_serving.config import model_server_config_pb2

from packager_server.lifecycle import ModelConfig
from packager_server.reader import EngineError
from packager_server.scheduler import Batching
from packager_server.storage import VersionPolicy

_PACKAGE = "packager_server.config"
# A wrapped number: `max_batch_size { value: 32 }`.
_WRAPPED = {"value": "int64"}
_MESSAGES: dict[str, dict[str, str]] = {
    "Int64Value": _WRAPPED,
    "StringValue": {"value": "string"},
    "BatchingParameters": {
        "max_batch_size": "Int64Value",
        "batch_timeout_micros": "Int64Value",
        "max_enqueued_batches": "Int64Value",
        "num_batch_threads": "Int64Value",
        "thread_pool_name": "StringValue",
        "allowed_batch_sizes": "repeated int64",
        "pad_variable_length_inputs": "bool",
    },
    "PrometheusConfig": {"enable": "bool", "path": "string"},
    "MonitoringConfig": {"prometheus_config": "PrometheusConfig"},
    "SSLConfig": {
        "server_key": "string",
        "server_cert": "string",
        "custom_ca": "string",
        "client_verify": "bool",
    },
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"int64": _FIELD.TYPE_INT64, "string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL}


def _message_types() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            *repeated, base = kind.split()
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            entry = message.field.add(name=field, number=number, label=label)
            if base in _SCALARS:
                entry.type = _SCALARS[base]
            else:
                entry.type, entry.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_TYPES = _message_types()


def _read(path: Path, message: Any) -> Any:
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), message)
    except OSError as error:
        raise EngineError(f"{path}: cannot be read: {error.strerror}", exit_code=2) from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        message = f"{path}: not the expected protobuf text: {error}"
        raise EngineError(message, exit_code=2) from error


def read_models(path: Path) -> list[ModelConfig]:
    """Returns the models of a `--model_config_file`.

    Raises:
        EngineError: It cannot be read or names something that this server has not.
    """
    return models_from(_read(path, model_server_config_pb2.ModelServerConfig()))


def models_from(config: Any) -> list[ModelConfig]:
    """Returns the models of a `ModelServerConfig` message.

    Raises:
        EngineError: A custom configuration, another platform, or a name that is missing or used
            twice.
    """
    if config.WhichOneof("config") == "custom_model_config":
        raise EngineError(
            "custom_model_config is not supported: use model_config_list", exit_code=2
        )
    found = [_model(entry) for entry in config.model_config_list.config]
    names = [one.name for one in found]
    if len(set(names)) != len(names):
        raise EngineError(f"a model name is used twice: {sorted(names)}", exit_code=2)
    return found


def _model(entry: Any) -> ModelConfig:
    if not entry.name or not entry.base_path:
        raise EngineError("every model needs a name and a base_path", exit_code=2)
    if entry.model_platform not in ("", "tensorflow"):
        raise EngineError(
            f"model {entry.name!r}: the platform {entry.model_platform!r} is not supported, only "
            "'tensorflow'",
            exit_code=2,
        )
    return ModelConfig(
        entry.name, entry.base_path, _policy(entry.model_version_policy), dict(entry.version_labels)
    )


def _policy(policy: Any) -> VersionPolicy:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy("all")
    if kind == "specific":
        return VersionPolicy("specific", versions=tuple(policy.specific.versions))
    return VersionPolicy("latest", count=policy.latest.num_versions or 1)


def read_batching(path: Path | None, threads: int) -> Batching:
    """Returns the parameters in a `--batching_parameters_file`, or the defaults.

    Raises:
        EngineError: It cannot be read, or its numbers contradict each other.
    """
    message = _TYPES["BatchingParameters"]()
    if path is not None:
        _read(path, message)

    def number(name: str, default: int) -> int:
        return int(getattr(message, name).value) if message.HasField(name) else default

    batching = Batching(
        enabled=True,
        max_batch_size=number("max_batch_size", 64),
        batch_timeout_s=number("batch_timeout_micros", 0) / 1e6,
        max_enqueued_batches=number("max_enqueued_batches", 100),
        num_batch_threads=number("num_batch_threads", threads),
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pad_variable_length_inputs=message.pad_variable_length_inputs,
    )
    _check_batching(path, batching)
    return batching


def _check_batching(path: Path | None, batching: Batching) -> None:
    sizes = batching.allowed_batch_sizes
    problems = {
        "max_batch_size, max_enqueued_batches and num_batch_threads must be positive": min(
            batching.max_batch_size, batching.max_enqueued_batches, batching.num_batch_threads
        )
        < 1,
        "batch_timeout_micros must not be negative": batching.batch_timeout_s < 0,
        "allowed_batch_sizes must rise": list(sizes) != sorted(set(sizes)),
        "the last of allowed_batch_sizes must be max_batch_size": bool(sizes)
        and sizes[-1] != batching.max_batch_size,
    }
    _raise_first(path, problems.items())


def _raise_first(path: Path | None, problems: Iterable[tuple[str, bool]]) -> None:
    for text, present in problems:
        if present:
            raise EngineError(f"{path}: {text}", exit_code=2)


def read_metrics_path(path: Path) -> str | None:
    """Returns the metrics' URL path of a `--monitoring_config_file`; None turns them off."""
    config = _read(path, _TYPES["MonitoringConfig"]()).prometheus_config
    if not config.enable:
        return None
    return config.path or "/monitoring/prometheus/metrics"


def read_tls(path: Path) -> dict[str, Any]:
    """Returns the fields of an `--ssl_config_file`, as `tls.Tls` takes them."""
    message = _read(path, _TYPES["SSLConfig"]())
    if not (message.server_key and message.server_cert):
        raise EngineError(f"{path}: server_key and server_cert are needed", exit_code=2)
    return {field: getattr(message, field) for field in _MESSAGES["SSLConfig"]}
