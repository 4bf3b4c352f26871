"""Checks a model's graph before anything is made from it. Runs in the TensorFlow child.

It must answer the same each time, and, for a Keras model, what the model itself answers.
Everything that is packaged comes from the graph, the source model's own outputs included, so no
later comparison would notice. Keras 3.15 has such a case: `Discretization` with the dtype int64
cuts its inputs down to whole numbers when it is traced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.errors import ConversionError, ModelError
from packager.loaders.opened import OpenedModel, Tensors

# Samples to compare: a recurrent layer is slow outside a graph.
_SAMPLES = 4
# The same graph, whose threads may add in another order.
_SAME = 1e-5
# The same operations in another order; a wrong graph is wrong by far more.
_EQUAL = 1e-3


def check(opened: OpenedModel, tensors: Tensors, traced: dict[str, Any], function: Any) -> None:
    """Runs the model again on the first samples, with and without a graph, and compares.

    Args:
        opened: The model.
        tensors: Its inputs.
        traced: What its graph makes of them.
        function: Its graph.

    Raises:
        ModelError: An answer depends on chance or on earlier calls.
        ConversionError: The graph computes something else than Keras.
    """
    few = {
        end.name: tensors[end.name] if end.fixed_batch else tensors[end.name][:_SAMPLES]
        for end in opened.inputs
    }
    for name, value in function(**few).items():
        if not _close(np.asarray(value), traced[name][: len(value)], _SAME):
            raise ModelError(
                f"the output {name!r} differs from call to call on the same input: it depends on"
                " chance or on the calls before",
                hint="build the model without dropout at inference (training=True), random layers"
                " and stateful=True, load the weights into it, and save that",
            )
    if opened.keras_model is None:
        return
    for name, value in opened.call(few).items():
        eager = np.asarray(value)
        if not _close(eager, traced[name][: len(eager)], _EQUAL):
            raise ConversionError(
                f"the output {name!r} of the model's TensorFlow graph differs from what Keras"
                " computes without one, so nothing made from the graph would be right",
                hint="a layer behaves differently in tf.function: Discretization does unless it has"
                " dtype='float32'; a layer of your own must not choose by Python values of tensors",
            )


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
