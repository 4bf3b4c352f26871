"""The verification of a bundle, with stand-ins that answer as the shipped runners do."""

import json
from pathlib import Path

import numpy as np
import pytest

from packager import bundle
from packager.bundle import Artifact, InputSpec, Manifest, OutputSpec, Runtime, Source
from packager.cache import Cache
from packager.console import Reporter
from packager.errors import EnvironmentLacks
from packager.samples import Samples
from packager.verify import check
from packager.verify.check import SourceOutputs, merge, verify_artifacts
from packager.verify.golden import Sample
from tests.conftest import packager

RNG = np.random.default_rng(21)
GOLDEN, EVALUATION = 4, 1500
NAMES = ("saved_model", "tflite/float32", "tfjs/layers")


def softmax(rows):
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


ON_GOLDEN = softmax(RNG.normal(size=(GOLDEN, 3)))
ON_EVALUATION = softmax(RNG.normal(size=(EVALUATION, 3)) * 3)
TARGETS = ON_EVALUATION.argmax(axis=1)


class StandIn:
    """Answers like one of the runners; `golden` and `evaluation` are the artifact's outputs.

    `style` says what happens to values that are not finite: the device runner leaves the sample
    out of the record, the server the artifact, and JavaScript writes null.
    """

    def __init__(self, style, golden=ON_GOLDEN, evaluation=ON_EVALUATION, status=None):
        self.style, self.golden, self.evaluation = style, golden, evaluation
        self.status = status

    def record(self, folder, artifact, values, evaluation, *, parts=1):
        if self.status == "lacks":
            raise EnvironmentLacks("no such runtime", hint="pip install runtime")
        if evaluation and self.status in (None, "failed later"):
            inputs, outputs = evaluation
            golden = len(np.load(inputs / "x.npy")) == GOLDEN
            np.save(outputs / "y.npy", self.golden if golden else self.evaluation)
        finite = np.isfinite(self.golden).all(axis=1)
        rows = {f"{i:03d}": {"y": row.tolist()} for i, row in enumerate(self.golden)}
        if self.style == "edge":
            rows = {
                name: row for (name, row), good in zip(rows.items(), finite, strict=True) if good
            }
        everything = {artifact.id: rows}
        if self.style == "server" and not finite.all():
            everything = {}
        text = json.dumps(everything).replace("NaN", "null").replace("Infinity", "null")
        values.write_text(text.replace("-null", "null"))
        failed = self.style != "node" and not finite.all()
        status = (self.status or ("failed" if failed else "recorded")).split()[0]
        return {"id": artifact.id, "status": status, "samples": GOLDEN, "reason": "because"}


def verified(tmp_path, monkeypatch, runners, *, evaluation=True):
    """Verifies one artifact for each stand-in."""
    kinds = dict(zip(runners, ("saved_model", "tflite", "tfjs-layers"), strict=False))
    by_kind = {kinds[name]: runner for name, runner in runners.items()}
    monkeypatch.setattr(check.runners, "for_kind", by_kind.__getitem__)
    work, folder = tmp_path / "work", tmp_path / "bundle"
    for path in (work, folder, work / "golden-in", work / "golden-source"):
        path.mkdir(parents=True, exist_ok=True)
    np.save(work / "golden-in/x.npy", np.ones((GOLDEN, 2), np.float32))
    np.save(work / "golden-source/y.npy", ON_GOLDEN)
    if evaluation:
        for name, values in (("in", np.ones((EVALUATION, 2))), ("source", ON_EVALUATION)):
            (work / f"evaluation-{name}").mkdir()
            np.save(work / f"evaluation-{name}" / ("x.npy" if name == "in" else "y.npy"), values)
    manifest = Manifest(
        name="m",
        version=1,
        created="2026-01-01T00:00:00Z",
        source=Source("m.keras", "0" * 64, "keras3", "keras 3"),
        task="classification",
        threshold=None,
        inputs=(InputSpec("x", "x", (None, 2), "float32"),),
        outputs=(OutputSpec("y", "y", (None, 3), "float32", "softmax"),),
        labels=(),
        artifacts=tuple(Artifact(n, n, Runtime(kinds[n]), size_bytes=10) for n in runners),
    )
    data = Samples(
        golden=tuple(Sample(f"{i:03d}", {"x": f"golden/{i:03d}.x.npy"}) for i in range(GOLDEN)),
        golden_inputs=work / "golden-in",
        synthetic=not evaluation,
        evaluation_inputs=work / "evaluation-in" if evaluation else None,
        evaluation_count=EVALUATION if evaluation else 0,
        targets=TARGETS if evaluation else None,
        calibration=None,
        calibration_inputs=None,
    )
    golden = work / "golden-source"
    source = SourceOutputs(golden, golden, work / "evaluation-source" if evaluation else None)
    reporter, cache = Reporter(quiet=True), Cache(None)
    found = verify_artifacts(manifest, folder, work, source, data, reporter, cache, jobs=2)
    samples = json.loads((folder / bundle.GOLDEN).read_text())
    return found, {a.id: a for a in found.manifest.artifacts}, samples


