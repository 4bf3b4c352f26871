"""The running server beyond the protocol: pictures, limits, attacks, and the book's clients."""

import base64
import json
import socket
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import requests
from PIL import Image

from tests.browser.conftest import chromium, open_page, web_app  # noqa: F401
from tests.conftest import ROOT
from tests.server import replay

pytestmark = pytest.mark.tf

LIMIT_S = 30
HALF = "saved_model_half_plus_two_2_versions"


@pytest.fixture(scope="module")
def half(serve_case):
    case = next(case for case in replay.load_cases("http") if case["model"].get("name") == HALF)
    return serve_case(case)


def raw(server, *parts):
    """Sends bytes as they are; returns what comes back until the server closes or answers."""
    with socket.create_connection(server.rest, timeout=LIMIT_S) as one:
        for part in parts:
            try:
                one.sendall(part)
            except OSError:  # it has answered and closed already
                break
        try:
            return one.recv(65536)
        except OSError:
            return b""


def head(*lines):
    return "\r\n".join(["POST /v1/models/x:predict HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def still_answers(server):
    answer = server.json("POST", f"/v1/models/{HALF}:predict", {"instances": [1, 2, 5]})
    assert answer == (200, {"predictions": [2.5, 3.0, 4.5]})


def status_of(answer):
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split()[1])


# ------------------------------------------------------------------ attacks


def test_a_body_that_is_announced_too_large_is_refused_at_once(half):
    assert status_of(raw(half, head("Content-Length: 1000000000"))) == 413
    still_answers(half)


def test_a_body_without_a_length_is_refused_when_it_gets_too_large(half):
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    answer = raw(half, head("Transfer-Encoding: chunked"), *[chunk] * 6)
    assert answer == b"" or status_of(answer) == 413
    still_answers(half)


def test_a_gzip_bomb(half):
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = packer.compress(b"[" + b" " * (150 << 20)) + packer.flush()
    assert len(bomb) < 1_000_000
    status, _, body = half.send(
        "POST", f"/v1/models/{HALF}:predict", bomb, {"Content-Encoding": "gzip"}
    )
    assert (status, b"The document is empty" in body) == (400, True)
    still_answers(half)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{}",
        b'{"instances": ["\xc3"]}',
        b'{"instances": [1, ' + b"9" * 5000 + b"]}",
        b'{"instances": [1e999]}',
        b'{"instances": ' + b"[" * 60_000,
        b'{"a":' * 30_000,
        b'{"instances": [[' + b"1," * 300_000 + b"1]",
        b'{"instances": "' + b"\\ud800" * 10 + b'"}',
        b"\x00",
        b"NaN",
        b'{"instances": [true, null]}',
    ],
    ids=range(11),
)
def test_bodies_that_are_no_request(half, body):
    status, headers, answer = half.send("POST", f"/v1/models/{HALF}:predict", body)
    assert (status, headers["content-type"]) == (400, "application/json")
    assert json.loads(answer)["error"]
    still_answers(half)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd:predict",
        "/v1/models/m%00:predict",
        "/v1/models/%ff%fe:predict",
        "/v1/models/" + "m" * 5000 + ":predict",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/api/v1/models/..%2f..:image",
        "/static/../../../etc/passwd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_paths_that_lead_nowhere(half, method, target):
    status, _, body = half.send(method, target, b"{}" if method == "POST" else None)
    assert 400 <= status < 500
    assert b"root:" not in body
    still_answers(half)


def test_too_many_headers(half):
    many = [f"X-{number}: {'y' * 50}" for number in range(2000)]
    answer = raw(half, head(*many, "Content-Length: 0"))
    assert answer == b"" or 400 <= status_of(answer) < 500
    long = raw(half, head("X-Long: " + "y" * 1_000_000, "Content-Length: 0"))
    assert long == b"" or 400 <= status_of(long) < 500
    still_answers(half)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9", b"GET"]
)
def test_what_is_not_http(half, data):
    answer = raw(half, data, b"\r\n\r\n")
    assert answer == b"" or status_of(answer) == 400
    still_answers(half)


def test_a_client_that_goes_away(half):
    for _ in range(20):
        with socket.create_connection(half.rest, timeout=LIMIT_S) as one:
            one.sendall(head("Content-Length: 1000") + b'{"instances"')
    still_answers(half)


def test_slow_clients_hold_nobody_up(half):
    slow = [socket.create_connection(half.rest, timeout=LIMIT_S) for _ in range(50)]
    try:
        for one in slow[:25]:
            one.sendall(b"POST /v1/models/x:predict HTT")
        for one in slow[25:]:
            one.sendall(head("Content-Length: 1000") + b"{")
        still_answers(half)
    finally:
        for one in slow:
            one.close()


