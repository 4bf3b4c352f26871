"""An opened model, as the TensorFlow child process holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packager.errors import ModelError

Tensors = dict[str, Any]


@dataclass(frozen=True)
class End:
    """One input or output of an opened model, by its sanitised name.

    `shape` has None for free axes; its first entry is the batch, which `fixed_batch` makes
    the only one that works.
    """

    name: str
    source_name: str
    shape: tuple[int | None, ...]
    dtype: str
    fixed_batch: bool = False


@dataclass(frozen=True)
class OpenedModel:
    """A model that can be called.

    Attributes:
        format: As in `ModelFile`.
        saved_by: As in `ModelFile`, or more exact.
        inputs: The inputs, in the model's order.
        outputs: The outputs, in the model's order.
        call: From tensors by input name to tensors by output name, in inference mode; may be
            traced into a graph.
        variables: The model's variables, each once.
        keras_model: The Keras 3 model, or None.
        keep_alive: Objects that own resources which the graph refers to.
        left_out: Outputs of text, which nothing compares.
        no_graph: Why no TensorFlow graph holds the model; empty where one does.
        no_layers: Why a Keras 2 model was exported, so that `keras_model` is None.
    """

    format: str
    saved_by: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    call: Callable[[Tensors], Tensors]
    variables: list[Any]
    keras_model: Any = None
    keep_alive: list[Any] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    no_graph: str = ""
    no_layers: str = ""


def check_weights(variables: list[Any], source: str) -> None:
    """Refuses a model with weights that are not finite.

    Raises:
        ModelError: Names the first such weight.
    """
    for variable in variables:
        values = np.asarray(variable)
        if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
            bad = int(np.size(values) - np.count_nonzero(np.isfinite(values.astype(np.float32))))
            if bad:
                name = getattr(variable, "path", variable.name)
                raise ModelError(
                    f"{source}: the weight {name} holds {bad} values that are NaN or infinite",
                    hint="the training diverged: use an earlier checkpoint",
                )
