"""Checks that a Keras model's graph computes what the model does. Runs in the TensorFlow child.

Everything that is packaged comes from the graph, the source model's own outputs included, so no
later comparison would notice. Keras 3.15 has such a case: `Discretization` with its default dtype
cuts its inputs down to whole numbers when it is traced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.errors import ConversionError
from packager.loaders.opened import OpenedModel, Tensors

# Samples to compare: a recurrent layer is slow outside a graph.
_SAMPLES = 4
# The same operations in another order; a wrong graph is wrong by far more.
_MAX_DIFF = 1e-3


def check(opened: OpenedModel, tensors: Tensors, traced: dict[str, Any]) -> None:
    """Runs the model eagerly on the first samples and compares.

    Args:
        opened: The model; one without Keras objects is a graph already.
        tensors: Its inputs.
        traced: What its graph makes of them.

    Raises:
        ConversionError: An output differs by more than 1e-3 of its largest magnitude.
    """
    if opened.keras_model is None:
        return
    few = {
        end.name: tensors[end.name] if end.fixed_batch else tensors[end.name][:_SAMPLES]
        for end in opened.inputs
    }
    for name, value in opened.call(few).items():
        eager = np.asarray(value)
        graph = traced[name][: len(eager)]
        if not _close(eager, graph):
            raise ConversionError(
                f"the output {name!r} of the model's TensorFlow graph differs from what Keras"
                " computes without one, so nothing made from the graph would be right",
                hint="a layer behaves differently in tf.function: Discretization does unless it has"
                " dtype='float32'; a layer of your own must not choose by Python values of tensors",
            )


def _close(eager: np.ndarray[Any, Any], graph: np.ndarray[Any, Any]) -> bool:
    if eager.shape != graph.shape:
        return False
    if eager.dtype.kind not in "fc":
        return np.array_equal(eager, graph)
    finite = np.isfinite(eager)
    if not np.array_equal(eager[~finite], graph[~finite], equal_nan=True):
        return False
    limit = _MAX_DIFF * float(np.abs(eager[finite]).max(initial=0.0))
    return bool(np.all(np.abs(eager[finite] - graph[finite]) <= limit))
