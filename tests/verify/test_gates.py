"""Each gate passes, fails and is skipped; limits are kept to the last sample."""

import pytest

from packager.bundle import GateLimits
from packager.verify import gates

GOOD = {
    "max_abs_diff": 0.002,
    "mean_abs_diff": 0.0001,
    "range_diff": 2e-6,
    "agreement": 0.995,
    "accuracy": 0.985,
    "drop": 0.002,
}


def check(found=GOOD, mode="float32", size=1000, limits=None, *, synthetic=False, **changes):
    metrics = {**found, **changes}
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return gates.check(mode, size, metrics, limits or GateLimits(), synthetic=synthetic)


def status(gate, name):
    return {c.name: c.status for c in gate.checks}.get(name, "absent")


def test_all_gates_pass():
    gate = check(limits=GateLimits(max_bytes=1000))
    assert (gate.status, gate.reason) == ("passed", None)
    assert {c.name: (c.status, c.value, c.limit) for c in gate.checks} == {
        "max_drop": ("passed", 0.002, 0.01),
        "min_agreement": ("passed", 0.995, 0.98),
        "max_abs_diff": ("passed", 2e-6, 1e-5),
        "max_bytes": ("passed", 1000.0, 1000),
    }


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("max_drop", {"drop": 0.012}, "max_drop 0.012, limit 0.01"),
        ("min_agreement", {"agreement": 0.97}, "min_agreement 0.97, limit 0.98"),
        ("max_abs_diff", {"range_diff": 2e-5}, "max_abs_diff 2e-05, limit 1e-05"),
        ("max_bytes", {"size": 1234567}, "max_bytes 1234567, limit 1000"),
    ],
)
def test_each_gate_fails_alone(name, changes, reason):
    gate = check(limits=GateLimits(max_bytes=1000), **changes)
    assert (gate.status, gate.reason) == ("failed", reason)
    assert [c.name for c in gate.checks if c.status == "failed"] == [name]


def test_a_model_that_enlarges_rounding_may_differ_by_that_much():
    limits = {}
    for rounding, given in ((1e-5, 1e-5), (1e-7, 1e-5), (1e-5, 2e-5)):
        gate = gates.check(
            "float32",
            10,
            {**GOOD, "range_diff": 7e-5},
            GateLimits(max_abs_diff=given),
            synthetic=False,
            rounding=rounding,
        )
        limits[rounding, given] = (gate.status, gate.checks[2].limit)
    assert limits == {
        (1e-5, 1e-5): ("passed", pytest.approx(8e-5)),
        (1e-7, 1e-5): ("failed", 1e-5),
        # What the user sets holds.
        (1e-5, 2e-5): ("failed", 2e-5),
    }
    step = gates.check(
        "float32", 10, {"range_diff": 0.01}, GateLimits(), synthetic=False, rounding=0.3
    )
    assert (step.status, step.checks[2].limit) == ("failed", gates.LARGEST_SHARE)
    found = {"range_diff": 0.08}
    for rounding, status in ((7e-5, "passed"), (1e-6, "failed")):
        gate = gates.check("float16", 10, found, GateLimits(), synthetic=False, rounding=rounding)
        assert {c.name: c.status for c in gate.checks}["max_abs_diff"] == status


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("max_drop", {"drop": None}, "no labelled evaluation data"),
        ("min_agreement", {"agreement": None}, "no evaluation data"),
        ("max_abs_diff", {"range_diff": None}, "not measured"),
    ],
)
def test_each_gate_is_skipped_alone(name, changes, reason):
    gate = check(**changes)
    assert gate.status == "passed"
    (skipped,) = [c for c in gate.checks if c.status == "skipped"]
    assert (skipped.name, skipped.reason, skipped.value) == (name, reason, None)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (GateLimits(max_drop=None), "max_drop"),
        (GateLimits(min_agreement=None), "min_agreement"),
        (GateLimits(max_abs_diff=None), "max_abs_diff"),
        (GateLimits(max_bytes=None), "max_bytes"),
    ],
)
def test_a_gate_without_a_limit_is_absent(limits, name):
    gate = check(limits=limits, drop=0.001)
    assert status(gate, name) == "absent"
    assert gate.status == "passed"


