"""Starts everything in one process: models, HTTP, gRPC; ends it without losing a request."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Flask

from packager_server import flags, saved_model, signature, text_config
from packager_server.access import AccessLog
from packager_server.asgi import HttpLimits, ServingApp
from packager_server.codes import ServeError
from packager_server.core import ServingCore
from packager_server.flask_app import Pages, Readiness, create_app, probes
from packager_server.guard import OPEN_PATHS, Guard
from packager_server.images import ImageLimits, ImageService
from packager_server.lifecycle import Lifecycle, ModelConfig
from packager_server.loader import VersionLoader
from packager_server.reader import EngineError
from packager_server.rest import Aliases, RestApi
from packager_server.saved_model import LoadOptions
from packager_server.scheduler import Batching
from packager_server.storage import VersionPolicy
from packager_server.tls import Tls, private_folder

log = logging.getLogger("packager_server")

_SMALLEST_BACKLOG = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server until it is told to end; returns the exit code."""
    given = [*flags.environment_flags(), *(sys.argv[1:] if argv is None else argv)]
    arguments = flags.parser().parse_args(given)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        return Server(arguments).run()
    except EngineError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def wsgi_app(*arguments: str) -> Flask:
    """Returns the application for another WSGI server, which runs it in one process.

        gunicorn -k gthread -w 1 'packager_server.server:wsgi_app("--model_base_path=/models/m")'

    Args:
        arguments: As on the command line; those about ports, TLS and draining mean nothing here.
    """
    given = [*flags.environment_flags(), *arguments]
    return Server(flags.parser().parse_args(given)).wsgi_app()


class Server:
    """The process: built from the command line, run until a signal."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._configs = _models(arguments)
        self._tls = None
        if arguments.ssl_config_file is not None:
            self._tls = Tls(**text_config.read_tls(arguments.ssl_config_file))
        self._tokens = _tokens(arguments.auth_token_file)
        options = _load_options(arguments)
        key = arguments.signature_key and signature.load_key(arguments.signature_key)
        self._core = ServingCore(
            lambda metrics: VersionLoader(
                options, metrics, arguments.enable_model_warmup, arguments.allow_model_code, key
            ),
            lifecycle=_lifecycle(arguments),
            batching=_batching(arguments),
        )
        self._readiness = Readiness(self._core)
        self._grpc: Any = None
        self._timeout_s = arguments.rest_api_timeout_in_ms / 1000
        self._aliases = Aliases(
            model=self._configs[0].name if self._configs else "",
            predict=os.environ.get("AIP_PREDICT_ROUTE", ""),
            health=os.environ.get("AIP_HEALTH_ROUTE", ""),
        )
        open_paths = (*OPEN_PATHS, *filter(None, [self._aliases.health]))
        self._guard = Guard(self._tokens, arguments.rest_api_enable_cors_support, open_paths)
        self._api = RestApi(self._core, timeout_s=self._timeout_s, aliases=self._aliases)

    def flask_app(self, guard: Guard | None = None) -> Flask:
        """Returns the Flask application; `guard` checks its requests where nothing else does."""
        arguments = self._arguments
        image_limits = ImageLimits(max_pixels=arguments.max_image_pixels)
        pages = Pages(
            metrics_path=_metrics_path(arguments),
            web_dir=arguments.web_dir,
            max_body_bytes=arguments.max_body_bytes,
        )
        return create_app(
            self._core,
            self._api,
            ImageService(self._core, timeout_s=self._timeout_s, limits=image_limits),
            pages=pages,
            aliases=self._aliases,
            readiness=self._readiness,
            guard=guard,
        )

    def wsgi_app(self) -> Flask:
        """Begins to load the models and returns the application for another WSGI server."""
        self._core.start(self._configs)
        return self.flask_app(self._guard)

    def _application(self) -> ServingApp:
        arguments = self._arguments
        access_log = None
        if arguments.access_log != "none":
            access_log = AccessLog(as_json=arguments.access_log == "json")
        limits = HttpLimits(max_body_bytes=arguments.max_body_bytes)
        return ServingApp(
            self._core,
            self._api,
            self.flask_app(),
            guard=self._guard,
            limits=limits,
            access_log=access_log,
            probes=probes(self._readiness, self._aliases),
        )

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT, then drains; returns the exit code."""
        self._app = self._application()
        try:
            import uvloop
        except ImportError:  # not on every platform; slower without it
            asyncio.run(self._serve())
        else:
            uvloop.run(self._serve())
        self._core.stop()
        log.info("stopped")
        return 0

    async def _serve(self) -> None:
        with private_folder() as folder:
            files = self._tls.as_files(Path(folder)) if self._tls else {}
            await self._serve_with(self._http_server(files))

    async def _serve_with(self, http: Any) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        serving = asyncio.ensure_future(http.serve())
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        ending = asyncio.ensure_future(stop.wait())
        try:
            await _first(starting, serving, ending)
            await _first(serving, ending, asyncio.ensure_future(self._follow_config()))
        finally:
            await self._drain()
            http.stop()
            await self._end(serving)

    async def _follow_config(self) -> None:
        """Reads --model_config_file again and again, if it is to be followed."""
        wait_s, file = (
            self._arguments.model_config_file_poll_wait_seconds,
            self._arguments.model_config_file,
        )
        if wait_s <= 0 or file is None:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(wait_s)
            try:
                configs = await asyncio.to_thread(text_config.read_models, file)
                if configs != self._configs:
                    await asyncio.to_thread(self._core.versions.reload, configs)
                    self._configs = configs
            # A file that is being written, or a label too early: the next look may be better.
            except (EngineError, ServeError) as error:
                log.error("the models stay as they are: %s", error)

    def _start(self) -> None:
        """Imports TensorFlow, which takes seconds: the probes answer meanwhile."""
        self._grpc = self._grpc_server()
        if self._grpc is not None:
            self._grpc.start()
        saved_model.import_tensorflow()
        # Its million objects never become garbage; looking at them again and again would stop
        # all requests for a moment each time.
        gc.collect()
        gc.freeze()
        self._core.start(self._configs)

    async def _end(self, serving: asyncio.Future[None]) -> None:
        grace_s = self._arguments.grace_seconds
        waits: list[asyncio.Future[Any]] = [serving]
        if self._grpc is not None:
            calls_ended = self._grpc.stop(grace_s)
            waits.append(asyncio.ensure_future(asyncio.to_thread(calls_ended)))
        await asyncio.wait(waits, timeout=grace_s)

    async def _drain(self) -> None:
        """Turns new clients away, then waits for the requests that are already here."""
        log.info("draining")
        self._readiness.draining = self._app.draining = True
        if self._grpc is not None:
            self._grpc.drain()
        await asyncio.sleep(self._arguments.drain_seconds)

    def _grpc_server(self) -> Any:
        arguments = self._arguments
        if not arguments.port:
            return None
        # It imports TensorFlow: seconds that errors of the command line need not wait for.
        from packager_server.grpc_server import GrpcServer, GrpcSettings

        settings = GrpcSettings(
            f"{arguments.host}:{arguments.port}",
            timeout_s=arguments.rest_api_timeout_in_ms / 1000,
            health=arguments.enable_grpc_healthcheck_service,
        )
        return GrpcServer(self._core, settings, self._guard, self._tls)

    def _http_server(self, files: Mapping[str, Path]) -> Any:
        from granian.constants import HTTPModes, Interfaces, SSLProtocols
        from granian.http import HTTP1Settings
        from granian.log import LogLevels
        from granian.server.embed import Server as Granian

        arguments = self._arguments
        return Granian(
            self._app,
            address=arguments.host,
            port=arguments.rest_api_port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=max(_SMALLEST_BACKLOG, arguments.max_connections),
            backpressure=arguments.max_connections,
            http1_settings=HTTP1Settings(header_read_timeout=10_000, max_buffer_size=1 << 17),
            log_level=LogLevels.error,
            ssl_protocol_min=SSLProtocols.tls12,
            ssl_cert=files.get("server_cert"),
            ssl_key=files.get("server_key"),
            ssl_ca=files.get("custom_ca"),
            ssl_client_verify=self._tls is not None and self._tls.client_verify,
        )


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Waits for one of `futures` and raises its error."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


