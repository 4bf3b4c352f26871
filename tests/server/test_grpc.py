"""The gRPC services, called with the stubs of tensorflow-serving-api in one child process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import replay

pytestmark = pytest.mark.tf

HERE = Path(__file__).parent
CASES = replay.load_cases("grpc")
TFLITE_ONLY = "grpc-tflite-in-version-folder"
HALF = "saved_model_half_plus_two_2_versions"
EXAMPLE = {"features": {"feature": {"x": {"floatList": {"value": [80.0]}}}}}
CONTEXT = {"features": {"feature": {"x": {"floatList": {"value": [20.0]}}}}}


def half_inputs(*values):
    return {"x": {"dtype": "float32", "shape": [len(values)], "values": values}}


def spec(name=HALF, **more):
    return {"model_spec": {"name": name, **more}}


def task(signature, method):
    return {
        "model_spec": {"name": HALF, "signature_name": signature},
        "method_name": f"tensorflow/serving/{method}",
    }


INPUT = {"input": {"example_list": {"examples": [EXAMPLE]}}}
WITH_CONTEXT = {"input": {"example_list_with_context": {"examples": [{}], "context": CONTEXT}}}
BOTH = [task("regress_x_to_y", "regress"), task("classify_x_to_y", "classify")]

CALLS = {
    "predict": {"rpc": "Predict", "request": spec(), "inputs": half_inputs(1, 2, 5)},
    "predict a label": {
        "rpc": "Predict", "request": spec(version_label="Version_Label"), "inputs": half_inputs(1),
    },
    "predict a version": {
        "rpc": "Predict", "request": spec(version="123"), "inputs": half_inputs(1),
    },
    "unknown model": {"rpc": "Predict", "request": spec("other"), "inputs": half_inputs(1)},
    "unknown version": {
        "rpc": "Predict", "request": spec(version="7"), "inputs": half_inputs(1),
    },
    "unknown label": {
        "rpc": "Predict", "request": spec(version_label="no"), "inputs": half_inputs(1),
    },
    "unknown signature": {
        "rpc": "Predict", "request": spec(signature_name="no"), "inputs": half_inputs(1),
    },
    "no spec": {"rpc": "Predict", "request": {}},
    "no name": {"rpc": "Predict", "request": {"model_spec": {}}},
    "missing input": {"rpc": "Predict", "request": spec()},
    "extra input": {
        "rpc": "Predict", "request": spec(),
        "inputs": {**half_inputs(1), "z": half_inputs(1)["x"]},
    },
    "unknown output": {
        "rpc": "Predict", "request": {**spec(), "output_filter": ["no"]}, "inputs": half_inputs(1),
    },
    "output twice": {
        "rpc": "Predict", "request": {**spec(), "output_filter": ["y", "y"]},
        "inputs": half_inputs(1),
    },
    "wrong dtype": {
        "rpc": "Predict", "request": spec(),
        "inputs": {"x": {"dtype": "int32", "shape": [1], "values": [1]}},
    },
    "regress": {
        "rpc": "Regress", "request": {**spec(signature_name="regress_x_to_y"), **INPUT},
    },
    "regress with context": {
        "rpc": "Regress", "request": {**spec(signature_name="regress_x_to_y"), **WITH_CONTEXT},
    },
    "regress nothing": {"rpc": "Regress", "request": spec(signature_name="regress_x_to_y")},
    "regress unknown signature": {
        "rpc": "Regress", "request": {**spec(signature_name="no"), **INPUT},
    },
    "classify": {
        "rpc": "Classify", "request": {**spec(signature_name="classify_x_to_y"), **INPUT},
    },
    "multi": {"rpc": "MultiInference", "request": {"tasks": BOTH, **INPUT}},
    "multi twice": {"rpc": "MultiInference", "request": {"tasks": [BOTH[0]] * 2, **INPUT}},
    "multi other method": {
        "rpc": "MultiInference",
        "request": {"tasks": [task("serving_default", "predict")], **INPUT},
    },
    "multi no task": {"rpc": "MultiInference", "request": INPUT},
    "metadata": {
        "rpc": "GetModelMetadata", "request": {**spec(), "metadata_field": ["signature_def"]},
    },
    "metadata of nothing": {"rpc": "GetModelMetadata", "request": spec()},
    "metadata of another": {
        "rpc": "GetModelMetadata", "request": {**spec(), "metadata_field": ["more"]},
    },
    "status": {"rpc": "GetModelStatus", "request": spec()},
    "status of unknown": {"rpc": "GetModelStatus", "request": spec("other")},
    "health": {"rpc": "Check", "request": {"service": "PredictionService"}},
    "deadline": {
        # So many that they are not sent within the clock's resolution.
        "rpc": "Predict", "request": spec(), "timeout": 1e-9,
        "inputs": half_inputs(*[1.0] * 400_000),
    },
    "reload a custom config": {
        "rpc": "HandleReloadConfigRequest", "request": {"config": {"custom_model_config": {}}},
    },
    "reload without a path": {
        "rpc": "HandleReloadConfigRequest",
        "request": {"config": {"model_config_list": {"config": [{"name": "m"}]}}},
    },
    "reload a missing folder": {
        "configure": [[HALF, "FOLDER", {"Version_Label": 123}], ["nowhere", "/no/such/folder", {}]],
    },
    "reload with an early label": {
        "configure": [[HALF, "FOLDER", {"Version_Label": 123, "canary": 9}]],
    },
    "the model is still there": {"rpc": "Predict", "request": spec(), "inputs": half_inputs(4)},
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(serving, serve_case, replay_models, tmp_path_factory):
    half = next(case for case in replay.load_cases("http") if case["model"].get("name") == HALF)
    serve_case(half)
    folder = str(replay_models[replay.model_key(half["model"])])
    calls = [json.loads(json.dumps(call).replace("FOLDER", folder)) for call in CALLS.values()]
    for case in CASES:
        path = str(replay_models[replay.model_key(case["model"])])
        request = {key: case["request"].get(key) for key in ("model_spec", "output_filter")}
        calls.append({"configure": [[case["model"]["name"], path, {}]]})
        calls.append({
            "rpc": "Predict", "inputs": case["request"]["inputs"],
            "request": {key: value for key, value in request.items() if value},
        })  # fmt: skip
    calls.append({"configure": []})
    file = tmp_path_factory.mktemp("grpc") / "calls.json"
    file.write_text(json.dumps(calls))
    done = subprocess.run(
        [sys.executable, HERE / "grpc_calls.py", serving.grpc, file],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    serving.holds = None
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    named = dict(zip(CALLS, found, strict=False))
    cases = found[len(CALLS) :]
    named.update({case["id"]: cases[2 * n + 1] for n, case in enumerate(CASES)})
    return named


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(answers, case):
    found = answers[case["id"]]
    if case["id"] == TFLITE_ONLY:
        # A deviation: version folders hold SavedModels (docs/serving.md).
        assert (found["code"], found["text"][:33]) == (
            "NOT_FOUND",
            "Servable not found for request: L",
        )
        return
    expect = case["expect"]
    assert found["code"] == expect["code"], found
    answer = found["answer"]
    assert answer["model_spec"]["signature_name"] == expect["model_spec"]["signature_name"]
    assert int(answer["model_spec"]["version"]) == expect["model_spec"]["version"]
    for name, value in expect["outputs"].items():
        assert answer["outputs"][name]["dtype"] == value["dtype"]
        assert answer["outputs"][name]["values"] == value["values"]


def test_predict(answers):
    assert answers["predict"]["answer"] == {
        "outputs": {"y": {"dtype": "float32", "shape": [3], "values": [2.5, 3.0, 4.5]}},
        "model_spec": {"name": HALF, "signature_name": "serving_default", "version": "123"},
    }
    for name in ("predict a label", "predict a version"):
        assert answers[name]["answer"]["outputs"]["y"]["values"] == [2.5]


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("unknown model", "NOT_FOUND", "Servable not found for request: Latest(other)"),
        ("unknown version", "NOT_FOUND", f"Servable not found for request: Specific({HALF}, 7)"),
        ("unknown label", "INVALID_ARGUMENT", "Unrecognized servable version label: no"),
        ("unknown signature", "FAILED_PRECONDITION", 'Serving signature key "no" not found.'),
        ("no spec", "INVALID_ARGUMENT", "Missing ModelSpec"),
        ("no name", "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        ("missing input", "INVALID_ARGUMENT", "input size does not match signature: 0!=1"),
        ("extra input", "INVALID_ARGUMENT", "Sent extra: {z}"),
        ("unknown output", "INVALID_ARGUMENT", "output tensor alias not found in signature: no"),
        ("output twice", "INVALID_ARGUMENT", "duplicate output tensor alias: y"),
        ("wrong dtype", "INVALID_ARGUMENT", "float"),
        ("regress nothing", "INVALID_ARGUMENT", "Input is empty"),
        (
            "regress unknown signature",
            "INVALID_ARGUMENT",
            "No signature was found with the name: no",
        ),
        ("multi twice", "INVALID_ARGUMENT", "Duplicate evaluation of signature: regress_x_to_y"),
        ("multi other method", "UNIMPLEMENTED", "Unsupported signature method_name"),
        ("multi no task", "INVALID_ARGUMENT", "at least one task"),
        ("metadata of nothing", "INVALID_ARGUMENT", "at least one metadata_field"),
        ("metadata of another", "INVALID_ARGUMENT", "Metadata field more is not supported"),
        ("status of unknown", "NOT_FOUND", "Could not find any versions of model other"),
    ],
)
def test_refusals(answers, name, code, text):
    assert answers[name]["code"] == code
    assert text in answers[name]["text"]


def test_examples(answers):
    assert answers["regress"]["answer"]["result"]["regressions"] == [{"value": 42.0}]
    assert answers["regress with context"]["answer"]["result"]["regressions"] == [{"value": 12.0}]
    classes = answers["classify"]["answer"]["result"]["classifications"][0]["classes"]
    assert classes == [{"score": 42.0}]


def test_multi_inference_answers_in_the_order_of_the_tasks(answers):
    first, second = answers["multi"]["answer"]["results"]
    assert first["regression_result"]["regressions"] == [{"value": 42.0}]
    assert second["classification_result"]["classifications"][0]["classes"] == [{"score": 42.0}]
    assert {first["model_spec"]["version"], second["model_spec"]["version"]} == {"123"}


def test_metadata(answers):
    answer = answers["metadata"]["answer"]
    assert answer["model_spec"] == {"name": HALF, "version": "123"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"


def test_status_and_health(answers):
    (entry,) = answers["status"]["answer"]["model_version_status"]
    assert (entry["version"], entry["state"]) == ("123", "AVAILABLE")
    assert answers["health"]["answer"] == {"status": "SERVING"}


def test_a_deadline_ends_the_call(answers):
    assert answers["deadline"]["code"] == "DEADLINE_EXCEEDED"


def test_a_reload_that_is_refused_says_why_and_changes_nothing(answers):
    for name, text in (
        ("reload a custom config", "expects a model_config_list"),
        ("reload without a path", "needs a name and a base_path"),
        ("reload a missing folder", "1 servable(s) did not become available: {nowhere}"),
        ("reload with an early label", "assign label canary to version 9"),
    ):
        status = answers[name]["answer"]["status"]
        assert text in (status.get("error_message") or status.get("errorMessage"))
    assert answers["the model is still there"]["answer"]["outputs"]["y"]["values"] == [4.0]