def broken(outputs, *places, value=np.nan):
    outputs = outputs.copy()
    for place in places:
        outputs[place] = value
    return outputs


def test_equal_artifacts_pass_everything(tmp_path, monkeypatch):
    runners = {n: StandIn(s) for n, s in zip(NAMES, ("server", "edge", "node"), strict=True)}
    found, artifacts, samples = verified(tmp_path, monkeypatch, runners)
    assert found.failures == {}
    for artifact in artifacts.values():
        assert artifact.gate.status == "passed"
        assert artifact.metrics["accuracy"] == 1.0
        assert artifact.metrics["max_abs_diff"] == 0.0
    assert set(samples["tolerances"]) == set(NAMES)
    stored = [[s["artifacts"][n]["y"] for s in samples["samples"]] for n in NAMES]
    for rows in stored:
        np.testing.assert_allclose(rows, ON_GOLDEN, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("evaluation", [True, False])
def test_values_that_are_not_finite_fail_one_gate_in_every_runtime(
    tmp_path, monkeypatch, value, evaluation
):
    bad = broken(ON_GOLDEN, (1, 0), (1, 2), (3, 1), value=value)
    runners = {
        "saved_model": StandIn("server", bad),
        "tflite/float32": StandIn("edge", bad),
        "tfjs/layers": StandIn("node", bad),
    }
    found, artifacts, samples = verified(tmp_path, monkeypatch, runners, evaluation=evaluation)
    assert found.failures == {}
    for artifact in artifacts.values():
        assert artifact.gate.status == "failed"
        assert artifact.gate.reason == "3 output values are NaN or infinite"
        assert artifact.metrics == {"non_finite": 3.0}
    assert samples["tolerances"] == {}
    assert all(entry["artifacts"] == {} for entry in samples["samples"])
    bundle.write_json(found.manifest, tmp_path / "manifest.json")


def test_values_that_are_not_finite_on_evaluation_samples_only(tmp_path, monkeypatch):
    bad = broken(ON_EVALUATION, (1400, 0))
    runners = {"saved_model": StandIn("server", evaluation=bad), "tflite/float32": StandIn("edge")}
    _, artifacts, samples = verified(tmp_path, monkeypatch, runners)
    assert artifacts["saved_model"].gate.reason == "1 output value is NaN or infinite"
    assert artifacts["tflite/float32"].gate.status == "passed"
    assert set(samples["tolerances"]) == {"saved_model", "tflite/float32"}


@pytest.mark.parametrize("status", ["failed", "failed later"])
@pytest.mark.parametrize("style", ["server", "edge", "node"])
def test_an_artifact_that_does_not_run_is_a_failure(tmp_path, monkeypatch, style, status):
    """Finite outputs beside `failed` mean another reason than NaN, which must not get lost."""
    runners = {"saved_model": StandIn(style, status=status), "tflite/float32": StandIn("edge")}
    found, artifacts, _ = verified(tmp_path, monkeypatch, runners)
    assert list(found.failures) == ["saved_model"]
    assert "saved_model cannot be run: because" in found.failures["saved_model"].message
    assert artifacts["saved_model"].gate.status == "failed"
    assert artifacts["tflite/float32"].gate.status == "passed"


@pytest.mark.parametrize("status", ["skipped", "lacks"])
def test_a_missing_runtime_is_a_skip(tmp_path, monkeypatch, status):
    runners = {"saved_model": StandIn("server", status=status), "tflite/float32": StandIn("edge")}
    found, artifacts, _ = verified(tmp_path, monkeypatch, runners)
    assert found.failures == {}
    gate = artifacts["saved_model"].gate
    assert gate.status == "skipped"
    assert ("because" if status == "skipped" else "pip install runtime") in gate.reason


def test_another_number_of_values_is_a_failure(tmp_path, monkeypatch):
    runners = {
        "saved_model": StandIn("server", evaluation=ON_EVALUATION[:, :2]),
        "tflite/float32": StandIn("edge", golden=ON_GOLDEN[:, :2]),
    }
    found, _, _ = verified(tmp_path, monkeypatch, runners)
    assert "has the shape [1500, 2]" in found.failures["saved_model"].message
    assert "expected 3 values" in found.failures["tflite/float32"].message


def test_golden_and_evaluation_differences_are_shares_of_one_range(tmp_path, monkeypatch):
    shifted = ON_GOLDEN + np.float32(0.02)
    found, artifacts, samples = verified(
        tmp_path, monkeypatch, {"saved_model": StandIn("server", golden=shifted)}
    )
    spread = float(np.ptp(ON_EVALUATION.astype(np.float64)))
    assert spread > 1.01 * float(np.ptp(ON_GOLDEN))
    metrics = artifacts["saved_model"].metrics
    assert metrics["max_abs_diff"] == pytest.approx(0.02, rel=1e-4)
    assert metrics["range_diff"] == pytest.approx(0.02 / spread, rel=1e-4)
    assert metrics["mean_abs_diff"] == 0.0
    assert samples["tolerances"]["saved_model"]["y"] == pytest.approx(1e-5 * spread)
    assert found.manifest.artifacts[0].gate.status == "failed"


def test_merge_keeps_the_larger_difference_and_adds_what_is_not_finite():
    one = {"max_abs_diff": 0.5, "range_diff": 0.1, "drop": 0.01}
    other = {"max_abs_diff": 0.25, "range_diff": 0.2, "agreement": 0.5}
    assert merge(one, other) == {"max_abs_diff": 0.5, "range_diff": 0.2, "drop": 0.01}
    assert merge({"non_finite": 3.0}, other) == {"non_finite": 3.0}
    assert merge(one, {"non_finite": 2.0}) == {"non_finite": 2.0}
    assert merge({"non_finite": 3.0}, {"non_finite": 2.0}) == {"non_finite": 5.0}


@pytest.mark.parametrize(("threshold", "accuracy"), [(0.0, 0.25), (None, 0.75), (1.0, 0.75)])
def test_a_threshold_of_zero_is_no_default(tmp_path, threshold, accuracy):
    """Three of four targets are negative, and all scores lie below 0.5 and above 0."""
    (tmp_path / "golden-source").mkdir()
    (tmp_path / "m.evaluation").mkdir()
    values = np.array([[0.1], [0.2], [0.3], [0.4]], np.float32)
    for folder in ("golden-source", "m.evaluation"):
        np.save(tmp_path / folder / "y.npy", values)
    manifest = Manifest(
        name="m", version=1, created="", source=Source("m", "", "keras3", ""), task="binary",
        threshold=threshold, inputs=(), labels=(), artifacts=(),
        outputs=(OutputSpec("y", "y", (None, 1), "float32", "sigmoid"),),
    )  # fmt: skip
    golden = tmp_path / "golden-source"
    data = Samples((), golden, False, golden, 4, np.array([0, 0, 0, 1]), None, None)
    source = SourceOutputs(golden, golden, golden)
    job = check._Verification(
        manifest,
        tmp_path,
        tmp_path,
        source,
        data,
        {"y": values},
        {"y": 0.3},
        {"y": 0.0},
        cache=Cache(None),
        jobs=2,
    )
    found = job._measure(Artifact("m", "m", Runtime("tflite")), {"y": values})
    assert found["accuracy"] == accuracy


@pytest.mark.tf
def test_an_infinite_artifact_is_a_failed_gate_of_a_build_that_completes(tmp_path):
    """The divisor's weights are below float16's smallest number, so that it becomes zero."""
    (tmp_path / "tiny.py").write_text(
        "import keras, numpy as np\n"
        "def make():\n"
        "    x = keras.Input((16,), name='x')\n"
        "    positive = keras.layers.Activation('sigmoid')(x)\n"
        "    dense = [keras.layers.Dense(64, use_bias=False, name=n) for n in 'ab']\n"
        "    model = keras.Model(x, keras.ops.divide(*[layer(positive) for layer in dense]))\n"
        "    values = np.random.default_rng(0).uniform(0.5, 1.5, (2, 16, 64))\n"
        "    dense[0].set_weights([values[0]])\n"
        "    dense[1].set_weights([values[1] * 1e-9])\n"
        "    return model\n"
    )
    ran = packager(
        "build", "tiny:make", "--only", "tflite/float32", "--only", "tflite/float16", "--json",
        "--output", tmp_path / "out", cwd=tmp_path,
    )  # fmt: skip
    assert ran.code == 3, ran.err
    float32, float16 = ran.json["artifacts"]
    assert float32["gate"]["status"] == "passed"
    assert float16["gate"]["status"] == "failed"
    assert "NaN or infinite" in float16["gate"]["reason"]
    assert ran.json["failures"] == []
    samples = json.loads((Path(ran.json["bundle"]) / "golden/samples.json").read_text())
    assert list(samples["tolerances"]) == ["tflite/float32"]
