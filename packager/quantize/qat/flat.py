"""The calls of a Sequential or functional model as one flat list, nested models opened up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.errors import UnsupportedError
from packager.loaders.keras_graph import functional_of, is_graph


@dataclass(frozen=True)
class Call:
    """One call of a layer or operator.

    Attributes:
        layer: The Keras layer or operator.
        arguments: The call's arguments, with Keras tensors in the places of `inputs`.
        inputs: Numbers of the values that it takes, in the order of `arguments.keras_tensors`.
        outputs: Numbers of the values that it gives.
    """

    layer: Any
    arguments: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class FlatModel:
    """A model without nesting.

    Attributes:
        inputs: Numbers of the inputs' values, in the model's order.
        outputs: Numbers of the outputs' values, in the model's order.
        calls: In an order in which they can be computed.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Call, ...]


def flatten(model: Any) -> FlatModel:
    """Lists the calls of a built Sequential or functional model.

    Raises:
        UnsupportedError: The model is subclassed: its `call` is Python code.
    """
    if not is_graph(model):
        raise UnsupportedError(
            f"the model {model.name!r} ({type(model).__name__}) is no built Sequential or"
            " functional model, so its layers cannot be rewritten for quantization",
            hint="build it with the functional API, or quantize it after training: tflite/int8",
        )
    functional = functional_of(model)
    inputs = tuple(range(len(functional.inputs)))
    calls: list[Call] = []
    counter = _Counter(len(inputs))
    outputs = _walk(functional, inputs, calls, counter)
    return FlatModel(inputs, outputs, tuple(calls))


class _Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def take(self, count: int) -> tuple[int, ...]:
        self.value += count
        return tuple(range(self.value - count, self.value))


def _walk(
    functional: Any, inputs: Sequence[int], calls: list[Call], counter: _Counter
) -> tuple[int, ...]:
    """Appends the calls of one functional model; returns the numbers of its outputs."""
    numbers = {id(t): n for t, n in zip(functional.inputs, inputs, strict=True)}
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if node.is_input or node.operation is None:
                continue
            taken = tuple(numbers[id(tensor)] for tensor in node.arguments.keras_tensors)
            if hasattr(node.operation, "layers") and is_graph(node.operation):
                given = _walk(functional_of(node.operation), taken, calls, counter)
            else:
                given = counter.take(len(node.outputs))
                calls.append(Call(node.operation, node.arguments, taken, given))
            numbers.update((id(t), n) for t, n in zip(node.outputs, given, strict=True))
    return tuple(numbers[id(tensor)] for tensor in functional.outputs)
