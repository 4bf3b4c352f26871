"""TF.js layers as values: what the rules are given and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Call, Layer, Spec, Weights
from packager.targets.tfjs_shapes import Shape

Config = dict[str, Any]
# (-1, i) is input i of the call, (j, t) output t of part j.
Source = tuple[int, int]

# What our own classes and activations are called; web/packager-layers.js defines them.
CUSTOM = "Packager"


class Refused(Exception):
    """A layer has no exact form.

    Attributes:
        reason: Why.
        way_out: The change of the model that helps; empty when there is none.
    """

    def __init__(self, reason: str, way_out: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


@dataclass(frozen=True)
class Part:
    """One layer of TF.js: class name, configuration without name and dtype, weights.

    Attributes:
        class_name: A stock class, or one of web/packager-layers.js.
        config: Its configuration.
        weights: By their name in TF.js.
        sources: What it takes; None: all inputs of the call for the first part of a chain, what
            the part before gives for the others.
        outputs: How many tensors it gives.
    """

    class_name: str
    config: Config = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    sources: tuple[Source, ...] | None = None
    outputs: int = 1

    @property
    def needs_script(self) -> bool:
        """Whether TF.js needs web/packager-layers.js for it."""
        return self.class_name.startswith(CUSTOM) or _mentions(self.config)


def _mentions(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_mentions, value.values()))
    return isinstance(value, str) and value.startswith(CUSTOM)


Chain = tuple[Part, ...]


@dataclass(frozen=True)
class Site:
    """One call of a layer, as a rule sees it.

    Attributes:
        layer: The layer; its weights are float32 or int32.
        call: The call; its `inputs` no longer count.
        inputs: Shape and type of each tensor that it takes.
        inner: Judges a layer inside this one, such as the layer of a TimeDistributed.
    """

    layer: Layer
    call: Call
    inputs: tuple[Spec, ...]
    inner: Callable[[Site], Chain]

    @property
    def config(self) -> Config:
        """The layer's configuration."""
        return self.layer.config

    @property
    def weights(self) -> Weights:
        """The layer's weights."""
        return self.layer.weights

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The inputs' shapes, batch axis included."""
        return tuple(spec.shape for spec in self.inputs)

    @property
    def shape(self) -> Shape:
        """The first input's shape."""
        return self.inputs[0].shape

    @property
    def output(self) -> Spec:
        """The first output.

        Raises:
            Refused: It is not known.
        """
        found = self.call.outputs.get(0)
        if found is None:
            raise Refused("the shape of its output is not known")
        return found

    def argument(self, place: int, name: str) -> Any:
        """The value of an argument, by name or position; None when it is not given."""
        if place < len(self.call.args):
            return self.call.args[place]
        return self.call.kwargs.get(name)

    def with_layer(self, **changes: Any) -> Site:
        """The same call of a layer that differs in some attributes."""
        return replace(self, layer=replace(self.layer, **changes))


Rule = Callable[[Site], Chain]


def custom(
    class_name: str,
    config: Config | None = None,
    weights: Weights | None = None,
    *,
    sources: tuple[Source, ...] | None = None,
    outputs: Sequence[Shape] = (),
) -> Part:
    """A layer of web/packager-layers.js.

    Args:
        class_name: Its name there.
        config: Its settings, in camelCase.
        weights: By their name in camelCase.
        sources: As in `Part`.
        outputs: Shapes of what it gives, batch axis included; nothing: as its first input.
    """
    settings = dict(config or {})
    if weights:
        settings["weightShapes"] = [
            [name, list(array.shape), array.dtype.name] for name, array in weights.items()
        ]
    if outputs:
        settings["outputShapes"] = [list(shape) for shape in outputs]
    return Part(CUSTOM + class_name, settings, weights or {}, sources, max(1, len(outputs)))


def operator(
    op: str,
    *operands: Any,
    outputs: Sequence[Shape] = (),
    dtype: str | None = "float32",
    operand_dtype: str | None = None,
    sources: tuple[Source, ...] | None = None,
    weights: Weights | None = None,
) -> Part:
    """An operator of web/packager-layers.js.

    Args:
        op: Its name there.
        *operands: JSON values; `{"tensor": i}` is an input, `{"weight": name}` a weight.
        outputs: As in `custom`.
        dtype: The type of the result; None: as it comes.
        operand_dtype: The type that the inputs get first; None: none.
        sources: As in `Part`.
        weights: Constant arrays.
    """
    config = {"op": op, "operands": list(operands), "dtype": dtype, "operandDtype": operand_dtype}
    return custom("Operator", config, weights, sources=sources, outputs=outputs)


TENSOR = {"tensor": 0}


def rescaling(scale: object, offset: object) -> Part:
    """`x * scale + offset`; each is a number or a list with one per channel."""
    return Part("Rescaling", {"scale": scale, "offset": offset})


def reshape(shape: Sequence[int | None]) -> Part:
    """Another shape, without the batch axis; at most one size may be free.

    Raises:
        Refused: Several are.
    """
    if list(shape).count(None) > 1:
        raise Refused(
            "the shape has several free axes", "give the model's input a fixed height and width"
        )
    return Part("Reshape", {"target_shape": [-1 if size is None else size for size in shape]})


def as_tuple(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """A size per axis, of a number that stands for all of them or of a list."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def numbers(value: object) -> object:
    """Reads a number, a list, or an array as Keras writes it into a configuration.

    Raises:
        Refused: It is none of them.
    """
    if isinstance(value, dict):
        value = value.get("config", {}).get("value")
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
        return [float(v) for v in value]
    raise Refused("TF.js takes a number or one number per channel here")


def short(values: np.ndarray[Any, Any]) -> object:
    """An array as a list, or as a number when it holds one."""
    listed = [float(v) for v in values]
    return listed[0] if len(listed) == 1 else listed
