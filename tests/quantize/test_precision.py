"""Which layers lose accuracy under int8, and what is done about it: on a net with one made bad."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from packager import bundle, tflite_file
from packager.children import Child
from packager.errors import ConfigError, UnsupportedError
from packager.explain import data
from packager.explain.data import Given
from packager.quantize import (
    blame,
    columns,
    exclude,
    halves,
    ladder,
    op_layers,
    pool,
    search,
    settings,
)
from packager.quantize.exclude import within
from packager.quantize.ladder import Ladder
from packager.quantize.plan import Plan
from tests.conftest import DIGITS, packager
from tests.quantize import bad_layer

pytestmark = pytest.mark.tf

# Operators of the digits model: block2_depthwise and block2_pointwise.
WRITER, READER = 8, 9
BAD = ("block2_depthwise", "block2_pointwise")


@pytest.fixture(scope="module")
def bad(digits_bundle, tmp_path_factory):
    """The digits bundle with a layer whose channels differ by a factor of 1000."""
    folder = tmp_path_factory.mktemp("bad") / "digits"
    bad_layer.in_bundle(digits_bundle, folder, WRITER, READER, 1000.0)
    return folder


@pytest.fixture(scope="module")
def subject(bad, tmp_path_factory):
    """The bad net with a few samples, and ranges of all and of each half of the calibration."""
    work = tmp_path_factory.mktemp("samples")
    given = Given(
        str(DIGITS / "data/calibration.npz"), str(DIGITS / "data/evaluation.npz"), samples=80
    )
    with Child(pool.WORKER) as litert:
        return data.find(bad, bundle.read_manifest(bad), given, work, litert, halve=True).subject


@pytest.fixture(scope="module")
def trials(subject, tmp_path_factory):
    with pool.opened(subject, tmp_path_factory.mktemp("trials")) as opened:
        yield opened


@pytest.fixture(scope="module")
def blamed(trials):
    return blame.blame(trials, Plan())


def test_in_float_nothing_has_changed(trials):
    """Else the loss below would not be one of int8."""
    assert trials.reference.accuracy > 0.95


def test_blame_names_the_layer_that_was_made_bad(blamed):
    first = blamed.layers[0]
    assert first.layer == BAD[0]
    assert first.readers == BAD[1:]
    # Its output must stay float, and for that its reader must: that it does itself is not enough.
    assert first.with_readers.noise > 0.95
    assert first.with_readers.points > blamed.noise_floor
    assert first.in_float.noise < 0.5
    assert all(entry.best.noise < 0.6 for entry in blamed.layers[2:])
    said = blame.sentence(first, blamed)
    assert said.startswith("block2_depthwise: leaving it and block2_pointwise in float removes")
    assert "of 256 steps" in said


def test_alone_in_int8_only_the_bad_layer_and_its_reader_lose(blamed):
    worst = sorted(blamed.layers, key=lambda e: e.alone_snr_db)[:2]
    assert {entry.layer for entry in worst} == set(BAD)


def test_the_smallest_set_is_the_two_layers(trials, blamed):
    holds = within(bundle.GateLimits(max_drop=0.01))
    base = Plan(float_io=True)
    assert not holds(trials.one(base))
    found = exclude.smallest(trials, blamed, base, holds)
    assert found.holds and set(found.plan.layers) == set(BAD)
    assert found.trial.size_bytes <= 0.6 * trials.reference.size_bytes
    assert found.trial.integer_op_share < 1.0


def test_the_ladder_climbs_to_the_layers_and_stops(trials):
    found = ladder.climb(Ladder(trials, Plan(), within(bundle.GateLimits())))
    assert [s.rung for s in found.steps] == ["calibration"] * 5 + ["layers"] * (
        len(found.steps) - 5
    )
    assert [s.holds for s in found.steps] == [False] * (len(found.steps) - 1) + [True]
    assert set(found.chosen.plan.layers.items()) == {(name, "float") for name in BAD}
    assert found.chosen.trial.metrics["drop"] <= 0.01
    assert all(s.trial.latency_ms > 0 for s in found.steps)
    assert json.loads(json.dumps(ladder.to_json(found)))["chosen"] == len(found.steps) - 1


def test_a_gate_that_nothing_can_meet_gives_the_nearest_and_says_so(trials):
    nothing = Ladder(trials, Plan(), lambda trial: False)
    found = ladder.climb(nothing, rungs=(ladder.algorithms,))
    assert not found.chosen.holds and "nothing that was tried" in found.reason
    best = max(s.trial.snr_db for s in found.steps)
    assert found.chosen.trial.snr_db == pytest.approx(best, abs=3.0)


def test_where_the_answers_are_exact_no_more_layers_are_tried(trials, blamed):
    """A gate on something else, such as the size, is not met by more layers in float."""
    found = exclude.smallest(trials, blamed, Plan(float_io=True), lambda trial: False)
    assert not found.holds and found.trial.metrics["agreement"] == 1.0
    assert len(found.path) <= 3


def test_a_finished_file_is_measured_as_a_trial(trials, subject):
    """The step of training; here it is the float file itself."""
    found = trials.file(subject.model, runs=2)
    assert found.metrics["agreement"] == 1.0 and found.metrics["max_abs_diff"] == 0.0
    assert (found.size_bytes, found.integer_op_share) == (trials.reference.size_bytes, 0.0)
    assert found.metrics["accuracy"] == trials.reference.accuracy and found.latency_ms > 0


def test_int16_layers_leave_no_floats(trials):
    plan = Plan(layers=dict.fromkeys(BAD, "int16"))
    assert trials.one(plan).integer_op_share == 1.0
    assert trials.one(plan).snr_db > trials.one(Plan()).snr_db


def test_a_plan_that_cannot_be_made_is_an_error_not_a_result(trials):
    (found,) = trials.run([Plan(algorithm="octav", layers={"no such layer": "float"})])
    assert isinstance(found, Exception)


def test_int8_ends_are_kept_or_the_plan_is_refused(trials):
    last = Plan(layers={"digit": "float"})
    refused, made = trials.run([last, replace(last, float_io=True)])
    assert isinstance(refused, UnsupportedError) and "would be float32" in refused.message
    assert not isinstance(made, Exception)


def test_a_layer_that_the_file_does_not_have_is_named(subject, tmp_path):
    plan = Plan(layers={"block2_depthwse": "float"})
    with Child(pool.WORKER) as litert, pytest.raises(ConfigError, match="block2_depthwse") as found:
        litert.call(
            "quantize", "x", model=subject.model, target=tmp_path / "x", mode="int8",
            ranges=subject.ranges["min_max"], plan=plan.to_json(), layers=list(subject.known),
        )  # fmt: skip
    assert "block2_depthwise" in found.value.hint


def test_calibration_by_averages_does_not_depend_on_the_order(bad, tmp_path):
    (model,) = (bad / "tflite").glob("*.float32.tflite")
    inputs = np.random.default_rng(0).random((8, 28, 28, 1), np.float32)
    inputs[2] *= 20
    found = []
    with Child(pool.WORKER) as litert:
        for seed in range(2):
            folder = tmp_path / str(seed)
            folder.mkdir()
            np.save(folder / "image.npy", np.random.default_rng(seed).permutation(inputs))
            found.append(data.calibrate(litert, model, folder, folder))
    first, second = ({n: json.loads(p.read_text()) for n, p in ranges.items()} for ranges in found)
    assert first["min_max"] == second["min_max"]
    for name, limits in first["average"].items():
        assert limits == pytest.approx(second["average"][name], rel=1e-6)
    assert first["average"]["image"][1] == pytest.approx(inputs.max(axis=(1, 2, 3)).mean())


def test_two_halves_of_the_calibration_samples_are_compared(trials, subject):
    found = halves.compare(trials, subject.ranges, Plan(algorithm="octav"))
    assert len(found.losses) == 2 and all(0.1 < loss < 1 for loss in found.losses)
    assert all(entry.ratio > halves.UNSTABLE and entry.layer for entry in found.ranges)
    said = halves.sentence(replace(found, stable=False))
    assert "each half" in said and said.endswith("give more calibration samples")
    # Ranges that a half does not share are told with their layer.
    (narrow, wide) = ({"x": [0.0, 1.0], "y": [0.0, 1.0]}, {"x": [0.0, 1.0], "y": [-1.0, 2.0]})
    ops = (op("ADD", "sum", ["x"], ["y"]),)
    assert halves._unstable(narrow, wide, ops) == (halves.Unstable("sum", "y", 3.0),)


def op(kind, layer, inputs, outputs):
    return op_layers.OpLayer(0, kind, layer, (layer,), tuple(inputs), tuple(outputs), 0)


def test_small_columns_are_found_and_the_first_scaling_with_them(digits_bundle, tmp_path):
    manifest = bundle.read_manifest(digits_bundle)
    spec = replace(manifest.inputs[0], name="row", image=None, shape=(None, 3))
    table = replace(manifest, inputs=(spec,))
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.save(tmp_path / "row.npy", values)
    assert columns.lost(table, tmp_path) == {}
    np.save(tmp_path / "row.npy", values * np.array([1.0, 1e-3, 1e3], np.float32))
    assert columns.lost(table, tmp_path) == {"row": [0, 1]}
    assert "columns 0, 1 of the input 'row'" in columns.described({"row": [0, 1]})
    ops = [
        op("SUB", "normalise", ["row"], ["a"]), op("MUL", "normalise", ["a"], ["b"]),
        op("FULLY_CONNECTED", "first", ["b"], ["c"]), op("FULLY_CONNECTED", "next", ["c"], ["d"]),
    ]  # fmt: skip
    assert columns.first_layers(ops, ["row"]) == [("normalise",), ("normalise", "first")]
    assert columns.first_layers(ops[2:], ["b"]) == [("first",)]


def test_a_search_finds_the_two_layers_goes_on_and_refuses_other_samples(trials, subject, tmp_path):
    limits = search.Limits(max_drop=0.01, trials=10)
    storage = tmp_path / "s.log"
    found = search.search(trials, subject, limits, storage)
    assert found.best is not None and search.within(found.best, limits)
    assert set(BAD) <= set(found.best.plan.layers)
    assert found.best.trial.size_bytes <= 0.6 * trials.reference.size_bytes
    assert found.best.number in found.pareto
    front = [e for e in found.entries if e.number in found.pareto]
    assert all(a is b or a.loss != b.loss for a in front for b in front)
    more = search.search(trials, subject, replace(limits, trials=12), storage)
    assert [e.plan for e in more.entries[:10]] == [e.plan for e in found.entries]
    assert len(more.entries) >= 12
    tight = replace(limits, max_bytes=found.best.trial.size_bytes - 1)
    assert not search.within(found.best, tight)
    with pytest.raises(ConfigError, match="another model or with other samples"):
        search.search(trials, replace(subject, targets=subject.targets[::-1]), limits, storage)
    document = search.to_json(found, limits, trials.reference)
    search.write(document, tmp_path / "found.json")
    assert settings.read_trial(str(tmp_path / "found.json")) == found.best.plan.to_json()


def test_explain_on_a_bundle(bad, tmp_path):
    ran = packager("explain", bad, "--json", "--samples", 30, "--overlay", tmp_path / "o.json")
    assert ran.code == 0, ran.err
    assert ran.json["layers"][0]["layer"] == BAD[0]
    assert set(ran.json["suggestion"]["plan"]["layers"]) == set(BAD)
    assert ran.json["suggestion"]["holds"]
    values = json.loads((tmp_path / "o.json").read_text())["results"]
    file = tflite_file.read(next((bad / "tflite").glob("*.float32.tflite")))
    tensors = {t.name.decode() for t in file.subgraphs[0].tensors}
    assert set(values) <= tensors
    assert max(values, key=lambda n: values[n]["value"]).endswith(
        "block2_depthwise_norm_1/batchnorm/sub1"
    )


def test_without_data_the_golden_samples_are_used_and_that_is_said(digits_bundle, tmp_path):
    folder = tmp_path / "digits"
    shutil.copytree(digits_bundle, folder)
    (folder / "package.yaml").unlink()
    (tmp_path / "work").mkdir()
    with Child(pool.WORKER) as litert:
        found = data.find(folder, bundle.read_manifest(folder), Given(), tmp_path / "work", litert)
    said = " ".join(found.remarks)
    assert "golden samples" in said and "--calibration" in said and "--evaluation" in said
    assert len(found.subject.targets) == 16


def test_an_evaluation_set_of_one_class_is_named(digits_bundle, tmp_path):
    with np.load(DIGITS / "data/evaluation.npz") as stored:
        rows = stored["y"] == 3
        np.savez(tmp_path / "one.npz", x=stored["x"][rows], y=stored["y"][rows])
        np.savez(tmp_path / "none.npz", x=stored["x"][rows])
    manifest = bundle.read_manifest(digits_bundle)
    said = {}
    with Child(pool.WORKER) as litert:
        for file in ("one", "none"):
            work = tmp_path / f"{file}-work"
            work.mkdir()
            given = Given(evaluation=str(tmp_path / f"{file}.npz"), samples=20)
            found = data.find(digits_bundle, manifest, given, work, litert)
            said[file] = " ".join(found.remarks)
    assert "all evaluation samples are of class 3" in said["one"]
    assert "no labels" in said["none"]


def test_names_with_numbers_are_told_apart_by_the_models_own(digits_bundle):
    """Exporting adds a number to every scope: `conv_1` may be `conv`, or a layer of that name."""
    names = op_layers._Names(["conv", "conv_1", "inner"], ["m_1/conv_1/x", "m_1/conv_1_2/x"])
    assert names.layer("m_1/conv_1/convolution") == "conv"
    assert names.layer("m_1/relu_1/Relu;m_1/conv_1_2/convolution") == "conv_1"
    assert names.layer("m_1/inner_1/conv_1/convolution1") == "inner/conv"
    assert names.layer("m_1/Add") == ""
    once = op_layers._Names(["conv", "conv_1"], ["m/conv/x", "m/conv_1/x"])
    assert once.layer("m/conv_1/convolution") == "conv_1"


def test_settings_are_checked(tmp_path):
    from packager.config import Config

    with pytest.raises(ConfigError, match="calibration samples"):
        settings.check(replace(Config(), int8=settings.Int8(auto=True)))
    wrong = settings.Int8(require_integer=True, layers={"a": "float"})
    with pytest.raises(ConfigError, match="asked to stay float: a"):
        settings.check(replace(Config(), int8=wrong))
    file = tmp_path / "s.json"
    for content in ("", "{}", json.dumps({"best": 1, "trials": [{"number": 0, "plan": {}}]})):
        file.write_text(content)
        with pytest.raises(ConfigError, match="--from-search"):
            settings.read_trial(str(file))
    file.write_text(json.dumps({"best": 3, "trials": [{"number": 3, "plan": {"dense": "x"}}]}))
    assert settings.read_trial(f"{file}#3") == settings.read_trial(str(file)) == {"dense": "x"}