def test_cors_answers_pages_of_other_origins(half):
    status, headers, body = half.send(
        "OPTIONS", f"/v1/models/{HALF}:predict", None, {"Origin": "http://page.example"}
    )
    assert (status, body) == (200, b"")
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-allow-methods"] == "POST, GET"
    assert headers["access-control-allow-headers"] == "Content-Type"
    assert half.send("OPTIONS", "/v1/models/x:predict", None)[::2] == (400, b"")
    answer = half.send("GET", f"/v1/models/{HALF}", None, {"Origin": "http://page.example"})
    assert answer[1]["access-control-allow-origin"] == "*"


def test_request_ids_and_the_access_log(half):
    _, headers, _ = half.send("GET", f"/v1/models/{HALF}", None, {"X-Request-Id": "abc-7"})
    assert headers["x-request-id"] == "abc-7"
    made = [half.send("GET", f"/v1/models/{HALF}", None)[1]["x-request-id"] for _ in range(2)]
    assert len({"abc-7", *made}) == 3
    lines = [line.partition(" INFO ")[2] for line in half.log.splitlines()]
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    found = next(one for one in entries if one["request_id"] == "abc-7")
    assert (found["method"], found["status"], found["model"]) == ("GET", 200, HALF)
    assert set(made) <= {one["request_id"] for one in entries}


def test_metrics_count_by_model_and_code(half):
    still_answers(half)
    half.send("POST", f"/v1/models/{HALF}:predict", b"nothing")
    text = half.send("GET", "/monitoring/prometheus/metrics")[2].decode()
    for status in ("OK", "INVALID_ARGUMENT"):
        assert f':request_count{{model_name="{HALF}",status="{status}"}}' in text
    assert f':request_latency_count{{model_name="{HALF}",API="predict",entrypoint="REST"}}' in text


# ------------------------------------------------------------------ clients


def test_the_books_rest_client(half):
    url = f"http://{half.rest[0]}:{half.rest[1]}/v1/models/{HALF}:predict"
    text = json.dumps({"signature_name": "serving_default", "instances": [1.0, 2.0, 5.0]})
    answer = requests.post(url, data=text, timeout=LIMIT_S)
    answer.raise_for_status()
    assert answer.json() == {"predictions": [2.5, 3.0, 4.5]}


def test_curl(half):
    url = f"http://{half.rest[0]}:{half.rest[1]}/v1/models/{HALF}:predict"
    done = subprocess.run(
        ["curl", "--silent", "--fail", "-d", '{"instances": [1.0, 2.0, 5.0]}', "-X", "POST", url],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"predictions": [2.5, 3.0, 4.5]}


# ------------------------------------------------------------------ a bundle


@pytest.fixture(scope="module")
def digits(serving, digits_bundle, serve_case):
    serving.configure(("digits", digits_bundle.parent, {}))
    yield serving
    serving.configure()


def test_golden_samples_over_rest(digits, digits_bundle):
    golden = json.loads((digits_bundle / "golden" / "samples.json").read_text())
    manifest = json.loads((digits_bundle / "manifest.json").read_text())
    spec = manifest["inputs"][0]
    from packager_server.preprocess import preprocess

    tensors = [
        preprocess(digits_bundle / s["inputs"][spec["name"]], spec) for s in golden["samples"]
    ]
    body = {"instances": [tensor.tolist() for tensor in tensors]}
    status, answer = digits.json("POST", "/v1/models/digits:predict", body)
    assert status == 200
    expected = [next(iter(s["artifacts"]["saved_model"].values())) for s in golden["samples"]]
    tolerance = next(iter(golden["tolerances"]["saved_model"].values()))
    assert np.abs(np.array(answer["predictions"]) - expected).max() <= max(tolerance, 1e-5)


