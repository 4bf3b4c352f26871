"""What counts as rounding, and what as chance, when a model is run twice. No TensorFlow."""

import numpy as np
import pytest

from packager.errors import ModelError
from packager.loaders import trace_check

INPUTS = {"x": np.linspace(0.1, 1.0, 32, dtype=np.float32).reshape(4, 8)}


def enlarges(inputs):
    """A small difference of large numbers."""
    return {"y": inputs["x"] - 0.999 * INPUTS["x"]}


def test_what_one_step_of_rounding_does_to_the_inputs_may_differ_from_call_to_call():
    first = enlarges(trace_check.nudged(INPUTS))
    second = enlarges(INPUTS)
    assert trace_check._share(first["y"], second["y"]) > trace_check._SAME
    trace_check.refuse_chance(enlarges, INPUTS, first)


@pytest.mark.parametrize("noise", [3e-5, 1e-2])
def test_more_than_that_is_chance(noise):
    def steady(inputs):
        return {"y": inputs["x"] * 2}

    first = {"y": INPUTS["x"] * 2 + noise * np.random.default_rng(1).normal(size=(4, 8))}
    with pytest.raises(ModelError, match=r"m\.h5: the output 'y' differs from call to call"):
        trace_check.refuse_chance(steady, INPUTS, first, "m.h5")


def test_chance_is_not_hidden_by_its_own_effect_on_moved_inputs():
    random = np.random.default_rng(1)

    def chance(inputs):
        return {"y": inputs["x"] + random.normal(0, 0.01, size=(4, 8))}

    with pytest.raises(ModelError, match="depends on chance"):
        trace_check.refuse_chance(chance, INPUTS, chance(INPUTS))


def test_moved_inputs_keep_whole_numbers_and_their_type():
    given = {"i": np.array([1, 2, 3]), "f": np.array([1.0, 2.0], np.float16), "s": np.array([b"a"])}
    moved = trace_check.nudged(given)
    for name, values in given.items():
        assert moved[name].dtype == values.dtype
        assert np.array_equal(moved[name], values)
    assert not np.array_equal(trace_check.nudged(INPUTS)["x"], INPUTS["x"])