def _models(arguments: argparse.Namespace) -> list[ModelConfig]:
    if arguments.model_config_file is not None:
        return text_config.read_models(arguments.model_config_file)
    if not arguments.model_base_path:
        raise EngineError("give --model_base_path or --model_config_file", exit_code=2)
    base = arguments.model_base_path
    name = arguments.model_name or base.rstrip("/").rsplit("/", 1)[-1]
    return [ModelConfig(name, base, VersionPolicy())]


def _lifecycle(arguments: argparse.Namespace) -> Lifecycle:
    if arguments.version_transition not in ("availability_preserving", "resource_preserving"):
        raise EngineError(
            "--version_transition: expected availability_preserving or resource_preserving, "
            f"received {arguments.version_transition!r}",
            exit_code=2,
        )
    return Lifecycle(
        poll_wait_s=arguments.file_system_poll_wait_seconds,
        load_retries=arguments.max_num_load_retries,
        retry_wait_s=arguments.load_retry_interval_micros / 1e6,
        resource_preserving=arguments.version_transition == "resource_preserving",
        always_present=arguments.servable_versions_always_present,
        labels_for_unavailable=arguments.allow_version_labels_for_unavailable_models,
    )


def _batching(arguments: argparse.Namespace) -> Batching:
    cores = os.cpu_count() or 1
    if arguments.enable_batching:
        return text_config.read_batching(arguments.batching_parameters_file, cores)
    if arguments.batching_parameters_file is not None:
        raise EngineError("--batching_parameters_file needs --enable_batching", exit_code=2)
    return Batching(num_batch_threads=cores)


def _load_options(arguments: argparse.Namespace) -> LoadOptions:
    both = arguments.tensorflow_session_parallelism
    return LoadOptions(
        tags=tuple(arguments.saved_model_tags.split(",")),
        intra_op_threads=arguments.tensorflow_intra_op_parallelism or both,
        inter_op_threads=arguments.tensorflow_inter_op_parallelism or both,
        gpu_memory_fraction=arguments.per_process_gpu_memory_fraction,
        gpu_allow_growth=arguments.gpu_allow_growth,
        signature_functions=arguments.signature_functions,
    )


def _metrics_path(arguments: argparse.Namespace) -> str | None:
    if arguments.monitoring_config_file is None:
        return flags.DEFAULT_METRICS_PATH
    return text_config.read_metrics_path(arguments.monitoring_config_file)


def _tokens(path: Path | None) -> tuple[bytes, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise EngineError(f"{path}: cannot be read: {error.strerror}", exit_code=2) from error
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens:
        raise EngineError(f"{path}: no token in it: nobody could call", exit_code=2)
    return tokens
