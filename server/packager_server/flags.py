"""The command line: TensorFlow Serving's flag names where it has them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_METRICS_PATH = "/monitoring/prometheus/metrics"


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, received {text!r}")


@dataclass(frozen=True)
class _Flag:
    name: str
    kind: Any
    default: Any
    help: str


# Those of TensorFlow Serving, with its defaults; the host is 127.0.0.1 unless told otherwise.
_FLAGS = (
    _Flag("port", int, 8500, "gRPC port; 0 turns gRPC off"),
    _Flag("rest_api_port", int, 8501, "HTTP port"),
    _Flag("rest_api_timeout_in_ms", int, 30_000, "time limit of a request"),
    _Flag("rest_api_enable_cors_support", _boolean, False, "let pages of other origins call"),
    _Flag("model_name", str, "", "name of the model at --model_base_path"),
    _Flag("model_base_path", str, "", "folder of version folders (a path or gs://)"),
    _Flag("model_config_file", Path, None, "several models (ModelServerConfig, text format)"),
    _Flag("model_config_file_poll_wait_seconds", int, 0, "how often that file is read; 0: once"),
    _Flag("file_system_poll_wait_seconds", float, 1.0, "how often folders are listed; 0: once"),
    _Flag("max_num_load_retries", int, 5, "tries after a load that failed"),
    _Flag("load_retry_interval_micros", int, 60_000_000, "time between them"),
    _Flag("servable_versions_always_present", _boolean, False, "keep the last version"),
    _Flag("allow_version_labels_for_unavailable_models", _boolean, False, "labels before loading"),
    _Flag("enable_model_warmup", _boolean, True, "run assets.extra/tf_serving_warmup_requests"),
    _Flag("enable_batching", _boolean, False, "merge requests"),
    _Flag("batching_parameters_file", Path, None, "BatchingParameters, text format"),
    _Flag("monitoring_config_file", Path, None, "MonitoringConfig: path of the metrics"),
    _Flag("ssl_config_file", Path, None, "SSLConfig: TLS for both ports"),
    _Flag("enable_grpc_healthcheck_service", _boolean, False, "grpc.health.v1"),
    _Flag("saved_model_tags", str, "serve", "tags of the graph, separated by commas"),
    _Flag("tensorflow_session_parallelism", int, 0, "sets both kinds of threads"),
    _Flag("tensorflow_intra_op_parallelism", int, 0, "threads inside an operator"),
    _Flag("tensorflow_inter_op_parallelism", int, 0, "operators at the same time"),
    _Flag("per_process_gpu_memory_fraction", float, 0.0, "share of the GPU's memory"),
)
# Ours alone.
_OWN_FLAGS = (
    _Flag("host", str, "127.0.0.1", "address of both ports; 0.0.0.0 for every network"),
    _Flag("version_transition", str, "availability_preserving", "or resource_preserving"),
    _Flag("gpu_allow_growth", _boolean, False, "take the GPU's memory as needed"),
    _Flag("allow_model_code", _boolean, False, "serve models that are Python code"),
    _Flag("signature_key", Path, None, "public key (PEM) of who must have signed every bundle"),
    _Flag("auth_token_file", Path, None, "bearer tokens, one a line"),
    _Flag("access_log", str, "none", "none, text or json"),
    _Flag("max_body_bytes", int, 64 << 20, "largest body of an HTTP request"),
    _Flag("max_image_pixels", int, 50_000_000, "largest picture of the image endpoint"),
    _Flag("max_connections", int, 1024, "HTTP connections at the same time"),
    _Flag("drain_seconds", float, 0.0, "after SIGTERM: not ready, still answering"),
    _Flag("grace_seconds", float, 30.0, "after that: time for requests to end"),
    _Flag("web_dir", Path, None, "folder of the page at /; default: the web app of a bundle"),
    _Flag("signature_functions", _boolean, False, "use TensorFlow's public call path"),
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser; flags take one or two dashes, `--flag=value` or `--flag value`."""
    made = argparse.ArgumentParser(
        prog="packager_server",
        description="Serves TensorFlow models over TensorFlow Serving's REST and gRPC protocols.",
        epilog="The AIP_* variables of managed prediction services are understood, too.",
        allow_abbrev=False,
    )
    for flag in (*_FLAGS, *_OWN_FLAGS):
        extra: dict[str, Any] = {"nargs": "?", "const": True} if flag.kind is _boolean else {}
        made.add_argument(
            f"--{flag.name}", type=flag.kind, default=flag.default, help=flag.help, **extra
        )
    return made


def environment_flags(environment: Mapping[str, str] | None = None) -> list[str]:
    """Returns the flags that a managed prediction service's variables stand for.

    `AIP_HTTP_PORT` and `AIP_STORAGE_URI`; such a service reaches the container over its network,
    so that the host becomes 0.0.0.0. The routes are read by the application itself.
    """
    environment = os.environ if environment is None else environment
    flags = []
    if "AIP_HTTP_PORT" in environment:
        flags += [f"--rest_api_port={environment['AIP_HTTP_PORT']}", "--host=0.0.0.0"]
    if environment.get("AIP_STORAGE_URI"):
        flags.append(f"--model_base_path={environment['AIP_STORAGE_URI'].rstrip('/')}")
    return flags
