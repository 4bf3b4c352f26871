"""The third rung of `--auto`: whether to train, and what leaves the bundle; trains nothing."""

import json
from dataclasses import replace

import pytest

from packager import bundle, config
from packager.bundle import Gate
from packager.cache import Cache
from packager.console import Reporter
from packager.errors import ConfigError
from packager.job import Job
from packager.quantize import ladder, settings, training_rung
from packager.quantize.ladder import Climb, Step
from packager.quantize.plan import Plan
from packager.quantize.trial import Trial
from packager.targets import TARGETS, select

QAT = TARGETS["tflite/qat_int8"]
ENDS = ("tflite/int8", "tflite/int8_float_io")


def step(holds, agreement=0.5):
    trial = Trial({"agreement": agreement}, 10.0, 100, 1.0, ())
    return Step("calibration", Plan(), trial, holds)


def climb(holds):
    return Climb((step(holds),), step(holds), "why")


def job(tmp_path, *only, auto=True, **climbs):
    sources = {name: {"source": "x.npz"} for name in ("calibration", "evaluation", "train")}
    given = config.from_flags({"model": {"source": "m.keras"}, "int8": {"auto": auto}, **sources})
    chosen = select(only or [*ENDS, QAT.id], calibrated=True, trained=True)
    found = {f"tflite/{name}": climb(holds) for name, holds in climbs.items()}
    return Job(given, Reporter(quiet=True), chosen, None, tmp_path, tmp_path, None, None,
               Cache(None), climbs=found)  # fmt: skip


def test_it_trains_where_an_int8_file_does_not_keep_the_gates(tmp_path):
    needed = training_rung.is_needed
    assert not needed(job(tmp_path, int8=True))  # int8_float_io was made as int8
    assert needed(job(tmp_path, int8=False, int8_float_io=True))
    assert needed(job(tmp_path, int8=False, int8_float_io=False))
    assert needed(job(tmp_path, auto=False))
    assert needed(job(tmp_path, QAT.id))
    assert needed(job(tmp_path, "edgetpu", QAT.id, edgetpu=True))
    lost = job(tmp_path, "tflite/int8", QAT.id)
    lost.lose([TARGETS["tflite/int8"]], ConfigError("it cannot be made"))
    assert needed(lost)


def test_what_is_not_trained_is_said(tmp_path):
    both = job(tmp_path, int8=True)
    training_rung.spare(both, QAT)
    (refused,) = both.refused
    assert refused.reason == (
        "tflite/int8 and tflite/int8_float_io keep the gates already, so nothing was trained"
    )
    assert both.climbs["tflite/int8"].reason == "why; nothing was trained"
    assert not both.failures


@pytest.mark.parametrize(("holds", "chosen"), [(True, 1), (False, 0)])
def test_one_more_step(holds, chosen):
    trained = replace(step(holds, agreement=0.4), plan=None)
    found = ladder.to_json(ladder.one_more(climb(False), trained))
    assert found["chosen"] == chosen
    assert found["reason"] == (
        "quantization-aware training keeps the gates"
        if holds
        else "nothing that was tried keeps the gates; int8, min_max is nearest"
    )
    assert (found["steps"][1]["plan"], found["steps"][1]["rung"]) == (None, "calibration")


def test_a_training_that_failed_is_a_step(tmp_path):
    failed = job(tmp_path, "tflite/int8", QAT.id, int8=False)
    failed.lose([QAT], ConfigError("no GPU"))
    training_rung.add_step(failed, QAT)
    last = failed.climbs["tflite/int8"].steps[-1]
    assert (last.rung, last.holds, last.note) == ("training", False, "no GPU")


@pytest.fixture
def gated(digits_bundle, tmp_path):
    """A build with two int8 files that failed their gates, and one of training."""
    manifest = bundle.read_manifest(digits_bundle)
    made = {a.id: a for a in manifest.artifacts}
    failed = Gate("failed", "max_drop 0.3, limit 0.01")
    artifacts = [replace(a, gate=failed) if a.id in ENDS else a for a in made.values()]
    artifacts.append(replace(made["tflite/int8"], id=QAT.id, path="tflite/q.tflite"))
    build = job(tmp_path, int8=False, int8_float_io=False)
    build.artifacts = artifacts
    for path in (bundle.GOLDEN, *(made[name].path for name in ENDS)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((digits_bundle / path).read_bytes())
    return build, replace(manifest, artifacts=tuple(artifacts))


def test_int8_files_that_fail_leave_where_training_passes(gated, tmp_path):
    build, manifest = gated
    found = training_rung.replaced(build, manifest)
    kept = [a.id for a in manifest.artifacts if a.id not in ENDS]
    assert [a.id for a in found.artifacts] == [a.id for a in build.artifacts] == kept
    assert [r.id for r in found.refused] == list(ENDS)
    assert "max_drop 0.3, limit 0.01" in found.refused[0].reason
    assert not list((tmp_path / "tflite").iterdir())
    golden = json.loads((tmp_path / bundle.GOLDEN).read_text())
    stored = {name for entry in golden["samples"] for name in entry["artifacts"]}
    assert stored == set(golden["tolerances"]) == set(kept) - {QAT.id}


def test_nothing_leaves_where_training_fails_too(gated, tmp_path):
    build, manifest = gated
    failed = [replace(a, gate=Gate("failed", "x")) for a in manifest.artifacts]
    manifest = replace(manifest, artifacts=tuple(failed))
    assert training_rung.replaced(build, manifest) is manifest
    assert len(list((tmp_path / "tflite").iterdir())) == 2


def test_other_workers_cannot_know_whether_to_train(tmp_path):
    given = job(tmp_path).config
    settings.check(given)
    with pytest.raises(ConfigError, match="other workers would wait"):
        settings.check(replace(given, qat=replace(given.qat, strategy="multiworker")))