def test_nothing_measured_is_skipped_and_not_passed():
    gate = check({}, mode="int8", limits=GateLimits(max_bytes=1000))
    assert (gate.status, gate.reason) == ("skipped", "no labelled evaluation data")
    assert status(gate, "max_bytes") == "passed"


def test_too_large_fails_even_when_nothing_was_measured():
    assert check({}, mode="int8", limits=GateLimits(max_bytes=10)).status == "failed"


def test_no_gate_at_all():
    gate = check(limits=GateLimits(None, None, None, None))
    assert (gate.status, gate.reason, gate.checks) == ("skipped", "no gate applies", ())


def test_random_samples_say_nothing_about_agreement():
    gate = check(mode="int8", drop=None, agreement=0.1, synthetic=True)
    assert (gate.status, status(gate, "min_agreement")) == ("skipped", "skipped")
    exact = check(drop=None, agreement=0.1, synthetic=True)
    assert (exact.status, status(exact, "max_abs_diff")) == ("passed", "passed")


@pytest.mark.parametrize("mode", ["dynamic_int8", "int8", "int8_float_io", "int16x8"])
def test_only_exact_modes_have_a_difference(mode):
    gate = check(mode=mode, range_diff=0.4)
    assert (gate.status, status(gate, "max_abs_diff")) == ("passed", "absent")


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 output value is"), (40, "40 output values are")]
)
def test_values_that_are_not_finite_fail_before_everything(count, text):
    gate = check({"non_finite": float(count)}, limits=GateLimits(None, None, None, None))
    assert (gate.status, gate.reason) == ("failed", f"{text} NaN or infinite")
    assert [(c.name, c.status) for c in gate.checks] == [("finite", "failed")]


@pytest.mark.parametrize("count", [100, 200, 700, 1000, 30000])
@pytest.mark.parametrize("right", [0.991, 0.99, 0.5, 0.97])
def test_a_drop_of_exactly_one_point_passes_and_one_sample_more_fails(count, right):
    before = round(right * count)
    lost = count // 100
    assert status(check(drop=before / count - (before - lost) / count), "max_drop") == "passed"
    assert status(check(drop=before / count - (before - lost - 1) / count), "max_drop") == "failed"


def test_one_sample_of_fifty_is_two_points():
    assert status(check(drop=1.0 - 49 / 50), "max_drop") == "failed"


def test_agreement_at_its_limit():
    limits = GateLimits(min_agreement=0.7)
    assert status(check(agreement=1 - 0.3, limits=limits), "min_agreement") == "passed"
    assert status(check(agreement=0.1 * 7 - 1e-16, limits=limits), "min_agreement") == "passed"
    assert status(check(agreement=699 / 1000, limits=limits), "min_agreement") == "failed"


def test_a_limit_of_zero_is_exact():
    limits = GateLimits(max_abs_diff=0.0)
    assert status(check(range_diff=0.0, limits=limits), "max_abs_diff") == "passed"
    assert status(check(range_diff=1e-12, limits=limits), "max_abs_diff") == "failed"


@pytest.mark.parametrize(
    ("limit", "applied"), [(1e-6, 0.05), (1e-5, 0.05), (1e-3, 0.05), (0.2, 0.2), (None, None)]
)
def test_the_limit_of_float16(limit, applied):
    gate = check(mode="float16", range_diff=0.04, limits=GateLimits(max_abs_diff=limit))
    found = {c.name: c.limit for c in gate.checks}
    assert found.get("max_abs_diff") == applied
    if applied is not None:
        limits = GateLimits(max_abs_diff=limit)
        above = check(mode="float16", range_diff=applied * 1.01, limits=limits)
        assert status(gate, "max_abs_diff") == "passed"
        assert status(above, "max_abs_diff") == "failed"
