"""The Flask application by itself, without TensorFlow: the protocol, pages, probes, pictures."""

import base64
import gzip
import io
import json

import numpy as np
import pytest
from packager_server.flask_app import Pages, Readiness, create_app
from packager_server.images import ImageLimits, ImageService
from packager_server.lifecycle import Loaded
from packager_server.rest import Aliases, RestApi
from PIL import Image

from tests.server import fakes, replay

IMAGE_INPUT = {
    "name": "image",
    "shape": [None, 4, 4, 1],
    "dtype": "float32",
    "image": {
        "width": 4, "height": 4, "channels": "gray", "resize": "pillow:nearest",
        "fit": "stretch", "pad_value": 0, "scale": [0.5], "offset": [1.0],
    },
}  # fmt: skip
MANIFEST = {
    "task": "classification",
    "threshold": None,
    "labels": ["cat", "dog"],
    "inputs": [IMAGE_INPUT],
    "outputs": [{"name": "score", "activation": "logits"}],
}
PIXELS = np.arange(16, dtype=np.uint8).reshape(4, 4) * 9


def client_of(core, pages=None, aliases=None, readiness=None, limits=None):
    aliases = aliases or Aliases()
    api = RestApi(core, aliases=aliases)
    app = create_app(
        core, api, ImageService(core, limits=limits), pages=pages, aliases=aliases,
        readiness=readiness,
    )  # fmt: skip
    return app.test_client()


def raw(client, method, target, data=None, headers=None):
    """The target goes to the application as a WSGI server hands it over."""
    path = target.split("?")[0]
    return client.open(
        path, method=method, data=data, headers=headers, environ_overrides={"RAW_URI": target}
    )


def picture_model():
    def function(inputs):
        total = inputs["image"].reshape(len(inputs["image"]), -1).sum(1)
        return {"score": np.stack([total * 0.01, total * 0.02], 1).astype(np.float32)}

    return fakes.FakeModel(
        function, {"image": ("float32", (None, 4, 4, 1))}, {"score": ("float32", (None, 2))}
    )


@pytest.fixture
def pictures(tmp_path):
    core = fakes.core_with(tmp_path, {3: Loaded(picture_model(), MANIFEST)}, "animals")
    yield core
    core.stop()


def fake_of(model):
    names = tuple(model["signatures"])
    if model["kind"] == "identity":
        return fakes.identity(model["inputs"], names)
    outputs = {}
    for name, tensor in model["outputs"].items():
        values = tensor["values"]
        if tensor["dtype"] == "string":
            values = [value.encode() for value in values]
        if tensor["dtype"].startswith("complex"):
            values = [complex(*value) for value in values]
        dtype = {"string": object}.get(tensor["dtype"], tensor["dtype"])
        values = [float(v) if isinstance(v, str) else v for v in values]
        outputs[name] = np.array(values, dtype).reshape(tensor["shape"])
    return fakes.constant(model["inputs"], outputs, names)


def simple(case):
    # Those two need tf.Example, which is a part of TensorFlow.
    return case["model"]["kind"] in ("identity", "constant") and "examples" not in str(
        case["request"].get("body")
    )


@pytest.mark.parametrize(
    "case", list(filter(simple, replay.load_cases("http"))), ids=lambda case: case["id"]
)
def test_replay(case, tmp_path):
    model = case["model"]
    core = fakes.core_with(tmp_path, {model["versions"][0]: fake_of(model)}, model["name"])
    request = case["request"]
    headers = {k: v for k, v in (request.get("headers") or {}).items() if v is not None}
    answer = raw(
        client_of(core), request["method"], request["path"], replay.body_bytes(request), headers
    )
    core.stop()
    if request["method"] == "HEAD":
        assert answer.status_code == case["expect"]["status"]
        return
    lower = {name.lower(): value for name, value in answer.headers.items()}
    replay.check(case, answer.status_code, lower, answer.data)


def test_probes(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    readiness = Readiness(core)
    client = client_of(core, aliases=Aliases("m", "/p", "/h"), readiness=readiness)
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/h")] == [200] * 3
    readiness.draining = True
    assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/h")] == [
        200, 503, 503,
    ]  # fmt: skip
    readiness.draining = False
    core.versions.reload([])
    (tmp_path / "m" / "1").rmdir()
    core.stop()


def test_not_ready_without_a_version(tmp_path):
    core = fakes.core_with(tmp_path, {1: RuntimeError("broken file")})
    client = client_of(core)
    assert client.get("/readyz").status_code == 503
    status = client.get("/v1/models/m").get_json()["model_version_status"]
    assert status == [
        {
            "version": "1", "state": "END",
            "status": {"error_code": "UNKNOWN", "error_message": "broken file"},
        }
    ]  # fmt: skip
    core.stop()


def test_a_managed_service_calls_its_own_route(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    client = client_of(core, aliases=Aliases("m", "/v1/endpoints/7:predict", "/v1/endpoints/7"))
    answer = raw(client, "POST", "/v1/endpoints/7:predict", b'{"instances": [[1, 2.5]]}')
    assert answer.get_json() == {"predictions": [[2.0, 5.0]]}
    assert client.get("/v1/endpoints/7").data == b"ready\n"
    core.stop()


def test_metrics_openapi_and_start_page(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()}, "a<b")
    client = client_of(core, Pages(metrics_path="/here"))
    raw(client, "POST", "/v1/models/a%3Cb:predict", b'{"instances": [[1, 2]]}')
    metrics = client.get("/here")
    assert metrics.headers["Content-Type"] == "text/plain"
    assert ':tensorflow:serving:request_example_count_total{model="a<b"} 1' in metrics.text
    assert client.get("/monitoring/prometheus/metrics").status_code == 404
    document = client.get("/openapi.json").get_json()
    assert "/v1/models/{name}:predict" in document["paths"]
    page = client.get("/").text
    assert "a&lt;b" in page and "a<b" not in page
    core.stop()


