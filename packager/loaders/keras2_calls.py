"""Says how the layers of a Keras 2 functional model are called, in Keras 3's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.errors import ModelError, NoExactFormError
from packager.loaders.keras2_table import (
    MODELS,
    OPERATOR_ACTIVATIONS,
    OPERATORS,
    STATEFUL,
    Linear,
)

Config = dict[str, Any]

_CONSTANT = "_CONSTANT_VALUE"
_HINT = "build it of layers with the Keras that saved it, or export it there: model.export(...)"


@dataclass(frozen=True)
class Calls:
    """The calls of one functional model.

    Attributes:
        source: The file, for messages.
        config: The model's configuration: `layers`, `input_layers`, `output_layers`.
    """

    source: str
    config: Config

    def of(self, described: Config) -> tuple[Config, list[Config]]:
        """Returns a layer, which replaces an operator, and its calls in the newer form."""
        nodes = [_entries(node) for node in described["inbound_nodes"]]
        if described["class_name"] == "TFOpLambda":
            return self._operator(described, nodes)
        return described, [self._call(described, node) for node in nodes]

    def ends(self, value: Any, key: str) -> Any:
        """Says `input_layers` or `output_layers`; a list of one becomes that one."""
        if isinstance(value, dict):
            return {name: self.ends(item, key) for name, item in value.items()}
        if self._is_ref(value):
            name, node, tensor = value[:3]
            # Only here does Keras 3 count the making of a nested functional model as a call.
            again = key == "output_layers" and self._kind(name) in ("Functional", "Model")
            return [name, node - self._offset(name) + again, tensor]
        found = [self.ends(item, key) for item in value]
        return found[0] if len(found) == 1 else found

    def _call(self, described: Config, entries: list[list[Any]]) -> Config:
        tensors = [self._tensor(described, entry) for entry in entries]
        keywords: Config = {}
        for entry in entries:
            keywords.update(entry[3] if len(entry) > 3 else {})
        kwargs = {
            key: self._argument(value)
            for key, value in keywords.items()
            if value is not None and (key, value) != ("training", False)
        }
        if kwargs.get("training"):
            raise ModelError(
                f"{self.source}: the layer {described['name']!r} is called with training=True, so"
                " its output is random",
                hint=_HINT,
            )
        if described["class_name"] in STATEFUL and len(tensors) > 1:
            kwargs["initial_state"], tensors = tensors[1:], tensors[:1]
        return {"args": tensors if len(tensors) == 1 else [tensors], "kwargs": kwargs}

    def _tensor(self, described: Config, entry: list[Any]) -> Config:
        if entry[0] == _CONSTANT:
            raise NoExactFormError(
                f"{self.source}: the layer {described['name']!r} is called on a constant",
                hint=_HINT,
            )
        name, node, tensor = entry[:3]
        history = [name, node - self._offset(name), tensor]
        # Keras reads the history only; shape and dtype have to be there.
        config = {"shape": [], "dtype": "float32", "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}

    def _argument(self, value: Any) -> Any:
        if self._is_ref(value):
            return self._tensor({}, value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        return value

    def _operator(
        self, described: Config, nodes: list[list[list[Any]]]
    ) -> tuple[Config, list[Config]]:
        """An operator on tensors, such as `x + 1`, as the layer that computes the same."""
        function = described["config"]["function"]
        only = nodes[0][0] if len(nodes) == 1 and len(nodes[0]) == 1 else None
        found = self._as_layer(function, only) if only else None
        if found is None:
            raise NoExactFormError(
                f"{self.source}: the operator {described['name']!r} ({function}) has no exact form"
                " in Keras 3's layers",
                hint=_HINT,
            )
        kind, config, tensors = found
        settings = {"name": described["config"]["name"], **config}
        layer = {**described, "class_name": kind, "config": settings}
        return layer, [self._call(layer, tensors)]

    def _as_layer(
        self, function: str, entry: list[Any]
    ) -> tuple[str, Config, list[list[Any]]] | None:
        """The class, settings and tensors of the layer that stands for an operator."""
        first, keywords = entry[:3], entry[3] if len(entry) > 3 else {}
        given = {k: v for k, v in keywords.items() if k != "name" and v is not None}
        if function in OPERATOR_ACTIVATIONS and not given:
            return "Activation", {"activation": OPERATOR_ACTIVATIONS[function]}, [first]
        if function not in OPERATORS or set(given) != {"y"}:
            return None
        operator, second = OPERATORS[function], given["y"]
        if first[0] != _CONSTANT and self._is_ref(second):
            return (operator.layer, {}, [first, second]) if operator.layer else None
        linear: Linear | None = operator.tensor_first
        number, tensor = second, first
        if first[0] == _CONSTANT:
            linear, number, tensor = operator.number_first, first[2], second
        if linear is None or not isinstance(number, (int, float)):
            return None
        scale, offset = linear(float(number))
        return "Rescaling", {"scale": scale, "offset": offset}, [tensor]

    def _is_ref(self, value: Any) -> bool:
        is_list = isinstance(value, list) and len(value) in (3, 4)
        return is_list and isinstance(value[0], str) and self._find(value[0]) is not None

    def _find(self, name: str) -> Config | None:
        return next((item for item in self.config["layers"] if item["name"] == name), None)

    def _kind(self, name: str) -> str:
        found = self._find(name)
        return found["class_name"] if found else ""

    def _offset(self, name: str) -> int:
        """The number of a layer's first call: Keras 2 counts a nested model's making as call 0."""
        found = self._find(name)
        if found is None or found["class_name"] not in MODELS:
            return 0
        if found["class_name"] != "Sequential":
            return 1
        inside = found["config"]
        first = (inside if isinstance(inside, list) else inside["layers"])[0]
        built = first["class_name"] in ("InputLayer", *MODELS)
        return int(built or "batch_input_shape" in first["config"])


def _entries(node: Any) -> list[list[Any]]:
    """The tensors of one call, each `[layer, call, tensor, keywords]`."""
    return [node] if node and isinstance(node[0], str) else list(node)
