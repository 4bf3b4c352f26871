"""The ASGI application: TensorFlow Serving's REST on the event loop, the pages through Flask.

One event loop reads requests and writes answers, so that a thousand clients need no thousand
threads; models run on the scheduler's threads, and Flask on a few of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2wsgi import WSGIMiddleware

from packager_server import rest
from packager_server.access import Access, AccessLog
from packager_server.codes import Code, ServeError
from packager_server.core import ServingCore
from packager_server.guard import Guard
from packager_server.model import Tensors
from packager_server.rest import Prepared, Response, RestApi
from packager_server.scheduler import QUEUE_FULL, TIMED_OUT

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]
Probe = Callable[[], Response]

# Parsing or writing more than this is given to a thread, so that others are answered meanwhile.
_LARGE_BODY = 1 << 18
_LARGE_OUTPUT = 20_000
# A refused request's body is still read if it is not larger than this.
_DISCARDED_BODY = 1 << 20
_REFUSAL_EVERY_S = 0.002
_LATEST_REFUSAL_S = 1.0


class ClientGone(Exception):
    """The connection closed before the request was complete."""


@dataclass(frozen=True)
class HttpLimits:
    """Bounds on what one request may cost.

    Attributes:
        max_body_bytes: Of a body, compressed or not.
        max_inflated_bytes: Of a body after gzip.
        max_arriving_bytes: Of all bodies that are being received.
        body_timeout_s: Until a body is complete.
        flask_threads: Requests that Flask answers at the same time.
        flask_waiting: Requests that may be with Flask or wait for it.
    """

    max_body_bytes: int = 64 << 20
    max_inflated_bytes: int = 100 << 20
    max_arriving_bytes: int = 512 << 20
    body_timeout_s: float = 60.0
    flask_threads: int = 4
    flask_waiting: int = 64


@dataclass
class _Request:
    """One request as it passes through; `headers` are lower-case."""

    scope: Scope
    headers: Headers
    target: str
    started: float = field(default_factory=time.monotonic)
    model: str = ""
    api: str = ""
    received: bool = False

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method


class ServingApp:
    """Answers HTTP requests; `draining` makes every answer close its connection."""

    def __init__(
        self,
        core: ServingCore,
        api: RestApi,
        flask_app: Any,
        *,
        guard: Guard | None = None,
        limits: HttpLimits | None = None,
        access_log: AccessLog | None = None,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self._core = core
        self._limits = limits or HttpLimits()
        self._api = api
        self._guard = guard or Guard()
        self._access_log = access_log
        self._flask = WSGIMiddleware(flask_app, workers=self._limits.flask_threads)
        self._flask_waiting = 0
        self._arriving = 0
        self._next_refusal = 0.0
        # Answered on the loop itself: they must not wait behind pictures.
        self._probes = probes or {}
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request (the ASGI entry point)."""
        if scope["type"] != "http":
            return
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        if self._access_log is not None:
            headers.setdefault(b"x-request-id", secrets.token_hex(8).encode())
        request = _Request(scope, headers, _target(scope))
        response: Response | None
        try:
            response = self._guard.check(request.method, request.target, headers)
            if response is None:
                response = await self._respond(request, receive, send)
        except ServeError as error:
            response = rest.error_response(error)
        except ClientGone:
            return
        # The client must get an answer, and the log the traceback.
        except Exception as error:
            log.exception("a request failed unexpectedly: %s", request.target[:200])
            message = f"unexpected {type(error).__name__}"
            response = rest.error_response(ServeError(message, Code.INTERNAL))
        if response is not None:
            await self._discard_body(request, receive)
            await self._send(request, response, send)

    async def _respond(self, request: _Request, receive: Receive, send: Send) -> Response | None:
        probe = self._probes.get(request.target.partition("?")[0])
        if probe is not None and request.method in ("GET", "HEAD"):
            return probe()
        if not self._api.owns(request.target):
            await self._through_flask(request, receive, send)
            return None
        route = self._api.route(request.method, request.target)
        request.model, request.api = route.name, route.verb or ""
        if route.verb is None:
            return self._api.describe(route)
        # Refusing before reading and parsing keeps an overloaded server answering.
        await self._refuse_when_full()
        body = await self._body(request, receive)
        # Nothing waits between here and the queue, so that what is parsed also finds its place.
        await self._refuse_when_full()
        if len(body) < _LARGE_BODY:
            prepared = self._api.prepare(route, body)
        else:
            prepared = await _in_thread(self._api.prepare, route, body)
        outputs = await self._run(prepared)
        if sum(value.size for value in outputs.values()) < _LARGE_OUTPUT:
            return Response(200, prepared.answer(outputs))
        return Response(200, await _in_thread(prepared.answer, outputs))

    async def _refuse_when_full(self) -> None:
        """Raises `ServeError` when the queue is full, at most so often a second.

        Clients that try again at once would else take the time of those who are answered.
        """
        if not self._core.scheduler.is_full():
            return
        now = time.monotonic()
        self._next_refusal = max(now, self._next_refusal + _REFUSAL_EVERY_S)
        wait_s = min(self._next_refusal - now, _LATEST_REFUSAL_S)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        raise ServeError(QUEUE_FULL, Code.UNAVAILABLE)

    async def _run(self, prepared: Prepared) -> Tensors:
        """Runs a call without blocking the loop.

        Raises:
            ServeError: The queue is full, the time is over, or the model failed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Tensors] = loop.create_future()

        def resolve(outputs: Tensors | None, error: ServeError | None) -> None:
            if future.done():  # the client has its 504 already
                return
            if outputs is None:
                future.set_exception(error or ServeError("no outputs", Code.INTERNAL))
            else:
                future.set_result(outputs)

        def done(outputs: Tensors | None, error: ServeError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(resolve, outputs, error)

        timeout_s = self._api.timeout_s
        self._core.submit(prepared.call, timeout_s, done)
        # Not asyncio.timeout: the tasks of granian cannot be cancelled.
        late = ServeError(TIMED_OUT, Code.DEADLINE_EXCEEDED)
        timer = loop.call_later(timeout_s, resolve, None, late)
        try:
            return await future
        finally:
            timer.cancel()

    async def _body(self, request: _Request, receive: Receive) -> bytes:
        """Reads the whole body and undoes its gzip encoding.

        Raises:
            ServeError: It is too large (413) or too slow (408).
            ClientGone: The connection closed.
        """
        body = await self._raw_body(request, receive)
        encoding = request.headers.get(b"content-encoding")
        if encoding is None:
            return body
        limit = self._limits.max_inflated_bytes
        return bytes(await _in_thread(rest.inflate, body, encoding.decode("latin-1"), limit))

    async def _discard_body(self, request: _Request, receive: Receive) -> None:
        """Reads what a refused client still sends: it would take a closed connection for a loss."""
        if request.received or b"expect" in request.headers:
            return
        try:
            await self._raw_body(request, receive, _DISCARDED_BODY)
        except (ServeError, ClientGone):
            return

    async def _raw_body(
        self, request: _Request, receive: Receive, limit: int | None = None
    ) -> bytes:
        request.received = True
        if limit is None:
            limit = self._limits.max_body_bytes
        declared = request.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        size = int(declared) if declared.isdigit() else limit
        if b"transfer-encoding" in request.headers:
            size = limit
        # Each body is bounded, and so is the sum of those that are on their way.
        if size > _DISCARDED_BODY and self._arriving + size > self._limits.max_arriving_bytes:
            raise ServeError("Too many large requests at the same time", Code.UNAVAILABLE)
        self._arriving += size
        loop = asyncio.get_running_loop()
        reading = loop.create_task(_read(receive, limit))
        timer = loop.call_later(self._limits.body_timeout_s, reading.cancel)
        try:
            return await reading
        except asyncio.CancelledError:
            raise ServeError("The request's body did not arrive in time", http=408) from None
        finally:
            timer.cancel()
            self._arriving -= size

    async def _through_flask(self, request: _Request, receive: Receive, send: Send) -> None:
        if self._flask_waiting >= self._limits.flask_waiting:
            raise ServeError(QUEUE_FULL, Code.UNAVAILABLE)
        self._flask_waiting += 1
        try:
            await self._to_flask(request, receive, send)
        finally:
            self._flask_waiting -= 1

    async def _to_flask(self, request: _Request, receive: Receive, send: Send) -> None:
        # The body is read here, so that a slow client holds no thread of Flask.
        body = await self._raw_body(request, receive)
        headers = [item for item in request.scope["headers"] if item[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))

        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.model = request.scope.get("packager.model", "")
                message["headers"] = [*message["headers"], *self._common_headers(request)]
                self._record(request, message["status"])
            await send(message)

        request.scope["headers"] = headers
        await self._flask(request.scope, replay, finish)  # type: ignore[arg-type]

    async def _send(self, request: _Request, response: Response, send: Send) -> None:
        self._record(request, response.status)
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in response.headers),
            *self._common_headers(request),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if request.method == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    def _common_headers(self, request: _Request) -> list[tuple[bytes, bytes]]:
        headers = self._guard.response_headers(request.headers)
        if self.draining:
            headers.append((b"connection", b"close"))
        return headers

    def _record(self, request: _Request, status: int) -> None:
        seconds = time.monotonic() - request.started
        if request.api:
            code = _code_of(status)
            self._core.count_request(request.model, request.api, "REST", code, seconds)
        if self._access_log is not None:
            client = request.scope.get("client")
            entry = Access(
                request.method, request.target, status, seconds, client[0] if client else "",
                request.headers.get(b"x-request-id", b"").decode("latin-1"), request.model,
            )  # fmt: skip
            self._access_log.write(entry)


def _target(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> ServeError:
    return ServeError(f"The request's body is larger than {limit} bytes", http=413)


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


_BY_HTTP = {code.http: code.name for code in reversed(Code)}


def _code_of(status: int) -> str:
    return _BY_HTTP.get(status, Code.INVALID_ARGUMENT.name if status < 500 else Code.INTERNAL.name)