def test_the_web_folder_of_a_bundle_is_served_and_nothing_beside_it(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    web = tmp_path / "m" / "1" / "web"
    web.mkdir()
    (web / "index.html").write_text("<p>app</p>")
    (web / "app.js").write_text("run()")
    (tmp_path / "m" / "1" / "secret.txt").write_text("secret")
    client = client_of(core)
    for path in ("/", "/web"):
        assert client.get(path).headers["Location"] == "/web/"
    page = client.get("/web/", buffered=True)
    assert page.text == "<p>app</p>"
    assert page.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert client.get("/web/app.js", buffered=True).mimetype == "text/javascript"
    for path in (
        *("/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt"),
        *("/web/../secret.txt", "/web/%2e%2e/secret.txt", "//etc/passwd"),
    ):
        answer = raw(client, "GET", path)
        assert answer.status_code == 404 and b"secret" not in answer.data
        assert list(answer.get_json()) == ["error"]
    core.stop()


def test_gzip_is_bounded(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    client = client_of(core, Pages(max_inflated_bytes=1000))
    body = b'{"instances": [[1, 2]]' + b" " * 2000 + b"}"
    headers = {"Content-Encoding": "gzip"}
    answer = raw(client, "POST", "/v1/models/m:predict", gzip.compress(body), headers)
    assert (answer.status_code, "The document is empty" in answer.text) == (400, True)
    small = gzip.compress(b'{"instances": [[1, 2]]}')
    assert raw(client, "POST", "/v1/models/m:predict", small, headers).status_code == 200
    core.stop()


def test_a_body_above_the_limit_is_413(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    client = client_of(core, Pages(max_body_bytes=100))
    answer = raw(client, "POST", "/v1/models/m:predict", b" " * 101)
    assert (answer.status_code, list(answer.get_json())) == (413, ["error"])
    core.stop()


# ------------------------------------------------------------------ pictures


def encoded(pixels=PIXELS, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


NOISE = np.random.default_rng(2).integers(0, 256, (64, 64), dtype=np.uint8)


def expected_scores(pixels=PIXELS):
    total = (pixels * 0.5 + 1.0).sum()
    powers = np.exp(np.array([0.01, 0.02]) * total - 0.02 * total)
    return powers / powers.sum()


def as_multipart(client, url):
    file = (io.BytesIO(encoded()), "photo.png")
    return client.post(url, data={"image": file}, content_type="multipart/form-data")


def as_raw(client, url):
    return client.post(url, data=encoded(), content_type="image/png")


def as_base64(client, url):
    text = base64.b64encode(encoded()).decode()
    return client.post(url, json={"image": {"b64": text}})


def as_data_url(client, url):
    text = "data:image/png;base64," + base64.b64encode(encoded()).decode()
    return client.post(url, data=json.dumps({"image": text}), content_type="text/plain")


@pytest.mark.parametrize("send", [as_multipart, as_raw, as_base64, as_data_url])
def test_picture(pictures, send):
    answer = send(client_of(pictures), "/api/v1/models/animals:image")
    assert answer.status_code == 200, answer.text
    found = answer.get_json()
    cat, dog = expected_scores()
    assert (found["model"], found["version"], found["label"], found["class"]) == (
        "animals", 3, "dog", 1,
    )  # fmt: skip
    assert [one["label"] for one in found["top"]] == ["dog", "cat"]
    assert [one["score"] for one in found["top"]] == pytest.approx([dog, cat], abs=1e-6)


def test_picture_of_a_version_and_fewer_classes(pictures):
    client = client_of(pictures)
    found = as_raw(client, "/api/v1/models/animals/versions/3:image?top=1").get_json()
    assert [one["label"] for one in found["top"]] == ["dog"]
    assert as_raw(client, "/api/v1/models/animals/versions/4:image").status_code == 404
    assert as_raw(client, "/api/v1/models/animals:image?top=0").status_code == 400
    assert as_raw(client, "/api/v1/models/animals:image?top=x").status_code == 400
    assert as_raw(client, "/api/v1/models/nothing:image").status_code == 404


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b"", 400, "no picture"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, 400, "picture"),
        (encoded(NOISE)[:2000], 400, "picture"),
        (b'{"image": 5}', 400, "Expected"),
        (b'{"image": {"b64": "!"}}', 400, "base64"),
        (b"%PDF-1.4", 400, "no picture"),
    ],
    ids=["empty", "png", "truncated", "number", "base64", "pdf"],
)
def test_bad_pictures(pictures, data, code, text):
    answer = client_of(pictures).post("/api/v1/models/animals:image", data=data)
    assert answer.status_code == code
    assert text in answer.get_json()["error"]


def test_a_huge_picture_is_refused_before_it_is_decoded(pictures):
    huge = encoded(np.zeros((2000, 2000), np.uint8))
    client = client_of(pictures, limits=ImageLimits(max_pixels=1_000_000))
    answer = client.post("/api/v1/models/animals:image", data=huge)
    assert (answer.status_code, "4000000 pixels" in answer.text) == (413, True)


def test_a_model_without_preprocessing_names_the_way_out(tmp_path):
    core = fakes.core_with(tmp_path, {1: fakes.scaled()})
    answer = client_of(core).post("/api/v1/models/m:image", data=encoded())
    assert answer.status_code == 400
    assert "--preprocess" in answer.get_json()["error"]
    core.stop()
