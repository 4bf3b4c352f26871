"""The gRPC port: services, TLS, tokens, health."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

from packager_server.core import ServingCore
from packager_server.grpc_services import ModelService, PredictionService
from packager_server.guard import Guard
from packager_server.reader import EngineError
from packager_server.tls import Tls

HEALTH_SERVICES = ("", "ModelService", "PredictionService")
_UNLIMITED = -1


@dataclass(frozen=True)
class GrpcSettings:
    """How the port is opened.

    Attributes:
        address: Host and port.
        timeout_s: Limit of a call whose client sets none.
        threads: Calls that run at the same time; more wait.
        health: Whether grpc.health.v1 answers.
    """

    address: str
    timeout_s: float = 30.0
    threads: int = 32
    health: bool = False


class GrpcServer:
    """The running port."""

    def __init__(
        self, core: ServingCore, settings: GrpcSettings, guard: Guard, tls: Tls | None
    ) -> None:
        self._health = health.HealthServicer() if settings.health else None
        self._server = grpc.server(
            ThreadPoolExecutor(settings.threads, thread_name_prefix="grpc"),
            interceptors=[_Authentication(guard)] if guard.tokens else [],
            options=[
                ("grpc.max_receive_message_length", _UNLIMITED),
                ("grpc.max_send_message_length", _UNLIMITED),
                # A second server on the port must fail, not share its clients.
                ("grpc.so_reuseport", 0),
            ],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(core, settings.timeout_s), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(core), self._server)
        if self._health is not None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._bind(settings.address, tls)

    def _bind(self, address: str, tls: Tls | None) -> None:
        try:
            if tls is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as error:
            raise EngineError(f"the gRPC port {address} cannot be opened: {error}") from error

    def _set_health(self, state: Any) -> None:
        if self._health is not None:
            for service in HEALTH_SERVICES:
                self._health.set(service, state)

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def drain(self) -> None:
        """Tells health checks that no more calls are wanted."""
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    def stop(self, grace_s: float) -> Callable[[], bool]:
        """Takes no more calls; returns a function that waits for those that run."""
        event = self._server.stop(grace_s)
        return lambda: bool(event.wait(grace_s))


def _credentials(tls: Tls) -> Any:
    pair = (tls.server_key.encode(), tls.server_cert.encode())
    roots = tls.custom_ca.encode() or None
    return grpc.ssl_server_credentials(
        [pair], root_certificates=roots, require_client_auth=tls.client_verify
    )


class _Authentication(grpc.ServerInterceptor):  # type: ignore[misc]
    """Lets calls with an accepted bearer token through; health checks need none."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

        def refuse(_: Any, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "A valid bearer token is needed")

        self._refused = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Returns the handler of a call, or one that refuses it."""
        given = dict(details.invocation_metadata).get("authorization", "")
        open_method = details.method.startswith("/grpc.health.v1.")
        if open_method or self._guard.accepts(str(given).encode()):
            return continuation(details)
        return self._refused
