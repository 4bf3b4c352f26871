"""Metrics of each task against values computed by hand."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from packager.bundle import OutputSpec
from packager.verify.metrics import Task, accuracy, decide, measure, output_range

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(5)
NAMES = ("first", "second")


def task(kind, shape, activation="none", threshold=0.5, outputs=1):
    specs = [OutputSpec(n, n, (None, *shape), "float32", activation) for n in NAMES[:outputs]]
    return Task(kind, tuple(specs), threshold)


def measured(tmp_path, kind, source, artifact, targets=None, ranges=None):
    """Measures lists of outputs, one array for each output."""
    for folder, arrays in (("source", source), ("artifact", artifact)):
        (tmp_path / folder).mkdir()
        for spec, array in zip(kind.outputs, arrays, strict=True):
            np.save(tmp_path / folder / f"{spec.name}.npy", np.asarray(array, np.float32))
    ranges = ranges or {
        s.name: output_range(np.asarray(a)) for s, a in zip(kind.outputs, source, strict=True)
    }
    return measure(kind, tmp_path / "source", tmp_path / "artifact", targets, ranges)


def scores(count, classes):
    """Softmax-like rows whose largest entry is clear, and the classes of these."""
    answers = RNG.integers(0, classes, count)
    rows = RNG.uniform(0.0, 0.1, (count, classes))
    rows[np.arange(count), answers] = 0.9
    return rows.astype(np.float32), answers


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 3000])
def test_classification_in_blocks(tmp_path, count):
    source, answers = scores(count, 10)
    artifact, targets = source.copy(), answers.copy()
    # The artifact errs where the source is right: the last sample, which is in the last block.
    artifact[-1] = np.roll(artifact[-1], 1)
    # The source errs on the first third, and the artifact too.
    targets[: count // 3] = (targets[: count // 3] + 5) % 10
    found = measured(
        tmp_path, task("classification", (10,), "softmax"), [source], [artifact], targets
    )
    right = count - count // 3
    assert found["accuracy"] == pytest.approx((right - 1) / count, abs=1e-12)
    assert found["drop"] == pytest.approx(1 / count, abs=1e-12)
    assert found["agreement"] == pytest.approx((count - 1) / count, abs=1e-12)
    gap = np.abs(artifact.astype(np.float64) - source)
    assert found["max_abs_diff"] == pytest.approx(gap.max())
    assert found["mean_abs_diff"] == pytest.approx(gap.mean())
    assert found["range_diff"] == pytest.approx(gap.max() / np.ptp(source.astype(np.float64)))


def test_as_many_samples_as_classes():
    outputs, answers = scores(10, 10)
    assert accuracy(task("classification", (10,)), outputs, answers) == 1.0
    assert accuracy(task("classification", (10,)), outputs, (answers + 1) % 10) == 0.0


def test_classification_with_axes_of_length_1():
    outputs, answers = scores(7, 4)
    kind = task("classification", (1, 1, 4))
    assert accuracy(kind, outputs.reshape(7, 1, 1, 4), answers) == 1.0


@pytest.mark.parametrize("shape", [(), (1,)])
def test_binary(tmp_path, shape):
    source = np.array([0.1, 0.4, 0.6, 0.9], np.float32).reshape(4, *shape)
    artifact = np.array([0.2, 0.55, 0.7, 0.8], np.float32).reshape(4, *shape)
    kind = task("binary", shape, "sigmoid")
    found = measured(tmp_path, kind, [source], [artifact], np.array([0, 0, 1, 0]))
    assert found["accuracy"] == 0.5
    assert found["drop"] == 0.25
    assert found["agreement"] == 0.75
    assert found["max_abs_diff"] == pytest.approx(0.15, rel=1e-6)


def test_multilabel_counts_labels(tmp_path):
    source = np.array([[0.9, 0.1, 0.7], [0.2, 0.8, 0.3]], np.float32)
    artifact = np.array([[0.9, 0.6, 0.7], [0.2, 0.8, 0.3]], np.float32)
    targets = np.array([[1, 0, 1], [0, 1, 1]], np.float32)
    found = measured(tmp_path, task("multilabel", (3,), "sigmoid"), [source], [artifact], targets)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["drop"] == pytest.approx(1 / 6)
    assert found["agreement"] == pytest.approx(5 / 6)


def test_regression(tmp_path):
    source = np.linspace(-2.0, 8.0, 2000).reshape(-1, 1)
    artifact = source.copy()
    # The range is 10, so that 0.19 is within 2 % and 0.21 is not.
    artifact[:500] += 0.19
    artifact[1500:] -= 0.21
    targets = (source + 1.0).astype(np.float32)
    found = measured(tmp_path, task("regression", (1,)), [source], [artifact], targets)
    assert found["agreement"] == 0.75
    assert found["range_diff"] == pytest.approx(0.021, rel=1e-5)
    assert found["mean_abs_error"] == pytest.approx((0.81 * 500 + 1000 + 1.21 * 500) / 2000)
    assert "accuracy" not in found
    assert "drop" not in found


@pytest.mark.parametrize("kind", ["classification", "binary", "multilabel", "regression", "none"])
def test_nothing_about_targets_without_targets(tmp_path, kind):
    source = RNG.normal(size=(20, 3))
    found = measured(tmp_path, task(kind, (3,)), [source], [source])
    assert set(found) == {"max_abs_diff", "mean_abs_diff", "range_diff", "agreement"}
    assert (found["max_abs_diff"], found["agreement"]) == (0.0, 1.0)


def test_none_ignores_targets(tmp_path):
    source = RNG.normal(size=(20, 3))
    found = measured(tmp_path, task("none", (3,)), [source], [source], np.zeros(20, int))
    assert "accuracy" not in found
    assert "mean_abs_error" not in found


def test_each_output_is_measured_against_its_own_range(tmp_path):
    large, small = np.array([[0.0], [100.0]]), np.array([[0.0], [0.5]])
    kind = task("none", (1,), outputs=2)
    found = measured(tmp_path, kind, [large, small], [large + 1.0, small + 0.05])
    assert found["max_abs_diff"] == pytest.approx(1.0)
    assert found["range_diff"] == pytest.approx(0.1, rel=1e-5)
    assert found["mean_abs_diff"] == pytest.approx(0.525, rel=1e-5)


def test_the_given_range_counts(tmp_path):
    source = np.array([[0.0], [2.0]])
    found = measured(
        tmp_path, task("regression", (1,)), [source], [source + 0.1], ranges={"first": 4.0}
    )
    assert found["range_diff"] == pytest.approx(0.025, rel=1e-5)
    assert found["agreement"] == 0.0
    assert output_range(source) == 2.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_over_all_outputs(tmp_path, value):
    source = [RNG.normal(size=(1500, 3)), RNG.normal(size=(1500, 2))]
    artifact = [array.copy() for array in source]
    artifact[0][1400, 1] = value
    artifact[1][[3, 1200], 0] = value
    found = measured(tmp_path, task("none", (3,), outputs=2), source, artifact)
    assert found == {"non_finite": 3.0}


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (np.array([[-3.0, 1.0], [2.0, 0.5]]), 5.0),
        (np.concatenate([np.full(2000, 0.25), [-0.75]]), 1.0),
        (np.full((4, 2), 7.0), 0.35),
        (np.full((4, 2), -0.125), 0.00625),
        (np.zeros((4, 2)), 1.0),
        # Steps between saturated scores are no range: a twentieth of the magnitude is.
        (np.array([1.0, 1.0 - 2**-24], np.float32), 0.05),
        (np.array([1.0, 0.999]), 0.05),
        (np.array([1.0, 0.9]), 0.1),
    ],
)
def test_output_range(outputs, expected):
    assert output_range(outputs) == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------ the threshold


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, [True, True, True, True]),
        (0.25, [False, True, True, True]),
        (0.5, [False, False, True, True]),
        (1.0, [False, False, False, True]),
    ],
)
def test_a_score_counts_from_the_threshold_on(threshold, expected):
    outputs = np.array([[0.0], [0.25], [0.5], [1.0]], np.float32)
    kind = task("binary", (1,), "sigmoid", threshold)
    assert decide(kind, outputs).ravel().tolist() == expected


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, [True, True, True, True, True]),
        (0.5, [False, False, True, True, True]),
        (1.0, [False, False, False, False, True]),
    ],
)
def test_logits_at_every_threshold(threshold, expected):
    outputs = np.array([[-1e4], [-1.0], [0.0], [1.0], [1e4]], np.float32)
    kind = task("binary", (1,), "logits", threshold)
    assert decide(kind, outputs).ravel().tolist() == expected


def edge_runner():
    spec = importlib.util.spec_from_file_location("edge_run", ROOT / "edge" / "run.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["edge_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("activation", ["sigmoid", "logits"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_decisions_are_those_of_the_device_runner(activation, threshold):
    run = edge_runner()
    # 0.7 is a little smaller in float32: the comparison must be in float64 in both.
    outputs = np.array([0.0, 0.3, 0.49999997, 0.5, 0.7, 1.0], np.float32)
    if activation == "logits":
        outputs = np.array([-50, -0.8472979, -1e-8, 0, 0.8472979, 40], np.float32)
    kind = task("binary", (1,), activation, threshold)
    facts = {
        "task": "binary",
        "threshold": threshold,
        "outputs": [{"name": "first", "activation": activation}],
    }
    theirs = [run.answer({"first": np.array([x])}, facts, 1)["class"] for x in outputs]
    assert decide(kind, outputs[:, None]).ravel().astype(int).tolist() == theirs


def test_classification_answers_are_class_numbers():
    found = decide(task("classification", (3,)), np.array([[1.0, 3.0, 2.0], [9.0, 0.0, 0.0]]))
    assert found.dtype == np.int64
    assert found.tolist() == [1, 0]
