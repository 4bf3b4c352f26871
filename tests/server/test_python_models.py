"""Models that no graph holds: packaged as they are, refused for all else, and served."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from packager import bundle, pipeline
from packager.children import Child
from packager.errors import ModelError, UnsupportedError
from packager.targets import select
from tests.conftest import loaded, packager

pytestmark = pytest.mark.tf

MODULE = "tests.server.python_models"


@pytest.fixture(scope="module")
def built(replay_models, once):
    """The bundles of a `.keras` file and of a function."""

    def make(folder):
        for source in (replay_models["python"] / "counted.keras", f"{MODULE}:pair"):
            ran = packager("build", source, "--custom-objects", MODULE, "--output", folder)
            assert ran.code == 0, ran.err
            (folder / "said.txt").write_text(ran.out)

    return once("python-models", make)


def test_the_keras_model_alone_is_made_and_the_reason_given_once(built):
    for name, code in (("counted", None), ("pair", f"{MODULE}:pair")):
        manifest = bundle.read_manifest(built / name / "1")
        (artifact,) = manifest.artifacts
        assert artifact.id == artifact.runtime.kind == "keras"
        assert artifact.code == code
        assert artifact.custom_objects == (MODULE,)
        assert artifact.gate.status == "passed"
        assert {r.id for r in manifest.refused} > {"saved_model", "tflite/float32", "tfjs/layers"}
        assert all("Collatz.call()" in r.reason for r in manifest.refused)
    assert (built / "counted/1/keras/model.keras").is_file()
    said = (built / "said.txt").read_text()
    assert said.count("which no graph holds") == 1
    assert "packager serve" in said
    assert "--allow_model_code" in said


def test_ends_and_activations_are_found_by_running_the_model(built):
    counted, pair = (bundle.read_manifest(built / name / "1") for name in ("counted", "pair"))
    assert [(o.shape, o.activation) for o in counted.outputs] == [((None, 3), "softmax")]
    assert counted.task == "classification"
    assert {i.name: i.shape for i in pair.inputs} == {"near": (None, 4), "far": (None, 2)}
    assert [o.shape for o in pair.outputs] == [(None, 2), (None, 2)]
    assert pair.task == "none"


def test_the_server_answers_what_the_models_do(built, serving, replay_models):
    folder = replay_models["python"]
    with loaded(folder / "answers.npz") as stored:
        answers = dict(stored)
    serving.configure(("counted", built / "counted", {}), ("pair", built / "pair", {}))
    inputs = answers["input"]
    status, answer = serving.json(
        "POST", "/v1/models/counted:predict", {"instances": inputs.tolist()}
    )
    assert status == 200, answer
    np.testing.assert_allclose(answer["predictions"], answers["counted"], atol=1e-6)
    given = {"near": inputs.tolist(), "far": inputs[:, :2].tolist()}
    status, answer = serving.json("POST", "/v1/models/pair:predict", {"inputs": given})
    assert status == 200, answer
    # Keras sorts the keys of a dictionary.
    for output, expected in (("output_1", "alpha"), ("output_2", "zeta")):
        np.testing.assert_allclose(answer["outputs"][output], answers[expected], atol=1e-6)
    serving.configure()


def test_what_the_models_code_raises_is_an_answer(built, serving):
    serving.configure(("counted", built / "counted", {}))
    huge = {"instances": [[1e38 * 10, 0.0, 0.0, 0.0]]}
    status, answer = serving.json("POST", "/v1/models/counted:predict", huge)
    assert 400 <= status < 600
    assert answer["error"]
    status, _ = serving.json("GET", "/v1/models/counted")
    assert status == 200
    serving.configure()


def test_code_is_run_by_verify_only_when_it_is_allowed(built):
    refused = packager("verify", built / "counted", "--json")
    (artifact,) = json.loads(refused.out)["artifacts"]
    assert artifact["status"] == "skipped"
    assert "--allow-model-code" in artifact["reason"]
    allowed = packager("verify", built / "counted", "--allow-model-code", "--json")
    (artifact,) = json.loads(allowed.out)["artifacts"]
    assert (allowed.code, artifact["status"]) == (0, "passed")


def test_weights_that_keras_would_leave_random_are_refused(replay_models):
    with (
        Child("packager.loaders.worker") as child,
        pytest.raises(ModelError, match="2 weights were not read") as caught,
    ):
        child.call(
            "open",
            "opening",
            source=replay_models["python"] / "unbuilt.keras",
            format="keras3",
            saved_by="keras 3",
            custom_objects=[MODULE],
        )
    assert "build()" in caught.value.hint


def test_where_tflite_alone_is_asked_for_nothing_is_made():
    job = SimpleNamespace(selection=select(["tflite"], calibrated=False))
    with pytest.raises(UnsupportedError, match="which no graph holds: TypeError") as caught:
        pipeline._keep_python(job, "TypeError: …")
    assert "--only keras" in caught.value.hint
