"""What the replay tests share: the cases, HTTP without manners, and comparing answers."""

import gzip
import http.client
import json
from pathlib import Path

from tests.conftest import SHARED

CASES_FILE = SHARED / "tfserving" / "cases.json"
TIME_LIMIT_S = 60


def load_cases(*levels):
    if not CASES_FILE.is_file():
        return []
    cases = json.loads(CASES_FILE.read_text(encoding="utf-8"))["cases"]
    return [case for case in cases if case["level"] in levels]


def model_key(model):
    """Two cases with the same key can share a loaded model."""
    return json.dumps(model, sort_keys=True)


def body_bytes(request):
    body = request.get("body")
    if body is None:
        return None
    parts = body if isinstance(body, list) else [body]
    texts = [p if isinstance(p, str) else p["repeat"] * p["count"] for p in parts]
    data = "".join(texts).encode()
    return gzip.compress(data) if request.get("body_encoding") == "gzip" else data


def send(address, method, target, body=None, headers=None, timeout=TIME_LIMIT_S):
    """Sends a request whose target goes out as it is; returns status, headers and body."""
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        given = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, _lower(answer.headers), answer.read()
    finally:
        connection.close()


def _lower(headers):
    return {name.lower(): value for name, value in headers.items()}


class Number(str):
    """A number as it is written."""


def tokens(text):
    return json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)


def same(found, expected):
    """Equal JSON; numbers to 1e-6."""
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return type(found) is type(expected) and found == expected
    if isinstance(expected, (int, float)):
        good = isinstance(found, (int, float)) and not isinstance(found, bool)
        return good and abs(found - expected) <= 1e-6 * max(1.0, abs(expected))
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(same, found, expected))
        )
    return (
        isinstance(found, dict)
        and set(found) == set(expected)
        and all(same(found[key], value) for key, value in expected.items())
    )


def sorted_lists(value):
    """Lists in any order become the same list."""
    if isinstance(value, dict):
        return {key: sorted_lists(one) for key, one in value.items()}
    if isinstance(value, list):
        return sorted((sorted_lists(one) for one in value), key=lambda one: json.dumps(one))
    return value


def check(case, status, headers, body):
    """Compares an answer with everything that the case expects."""
    expect = case["expect"]
    if status == case.get("deviation", {}).get("allowed", {}).get("status"):
        assert "error" in json.loads(body)
        return
    text = body.decode()
    assert status == expect["status"], text[:500]
    for name, value in (expect.get("headers") or {}).items():
        assert headers.get(name.lower()) == value
    if "json" in expect:
        assert same(json.loads(text), expect["json"]), text[:500]
    if "json_text" in expect:
        assert tokens(text) == tokens(expect["json_text"])
    if "json_file" in expect:
        path = CASES_FILE.with_name(expect["json_file"])
        expected = json.loads(Path(path).read_text(encoding="utf-8"))
        assert sorted_lists(json.loads(text)) == sorted_lists(expected)
    for part in expect.get("text_contains", []):
        assert part in json.loads(text)["error"]
    for part in expect.get("body_contains", []):
        assert part in text
