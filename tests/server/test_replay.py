"""Every case of ../shared/tfserving against the running server."""

import json

import pytest

from tests.server import replay

pytestmark = pytest.mark.tf

HTTP_CASES = sorted(replay.load_cases("http"), key=lambda case: replay.model_key(case["model"]))


def test_the_cases_are_there(shared):
    assert len(replay.load_cases("http", "grpc", "request_parser", "url_parser", "writer")) == 98


@pytest.mark.parametrize("case", HTTP_CASES, ids=lambda case: case["id"])
def test_http(case, serve_case):
    server = serve_case(case)
    request = case["request"]
    status, headers, body = server.send(
        request["method"], request["path"], replay.body_bytes(request), request.get("headers")
    )
    if request["method"] == "HEAD":
        assert (status, body) == (case["expect"]["status"], b"")
        return
    replay.check(case, status, headers, body)
    # Whatever the case did, the next request is answered.
    assert server.send("GET", "/healthz")[0] == 200


def test_an_error_is_json_with_one_key(serving):
    status, headers, body = serving.send("GET", "/v1/nothing")
    assert (status, headers["content-type"]) == (400, "application/json")
    assert list(json.loads(body)) == ["error"]
