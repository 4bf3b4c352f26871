"""Models that are Python code, without Keras; test_http.py serves a real .keras file."""

import numpy as np
import pytest
from packager_server import eager_model
from packager_server.codes import Code, ServeError
from packager_server.lifecycle import ModelConfig
from packager_server.loader import VersionLoader
from packager_server.metrics import Metrics
from packager_server.saved_model import LoadOptions

MANIFEST = {
    "schema": 1,
    "inputs": [{"name": "x", "shape": [None, 2], "dtype": "float32"}],
    "outputs": [
        {"name": "sum", "shape": [None], "dtype": "float32"},
        {"name": "double", "shape": [None, 2], "dtype": "float32"},
    ],
    "artifacts": [
        {"id": "keras", "code": "tests.server.eager_code:make", "runtime": {"kind": "keras"}}
    ],
}
X = np.array([[1.0, 2.5], [-3.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {"sum": x.sum(1), "double": 2 * x},
        lambda x: [x.sum(1), 2 * x],
        lambda x: (x.sum(1), 2 * x),
    ],
)
def test_answers_are_named(function):
    model = eager_model.EagerModel(function, MANIFEST)
    found = model.run("serving_default", {"x": X}, ("double", "sum"))
    assert found["sum"].tolist() == [3.5, 1.0]
    assert found["double"].tolist() == [[2.0, 5.0], [-6.0, 8.0]]
    assert list(found) == ["double", "sum"]


@pytest.mark.parametrize("function", [lambda x: x, lambda x: {"sum": x}, lambda x: [x, x, x]])
def test_answers_that_do_not_fit_the_outputs(function):
    model = eager_model.EagerModel(function, MANIFEST)
    with pytest.raises(ServeError, match="does not fit the declared outputs"):
        model.run("serving_default", {"x": X}, ("sum",))


def test_several_inputs_come_as_a_dictionary():
    manifest = {
        "inputs": [{"name": n, "shape": [None], "dtype": "float32"} for n in ("a", "b")],
        "outputs": [{"name": "y", "shape": [None], "dtype": "float32"}],
    }
    model = eager_model.EagerModel(lambda feed: feed["a"] - feed["b"], manifest)
    feed = {"a": X[:, 0], "b": X[:, 1]}
    assert model.run("serving_default", feed, ("y",))["y"].tolist() == [-1.5, -7.0]


def test_a_closed_model_refuses():
    model = eager_model.EagerModel(lambda x: [x.sum(1), x], MANIFEST)
    model.close()
    with pytest.raises(ServeError, match="closed"):
        model.run("serving_default", {"x": X}, ("sum",))


def test_code_needs_permission():
    with pytest.raises(ServeError, match="--allow_model_code") as caught:
        eager_model.load("folder", MANIFEST, allow_code=False)
    assert caught.value.code == Code.PERMISSION_DENIED


def test_code_by_reference():
    model = eager_model.load("folder", MANIFEST, allow_code=True)
    assert model.run("serving_default", {"x": X}, ("sum",))["sum"].tolist() == [3.5, 1.0]


@pytest.mark.parametrize("reference", ["no.such.module:f", "tests.server.eager_code:no"])
def test_a_reference_that_leads_nowhere(reference):
    manifest = {**MANIFEST, "artifacts": [{**MANIFEST["artifacts"][0], "code": reference}]}
    with pytest.raises(ServeError, match=r"cannot be imported|has no function"):
        eager_model.load("folder", manifest, allow_code=True)


def test_a_file_outside_the_bundle_is_refused(tmp_path):
    entry = {"id": "keras", "path": "../model.keras", "runtime": {"kind": "keras"}}
    with pytest.raises(ServeError, match="leads out of the bundle"):
        eager_model.load(str(tmp_path), {**MANIFEST, "artifacts": [entry]}, allow_code=True)


def test_the_loader_chooses_the_engine(tmp_path):
    import json

    manifest = {**MANIFEST, "files": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    loader = VersionLoader(LoadOptions(), Metrics(), warmup=False, allow_code=True)
    loaded = loader(ModelConfig("m", str(tmp_path)), 1, str(tmp_path))
    assert loaded.manifest["outputs"][0]["name"] == "sum"
    assert loaded.model.run("serving_default", {"x": X}, ("sum",))["sum"].tolist() == [3.5, 1.0]


def test_the_application_for_another_wsgi_server(tmp_path):
    import json
    import time

    from packager_server.server import wsgi_app

    (tmp_path / "code" / "1").mkdir(parents=True)
    manifest = {**MANIFEST, "files": {}}
    (tmp_path / "code" / "1" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "tokens").write_text("secret")
    app = wsgi_app(
        f"--model_base_path={tmp_path / 'code'}", "--allow_model_code",
        "--enable_model_warmup=false", f"--auth_token_file={tmp_path / 'tokens'}",
    )  # fmt: skip
    client = app.test_client()
    deadline = time.monotonic() + 20
    while client.get("/readyz").status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    body = {"instances": [[1.0, 2.5]]}
    assert client.post("/v1/models/code:predict", json=body).status_code == 401
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "7"}
    answer = client.post("/v1/models/code:predict", json=body, headers=headers)
    assert answer.get_json() == {"predictions": [{"sum": 3.5, "double": [2.0, 5.0]}]}
    assert answer.headers["X-Request-Id"] == "7"
