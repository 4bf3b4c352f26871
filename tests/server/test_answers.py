"""What outputs mean by the task: the server says what the device runner says."""

import importlib.util
import itertools
import sys

import numpy as np
import pytest
from packager_server import answers
from packager_server.codes import ServeError

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def runner():
    """edge/run.py as a module."""
    spec = importlib.util.spec_from_file_location("edge_run_for_answers", ROOT / "edge" / "run.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("task", ["classification", "binary", "multilabel", "regression", "none"])
def test_the_server_and_a_device_agree(runner, task):
    for activation, labels, threshold, values in itertools.product(
        ["logits", "none"],
        [[], ["cat"], ["a", "b"], ["a", "b", "c", "d"]],
        [None, 0.2],
        [[0.1, 0.7, 0.7, 0.2], [-900.0, 3.0, 800.0, 0.0], [0.5], [0.2]],
    ):
        ends = [{"name": "y", "activation": activation}]
        facts = {"task": task, "threshold": threshold, "labels": labels, "outputs": ends}
        outputs = {"y": np.array([values], np.float32)}
        assert answers.explain(outputs, facts, 3) == runner.answer(outputs, facts, 3)


def test_known_answers():
    facts = {"task": "classification", "outputs": [{"name": "y", "activation": "logits"}]}
    found = answers.explain({"y": np.log(np.array([1.0, 3.0, 4.0]))}, facts, 2)
    assert (found["class"], found["label"]) == (2, "2")
    assert [one["score"] for one in found["top"]] == pytest.approx([0.5, 0.375])
    facts = {"task": "binary", "labels": ["cat"], "outputs": [{"name": "y"}]}
    assert answers.explain({"y": np.array([0.4])}, facts, 1)["label"] == "not cat"
    facts = {"task": "multilabel", "threshold": 0.6, "outputs": [{"name": "y"}]}
    assert answers.explain({"y": np.array([0.7, 0.1, 0.6])}, facts, 1)["labels"] == ["0", "2"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_no_answer(bad):
    with pytest.raises(ServeError, match="'y' holds NaN or infinity"):
        answers.explain({"y": np.array([bad, 1.0])}, {"task": "none"}, 1)
