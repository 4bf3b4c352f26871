"""Says a Keras 2 model's description in Keras 3's words. Runs in the TensorFlow child.

The weights stay in their file. The table of differences is `keras2_table`: what it does not
know is refused by name. Only inference matters here, so initializers, regularizers and
constraints are left out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.errors import ModelError, NoExactFormError
from packager.loaders.keras2_calls import Calls
from packager.loaders.keras2_table import (
    ACTIVATIONS,
    ANYWHERE,
    HARD_SIGMOID,
    MODELS,
    RULES,
    TRAINING_ONLY,
)

Config = dict[str, Any]

_NEVER = object()
_WAY_OUT = (
    "export it with the Keras that saved it, model.export('saved_model'), and give that folder"
)


def open_h5(path: Path, source: str, objects: Mapping[str, Any], *, safe: bool) -> Any:
    """Builds the Keras 3 model that an `.h5` file of Keras 2 describes, with its weights.

    Args:
        path: The file; its name ends in `.h5`.
        source: What the user gave, for messages.
        objects: The user's own classes and functions by name.
        safe: Refuse Python code in the file.

    Raises:
        NoExactFormError: A class, setting or activation has no equal in Keras 3; names it.
        ModelError: It cannot be packaged at all, or is damaged.
    """
    import h5py
    import keras

    with h5py.File(path) as file:
        described = json.loads(file.attrs["model_config"])
    rewritten = rewrite(described, source, objects)
    model = keras.saving.deserialize_keras_object(
        rewritten, custom_objects=dict(objects), safe_mode=safe
    )
    model.load_weights(path)
    return model


def rewrite(described: Config, source: str, custom: Collection[str]) -> Config:
    """Returns the description of a whole model that `keras.saving` takes.

    Args:
        described: The file's `model_config`, as Keras 2.0 to 2.15 wrote it.
        source: The file, for messages.
        custom: Names of the user's own classes and functions, which are left as they are.

    Raises:
        NoExactFormError: A class, setting or activation has no equal in Keras 3; names it.
        ModelError: It cannot be packaged at all, or is damaged.
    """
    _register_hard_sigmoid()
    try:
        return _Rewriter(source, frozenset(custom)).model(described, name="model")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(
            f"{source}: its description of the model is not as Keras 2 writes it"
            f" ({type(error).__name__}: {error})",
            hint=_WAY_OUT,
        ) from error


def _register_hard_sigmoid() -> None:
    import keras

    def hard_sigmoid(x: Any) -> Any:
        return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)

    package, _, name = HARD_SIGMOID.partition(">")
    keras.saving.register_keras_serializable(package, name)(hard_sigmoid)


@dataclass(frozen=True)
class _Rewriter:
    """Rewrites models, layers and their settings.

    Attributes:
        source: The file, for messages.
        custom: Names of the user's own classes and functions.
    """

    source: str
    custom: frozenset[str]

    def model(self, described: Config, name: str) -> Config:
        """A Sequential or functional model, also one inside another."""
        config = described["config"]
        if described["class_name"] == "Sequential":
            # Before Keras 2.2.3 the configuration was the list of layers.
            config = {"name": name, "layers": config} if isinstance(config, list) else config
            return _object("Sequential", self._sequential(config))
        calls = Calls(self.source, config)
        layers = []
        for item in config["layers"]:
            replaced, nodes = calls.of(item)
            layers.append({**self.layer(replaced), "name": item["name"], "inbound_nodes": nodes})
        ends = {key: calls.ends(config[key], key) for key in ("input_layers", "output_layers")}
        kept = {key: config[key] for key in ("name", "trainable") if key in config}
        return _object("Model", {**kept, "layers": layers, **ends})

    def _sequential(self, config: Config) -> Config:
        first = config["layers"][0]
        layers = [self.layer(item) for item in config["layers"]]
        if first["class_name"] != "InputLayer":
            shape = _input_shape(config)
            if shape is None:
                raise ModelError(
                    f"{self.source}: the model {config.get('name')!r} was saved before it was"
                    " built, so its input shape is unknown",
                    hint="call it once on a sample and save it again",
                )
            dtype = layers[0]["config"].get("dtype", "float32")
            layers.insert(0, _input_layer(shape, dtype, layers[0]["config"].get("name", "model")))
        kept: Config = {key: config[key] for key in ("name", "trainable") if key in config}
        return {**kept, "layers": layers}

    def layer(self, described: Config) -> Config:
        """One layer, cell or nested model."""
        kind = described["class_name"]
        if kind in MODELS:
            return self.model(described, name=described.get("name", "model"))
        given = described["config"]
        config = {k: v for k, v in given.items() if k not in ANYWHERE}
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = config["dtype"]["config"]["name"]
        if kind == "InputLayer":
            shape = given.get("batch_input_shape", given.get("batch_shape"))
            return _input_layer(shape, config["dtype"], config["name"], suffix="")
        if kind.rpartition(">")[2] in self.custom:
            return {**_object(kind, config), "module": "custom", "registered_name": kind}
        rule = RULES.get(kind)
        if rule is None:
            raise NoExactFormError(
                f"{self.source}: the layer {config.get('name', kind)!r} is a {kind}, which has no"
                " exact form in Keras 3",
                hint=f"a class of your own: --custom-objects package.module; otherwise {_WAY_OUT}",
            )
        return _object(rule.becomes or kind, self._settings(kind, config))

    def _settings(self, kind: str, config: Config) -> Config:
        import keras

        rule = RULES[kind]
        where = f"{self.source}: the layer {config.get('name', kind)!r} ({kind})"
        accepted = _accepted(getattr(keras.layers, rule.becomes or kind))
        found: Config = dict(rule.missing)
        for key, value in config.items():
            meaningless = key in rule.only and value in rule.only[key]
            name = rule.renamed.get(key, key)
            if meaningless or key in rule.dropped or (key == "trainable" and key not in accepted):
                continue
            if rule.refused.get(key, _NEVER) == value:
                raise ModelError(
                    f"{where} has {key}={value!r}, which cannot be packaged", hint=_WAY_OUT
                )
            if name not in accepted:
                raise NoExactFormError(
                    f"{where} has {key}={value!r}, which has no form in Keras 3", hint=_WAY_OUT
                )
            found[name] = self._value(where, name, value)
        if kind == "BatchNormalization":
            found["axis"] = self._one_axis(where, found.get("axis", -1))
        return found

    def _one_axis(self, where: str, axis: Any) -> Any:
        if isinstance(axis, list) and len(axis) != 1:
            raise NoExactFormError(
                f"{where} has axis={axis}; Keras 3 takes one axis", hint=_WAY_OUT
            )
        return axis[0] if isinstance(axis, list) else axis

    def _value(self, where: str, key: str, value: Any) -> Any:
        if key.endswith("_initializer"):
            return "zeros"
        if key.endswith(TRAINING_ONLY):
            return None
        if key.endswith("activation"):
            return self._activation(where, value)
        if isinstance(value, dict) and "class_name" in value:
            return self.layer(value)
        if isinstance(value, list):
            return [self._value(where, key, item) for item in value]
        return value

    def _activation(self, where: str, value: Any) -> Any:
        if isinstance(value, dict) and value.get("class_name") == "function":
            value = value["config"]
        if isinstance(value, dict) and value.get("class_name") in RULES:
            return self.layer(value)
        if isinstance(value, dict):
            value = value.get("registered_name") or value["class_name"]
        if value is None:
            return None
        if value.rpartition(">")[2] in self.custom:
            return _function(value)
        if value not in ACTIVATIONS:
            raise NoExactFormError(
                f"{where} has the activation {value}, which has no exact form in Keras 3",
                hint=f"a function of your own: --custom-objects package.module; otherwise"
                f" {_WAY_OUT}",
            )
        name = ACTIVATIONS[value]
        return _function(name) if name == HARD_SIGMOID else name


def _function(name: str) -> Config:
    return {
        "module": "custom",
        "class_name": "function",
        "config": name,
        "registered_name": name,
    }


def _object(kind: str, config: Config) -> Config:
    module = "keras" if kind in MODELS else "keras.layers"
    return {"module": module, "class_name": kind, "config": config, "registered_name": None}


def _input_layer(shape: Any, dtype: Any, name: str, suffix: str = "_input") -> Config:
    return _object("InputLayer", {"batch_shape": shape, "dtype": dtype, "name": f"{name}{suffix}"})


def _input_shape(config: Config) -> list[int | None] | None:
    """The batch shape of a Sequential model without an InputLayer."""
    first = config["layers"][0]
    inside = first["config"]
    if first["class_name"] in MODELS:
        return _input_shape({"layers": inside} if isinstance(inside, list) else inside)
    shape = inside.get("batch_input_shape") or config.get("build_input_shape")
    return None if shape is None else list(shape)


def _accepted(kind: type) -> set[str]:
    """Names of the settings that a class and its bases take."""
    found: set[str] = set()
    for base in kind.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        found |= {p.name for p in parameters}
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            break
    return found
