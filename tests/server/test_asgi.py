"""The ASGI application by itself: what a flood of one kind does to the others."""

import asyncio
import json
import time

import pytest
from packager_server.asgi import HttpLimits, ServingApp
from packager_server.flask_app import Readiness, create_app, probes
from packager_server.guard import Guard
from packager_server.images import ImageService
from packager_server.lifecycle import Loaded
from packager_server.rest import Aliases, RestApi
from packager_server.scheduler import Batching

from tests.server import fakes
from tests.server.test_flask_app import MANIFEST, encoded, picture_model

LIMIT_S = 20


class App:
    """Sends requests to the application without a socket."""

    def __init__(self, core, *, timeout_s=LIMIT_S, guard=None, **limits):
        api = RestApi(core, timeout_s=timeout_s)
        ready = Readiness(core)
        flask_app = create_app(core, api, ImageService(core), readiness=ready)
        self.app = ServingApp(
            core, api, flask_app, guard=guard, limits=HttpLimits(**limits),
            probes=probes(ready, Aliases()),
        )  # fmt: skip

    async def send(self, method, target, *parts, headers=(), stall=False):
        messages = [
            {"type": "http.request", "body": part, "more_body": True} for part in parts[:-1]
        ]
        messages.append({"type": "http.request", "body": parts[-1] if parts else b""})
        sent = []

        async def receive():
            if stall and len(messages) == 1:
                await asyncio.sleep(LIMIT_S)
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        raw, _, query = target.encode().partition(b"?")
        scope = {
            "type": "http", "method": method, "path": raw.decode(), "raw_path": raw,
            "query_string": query, "headers": list(headers), "http_version": "1.1",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "scheme": "http",
        }  # fmt: skip
        await self.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body


@pytest.fixture
def make(tmp_path):
    cores = []

    def core(model, **settings):
        cores.append(fakes.core_with(tmp_path / str(len(cores)), {1: model}, **settings))
        return cores[-1]

    yield core
    for one in cores:
        one.stop()


PREDICT = ("POST", "/v1/models/m:predict", b'{"instances": [[1, 2]]}')


def test_a_body_in_parts(make):
    app = App(make(fakes.scaled()))
    parts = (b'{"inst', b'ances": [[1', b", 2]]}")
    status, headers, body = asyncio.run(app.send("POST", PREDICT[1], *parts))
    assert (status, json.loads(body)) == (200, {"predictions": [[2.0, 4.0]]})
    assert headers[b"content-type"] == b"application/json"


def test_a_slow_body_is_given_up(make):
    app = App(make(fakes.scaled()), body_timeout_s=0.1)
    status, _, body = asyncio.run(app.send("POST", PREDICT[1], b"{", b"}", stall=True))
    assert (status, "in time" in json.loads(body)["error"]) == (408, True)


def test_too_large_in_parts(make):
    app = App(make(fakes.scaled()), max_body_bytes=10)
    status, _, _ = asyncio.run(app.send("POST", PREDICT[1], b"12345", b"67890", b"1"))
    assert status == 413