def test_pictures_get_the_device_runners_answer(digits, digits_bundle, tmp_path):
    rng = np.random.default_rng(3)
    sample = Image.open(next(digits_bundle.glob("golden/*.png"))).convert("RGB")
    photos = {
        "photo.png": sample.resize((640, 480)),
        "photo.jpg": sample.resize((300, 500)),
        "noise.png": Image.fromarray(rng.integers(0, 256, (90, 70, 4), np.uint8)),
    }
    for name, picture in photos.items():
        picture.save(tmp_path / name)
    done = subprocess.run(
        [
            sys.executable, ROOT / "edge" / "run.py", "predict", digits_bundle,
            *[tmp_path / name for name in photos], "--artifact", "tflite/float32", "--top", "10",
            "--json",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    for name, line in zip(photos, done.stdout.splitlines(), strict=True):
        expected = json.loads(line)
        data = (tmp_path / name).read_bytes()
        status, _, body = digits.send("POST", "/api/v1/models/digits:image?top=10", data)
        found = json.loads(body)
        assert status == 200, found
        assert found["label"] == expected["label"]
        scores = {one["label"]: one["score"] for one in found["top"]}
        for one in expected["top"]:
            assert scores[one["label"]] == pytest.approx(one["score"], abs=1e-5)


IN_THE_BROWSER = """async ([runtime, photos]) => {
  const { loadBundle } = await import('/web/packager.js');
  const model = await loadBundle('/', { runtime });
  const found = [];
  for (const photo of photos) {
    const blob = await (await fetch('data:image/jpeg;base64,' + photo)).blob();
    found.push(await model.predict(model.inputsOf(blob), { top: 10 }));
  }
  const { id } = model.runtime;
  model.dispose();
  return { id, answers: found.map(({ answers }) => answers) };
}"""


def scores(top):
    return {one["label"]: one["score"] for one in top}


@pytest.mark.browser
@pytest.mark.node
def test_one_photo_gets_one_answer(digits, digits_bundle, shared, web_app, open_page):  # noqa: F811
    """The server's image endpoint, the device runner and the browser on real photos.

    Float files agree on all ten scores to 0.1 % of each, however small: to a digit classifier a
    photo is an 8, and only the small scores tell photos apart. The int8 file gives the same label
    and, as its scores have steps of 1/256, scores within 0.01.
    """
    photos = sorted((shared / "data/images").glob("*.jpg"))
    assert len(photos) == 4
    by_server = []
    for photo in photos:
        target = "/api/v1/models/digits:image?top=10"
        status, _, body = digits.send("POST", target, photo.read_bytes())
        assert status == 200, body
        by_server.append(json.loads(body))
    device = [sys.executable, ROOT / "edge/run.py", "predict", digits_bundle, *photos, "--json"]
    found = {}
    for artifact in ("tflite/float32", "tflite/int8"):
        done = subprocess.run(
            [*device, "--top", "10", "--artifact", artifact],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        lines = map(json.loads, done.stdout.splitlines())
        found[artifact] = [scores(line["top"]) for line in lines]
    page = open_page(f"{web_app(digits_bundle)}/web/example.html").page
    encoded = [base64.b64encode(photo.read_bytes()).decode() for photo in photos]
    for runtime in ("tfjs-wasm", "litert-wasm"):
        answers = page.evaluate(IN_THE_BROWSER, [runtime, encoded])
        found[answers["id"]] = [scores(top) for top in answers["answers"]]
    assert len(found) == 4
    floats = {"rel": 1e-3, "abs": 1e-30}
    assert scores(by_server[0]["top"]) != pytest.approx(scores(by_server[1]["top"]), **floats)
    for name, by_photo in found.items():
        for photo, answer, wanted in zip(photos, by_photo, by_server, strict=True):
            allowed = {"abs": 0.01} if name == "tflite/int8" else floats
            assert max(answer, key=answer.get) == wanted["label"], (name, photo.name)
            assert answer == pytest.approx(scores(wanted["top"]), **allowed), (name, photo.name)


def test_a_keras_file_is_served_eagerly(serving, replay_models):
    folder = replay_models["eager"]
    serving.configure(("eager", folder, {}))
    expected = json.loads((folder / "answer.json").read_text())
    answer = serving.json("POST", "/v1/models/eager:predict", {"instances": expected["x"]})
    assert answer[0] == 200, answer
    np.testing.assert_allclose(answer[1]["predictions"], expected["y"], atol=1e-6)
    _, metadata = serving.json("GET", "/v1/models/eager/metadata")
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    serving.configure()


def test_a_warm_up_that_fails_fails_the_load(serving, replay_models):
    serving.configure(("warm", replay_models["warmup"], {}, [1, 2]))
    _, status = serving.json("GET", "/v1/models/warm")
    second, first = status["model_version_status"]
    assert (first["version"], first["state"]) == ("1", "AVAILABLE")
    assert (second["version"], second["state"]) == ("2", "END")
    assert second["status"]["error_code"] == "INVALID_ARGUMENT"
    assert "warm-up request 1 failed" in second["status"]["error_message"]
    text = serving.send("GET", "/monitoring/prometheus/metrics")[2].decode()
    assert f'model_warmup_records_read{{model_path="{replay_models["warmup"]}/1"}} 1' in text
    serving.configure()


def test_the_configuration_file_is_followed(serving, replay_models):
    before = serving.config.read_text()
    half = next(case for case in replay.load_cases("http") if case["model"].get("name") == HALF)
    folder = replay_models[replay.model_key(half["model"])]
    entry = f'name: "followed" base_path: "{folder}" model_platform: "tensorflow"'
    try:
        serving.config.write_text(f"model_config_list {{ config {{ {entry} }} }}")
        wait_for(lambda: serving.send("GET", "/v1/models/followed")[0] == 200)
        body = {"instances": [4.0]}
        wait_for(lambda: serving.json("POST", "/v1/models/followed:predict", body)[0] == 200)
        serving.config.write_text("this is no configuration")
        wait_for(lambda: "the models stay as they are" in serving.log)
        assert serving.json("POST", "/v1/models/followed:predict", body)[0] == 200
    finally:
        serving.config.write_text(before)
    wait_for(lambda: serving.json("POST", "/v1/models/followed:predict", body)[0] == 404)


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
