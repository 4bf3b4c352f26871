"""Checks a model's graph before anything is made from it. Runs in the TensorFlow child.

It must answer the same each time, and, for a Keras model, what the model itself answers.
Everything that is packaged comes from the graph, the source model's own outputs included, so no
later comparison would notice. Keras 3.15 has such a case: `Discretization` with the dtype int64
cuts its inputs down to whole numbers when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from packager.errors import ConversionError, ModelError
from packager.loaders.opened import OpenedModel, Tensors

# Samples to compare: a recurrent layer is slow outside a graph.
_SAMPLES = 4
# The same graph, whose threads may add in another order; so may other numbers of rows.
_SAME = 1e-5
# How much more than one step of rounding in the inputs that may be, as in verify/gates.py.
_ROUNDINGS = 8
# The same operations in another order; chance and a wrong graph change far more.
_EQUAL = 1e-3


def check(
    opened: OpenedModel,
    tensors: Tensors,
    traced: dict[str, Any],
    run: Callable[[Tensors], Tensors],
) -> None:
    """Runs the model again on the first samples, with and without a graph, and compares.

    Args:
        opened: The model.
        tensors: Its inputs.
        traced: What `run` makes of them.
        run: The model's graph, or the model where no graph holds it.

    Raises:
        ModelError: An answer depends on chance or on earlier calls.
        ConversionError: The graph computes something else than Keras.
    """
    few = {
        end.name: tensors[end.name] if end.fixed_batch else tensors[end.name][:_SAMPLES]
        for end in opened.inputs
    }
    refuse_chance(run, few, traced)
    if opened.keras_model is None:
        return
    for name, value in opened.call(few).items():
        eager = np.asarray(value)
        if not _close(eager, traced[name][: len(eager)], _EQUAL):
            raise ConversionError(
                f"the output {name!r} of the model's TensorFlow graph differs from what Keras"
                " computes without one, so nothing made from the graph would be right",
                hint="a layer behaves differently in tf.function: Discretization does unless it has"
                " dtype='float32'; a layer of your own must not choose by Python values of tensors."
                " --only keras packages the model as it is, for the server alone",
            )


def refuse_chance(
    run: Callable[[Tensors], Mapping[str, Any]],
    inputs: Tensors,
    first: Mapping[str, Any],
    source: str = "",
) -> None:
    """Runs a model again and compares with what it answered before.

    Args:
        run: The model: its inputs to its outputs, by name.
        inputs: What it is run on.
        first: What it answered; there may be more rows than in `inputs`.
        source: The model's file, to name in the message.

    Raises:
        ModelError: An answer depends on chance or on earlier calls.
    """
    second = {name: np.asarray(value) for name, value in run(inputs).items()}
    before = {name: np.asarray(first[name])[: len(value)] for name, value in second.items()}
    changed = [name for name in second if not _close(second[name], before[name], _SAME)]
    if not changed:
        return
    moved = run(nudged(inputs))
    for name in changed:
        rounding = _ROUNDINGS * _share(np.asarray(moved[name]), second[name])
        if not _close(second[name], before[name], min(rounding, _EQUAL)):
            raise ModelError(
                f"{source}{': ' if source else ''}the output {name!r} differs from call to call on"
                " the same input: it depends on chance or on the calls before",
                hint="build the model without dropout at inference (training=True), random layers"
                " and stateful=True, load the weights into it, and save that",
            )


def nudged(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Moves about half of the real numbers to the next float32.

    What that changes is the least that another order of the same additions may change, too. Whole
    numbers stay: they may be indices. The others move towards zero, where no function ends.
    """
    random = np.random.default_rng(0)
    result = {}
    for name, tensor in inputs.items():
        values = np.asarray(tensor)
        if values.dtype.kind == "f":
            moved = (random.random(values.shape) < 0.5) & (values != np.round(values))
            values = np.where(moved, np.nextafter(values, np.zeros_like(values)), values)
        result[name] = values
    return result


def _share(values: np.ndarray[Any, Any], of: np.ndarray[Any, Any]) -> float:
    """The largest difference, as a share of the largest value."""
    if values.dtype.kind not in "fc" or values.shape != of.shape:
        return 0.0
    finite = np.isfinite(values) & np.isfinite(of)
    largest = float(np.abs(of[finite]).max(initial=0.0))
    return float(np.abs(values - of)[finite].max(initial=0.0)) / largest if largest else 0.0


def _close(eager: np.ndarray[Any, Any], graph: np.ndarray[Any, Any], share: float) -> bool:
    if eager.shape != graph.shape:
        return False
    if eager.dtype.kind not in "fc":
        return np.array_equal(eager, graph)
    finite = np.isfinite(eager)
    if not np.array_equal(eager[~finite], graph[~finite], equal_nan=True):
        return False
    limit = share * float(np.abs(eager[finite]).max(initial=0.0))
    return bool(np.all(np.abs(eager[finite] - graph[finite]) <= limit))