def test_large_bodies_are_bounded_together(make):
    app = App(make(fakes.scaled()), max_arriving_bytes=5 << 20, body_timeout_s=0.5)
    size = [(b"content-length", str(2 << 20).encode())]
    slow = ("POST", PREDICT[1], b"{", b"}")

    async def flood():
        sent = [asyncio.ensure_future(app.send(*slow, headers=size, stall=True)) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert (await app.send(*PREDICT))[0] == 200
        return sorted([status for status, _, _ in await asyncio.gather(*sent)])

    assert asyncio.run(flood()) == [408, 408, 503, 503]


def test_refusals_are_spread_over_time_but_none_waits_long(make, monkeypatch):
    model = fakes.scaled()
    core = make(model, batching=Batching(num_batch_threads=1))
    monkeypatch.setattr(core.scheduler, "is_full", lambda: True)
    app = App(core)
    waits = []

    async def note(seconds):
        waits.append(seconds)

    async def flood(count):
        monkeypatch.setattr(asyncio, "sleep", note)
        return [await app.send(*PREDICT) for _ in range(count)]

    answers = asyncio.run(flood(1200))
    assert {status for status, _, _ in answers} == {503}
    assert all(b"retry-after" in headers for _, headers, _ in answers)
    assert len(waits) >= 1100  # the first of them goes at once
    assert waits[10] < waits[100] < waits[400]
    assert max(waits) <= 1.0


def test_a_slow_model_is_504_and_the_loop_goes_on(make):
    model = fakes.scaled()
    core = make(model, batching=Batching(num_batch_threads=1))
    app = App(core, timeout_s=0.2)

    async def both():
        model.gate.clear()
        slow = asyncio.ensure_future(app.send(*PREDICT))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        assert (await app.send("GET", "/healthz"))[0] == 200
        assert time.monotonic() - started < LIMIT_S / 2
        status, _, body = await slow
        model.gate.set()
        return status, json.loads(body)

    status, body = asyncio.run(both())
    assert (status, "Timed out" in body["error"]) == (504, True)


def test_a_full_queue_is_503_with_retry_after(make):
    model = fakes.scaled()
    core = make(model, batching=Batching(num_batch_threads=1, max_enqueued_batches=2))
    app = App(core)

    async def flood():
        model.gate.clear()
        sent = [asyncio.ensure_future(app.send(*PREDICT)) for _ in range(20)]
        await asyncio.sleep(0.2)
        assert (await app.send("GET", "/readyz"))[0] == 200
        model.gate.set()
        return await asyncio.gather(*sent)

    answers = asyncio.run(flood())
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503} and 2 <= statuses.count(200) <= 4
    assert all(h[b"retry-after"] == b"1" for status, h, _ in answers if status == 503)


def test_a_flood_of_pictures_leaves_the_probes_alone(make):
    model = picture_model()
    core = make(Loaded(model, MANIFEST))
    app = App(core, flask_threads=2, flask_waiting=6)
    run, gate = model.run, fakes.threading.Event()
    model.run = lambda *a: (gate.wait(LIMIT_S), run(*a))[1]
    picture = ("POST", "/api/v1/models/m:image", encoded())

    async def flood():
        sent = [asyncio.ensure_future(app.send(*picture)) for _ in range(15)]
        await asyncio.sleep(0.3)
        for path in ("/healthz", "/readyz?x=1"):
            assert (await app.send("GET", path))[0] == 200
        gate.set()
        return [status for status, _, _ in await asyncio.gather(*sent)]

    statuses = asyncio.run(flood())
    assert sorted(statuses) == [200] * 6 + [503] * 9


def test_made_up_names_do_not_fill_the_metrics(make):
    core = make(fakes.scaled())
    app = App(core)
    for number in range(50):
        asyncio.run(app.send("POST", f"/v1/models/made-up-{number}:predict", PREDICT[2]))
    text = core.metrics.text()
    assert "made-up" not in text
    assert ':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"} 50' in text


def test_a_token_guards_everything_but_the_probes(make):
    app = App(make(fakes.scaled()), guard=Guard((b"secret",)))
    assert asyncio.run(app.send(*PREDICT))[0] == 401
    assert asyncio.run(app.send("GET", "/openapi.json"))[0] == 401
    assert asyncio.run(app.send("GET", "/healthz"))[0] == 200
    good = [(b"authorization", b"Bearer secret")]
    assert asyncio.run(app.send(*PREDICT, headers=good))[0] == 200


def test_draining_closes_connections(make):
    app = App(make(fakes.scaled()))
    app.app.draining = True
    for request in (PREDICT, ("GET", "/openapi.json"), ("GET", "/healthz")):
        status, headers, _ = asyncio.run(app.send(*request))
        assert (status, headers[b"connection"]) == (200, b"close")


def test_an_unexpected_error_is_json_and_logged(make, caplog):
    core = make(fakes.scaled())
    app = App(core)
    core.versions.acquire = None
    status, _, body = asyncio.run(app.send(*PREDICT))
    assert (status, json.loads(body)) == (500, {"error": "unexpected TypeError"})
    assert "a request failed unexpectedly" in caplog.text
