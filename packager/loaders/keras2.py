"""Rebuilds files of Keras 2 so that Keras 3 opens them. Runs in the TensorFlow child.

The weights stay as they are. The description is written anew by an explicit table of the
differences between Keras 2 and Keras 3: what the table does not know is refused by name.
Only inference matters here, so initializers, regularizers and constraints are left out.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packager.errors import ModelError

Config = dict[str, Any]

WAY_OUT = (
    "export it with the Keras that saved it, model.export('saved_model'), and give that folder"
)


@dataclass(frozen=True)
class Rule:
    """How the configuration of one class differs.

    Attributes:
        dropped: Settings without effect at inference, or repeated elsewhere.
        only: Settings that Keras 3 does not have, and the values that mean what it does.
        renamed: Keras 3's names by those of Keras 2.
        missing: What Keras 2 takes where an old file has no entry, and Keras 3 does not.
    """

    dropped: tuple[str, ...] = ()
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, object] = field(default_factory=dict)


_PLAIN = Rule()
_CELL = Rule(dropped=("implementation",))
_RECURRENT = Rule(
    dropped=("implementation",), only={"time_major": (False,), "num_constants": (None, 0)}
)
_KERNEL = ("kernel_initializer", "kernel_regularizer", "kernel_constraint")
_DEPTHWISE = Rule(dropped=(*_KERNEL, "filters"), only={"groups": (1,)})
_TRANSPOSED = Rule(only={"groups": (1,)})
# GRU before TensorFlow 2 knew one form only, and did not name it.
_GRU_MISSING = {"reset_after": False}

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("Activation", "ActivityRegularization", "Add", "AdditiveAttention", "AlphaDropout"),
            *("Average", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D"),
            *("CategoryEncoding", "CenterCrop", "Concatenate", "Conv1D", "Conv2D", "Conv3D"),
            *("Cropping1D", "Cropping2D", "Cropping3D", "Dense", "Discretization", "Dot"),
            *("Dropout", "ELU", "EinsumDense", "Flatten", "GaussianDropout", "GaussianNoise"),
            *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D"),
            *("GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"),
            *("GroupNormalization", "Hashing", "IntegerLookup", "LayerNormalization", "Masking"),
            *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "Maximum", "Minimum", "Multiply"),
            *("Normalization", "PReLU", "Permute", "ReLU", "RepeatVector", "Rescaling"),
            *("Reshape", "Resizing", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
            *("SpectralNormalization", "StackedRNNCells", "Subtract", "UnitNormalization"),
            *("RandomBrightness", "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation"),
            *("RandomTranslation", "RandomZoom"),
            *("UpSampling1D", "UpSampling2D", "UpSampling3D"),
            *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "TimeDistributed"),
        ),
        _PLAIN,
    ),
    "Attention": Rule(),
    "BatchNormalization": Rule(
        dropped=("fused", "virtual_batch_size", "renorm_clipping", "renorm_momentum"),
        # Renormalization changes what training does; at inference the moving averages count.
        only={"renorm": (False, True), "adjustment": (None,)},
    ),
    "Bidirectional": Rule(),
    "Conv1DTranspose": _TRANSPOSED,
    "Conv2DTranspose": _TRANSPOSED,
    "Conv3DTranspose": _TRANSPOSED,
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), _RECURRENT),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D"), _DEPTHWISE),
    **dict.fromkeys(
        ("SeparableConv1D", "SeparableConv2D"), Rule(dropped=_KERNEL, only={"groups": (1,)})
    ),
    "Embedding": Rule(dropped=("input_length",), only={"sparse": (False,)}),
    **dict.fromkeys(("LSTM", "SimpleRNN", "RNN"), _RECURRENT),
    "GRU": Rule(_RECURRENT.dropped, _RECURRENT.only, missing=_GRU_MISSING),
    **dict.fromkeys(("LSTMCell", "SimpleRNNCell"), _CELL),
    "GRUCell": Rule(_CELL.dropped, missing=_GRU_MISSING),
    "LeakyReLU": Rule(renamed={"alpha": "negative_slope"}),
    "MultiHeadAttention": Rule(only={"softmax_robust_masking": (False,)}),
    "Softmax": Rule(only={"robust_masking": (False,)}),
}
_MODELS = ("Sequential", "Functional", "Model")
# Settings of every layer that Keras 3 does not have.
_ANYWHERE = ("batch_input_shape", "dynamic", "autocast", "ragged", "optional", "input_dtype")
_TRAINING_ONLY = ("_regularizer", "_constraint")

# Keras 3's names of the activations that compute the same numbers.
_ACTIVATIONS = {
    **{
        name: name
        for name in (
            *("elu", "exponential", "gelu", "leaky_relu", "linear", "mish", "relu", "relu6"),
            *("selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh"),
        )
    },
    # How TensorFlow 2.0 to 2.3 wrote tf.nn.softmax.
    "softmax_v2": "softmax",
    # 0.2 x + 0.5, limited to 0..1; Keras 3's hard_sigmoid is relu6(x + 3) / 6.
    "hard_sigmoid": "packager>keras2_hard_sigmoid",
}


def rebuild(source: Path, target: Path, custom: Collection[str]) -> None:
    """Writes a copy of a Keras 2 `.h5` model that Keras 3 opens.

    Args:
        source: The file.
        target: The copy.
        custom: Names of the user's own classes and functions, which are left as they are.

    Raises:
        ModelError: A class, setting or activation has no equal in Keras 3; names it.
    """
    import h5py

    _register()
    shutil.copyfile(source, target)
    target.chmod(0o600)
    with h5py.File(target, "r+") as file:
        text = file.attrs["model_config"]
        rewriter = _Rewriter(str(source), frozenset(custom))
        config = rewriter.model(json.loads(text), name="model")
        # Text of variable length may be longer than 64 kB, a fixed-length attribute may not.
        file.attrs["model_config"] = json.dumps(config)
        file.attrs.pop("training_config", None)


def hard_sigmoid(x: Any) -> Any:
    """The hard sigmoid of Keras 2: `clip(0.2 x + 0.5, 0, 1)`."""
    import keras

    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def _register() -> None:
    import keras

    keras.saving.register_keras_serializable("packager", "keras2_hard_sigmoid")(hard_sigmoid)


@dataclass(frozen=True)
class _Rewriter:
    """Says a description in Keras 3's words.

    Attributes:
        source: The file, for messages.
        custom: Names of the user's own classes and functions.
    """

    source: str
    custom: frozenset[str]

    def model(self, described: Config, name: str) -> Config:
        """A Sequential or functional model, also one inside another."""
        config = described["config"]
        if described["class_name"] != "Sequential":
            layers = [self.layer(item) for item in config["layers"]]
            return {**described, "class_name": "Functional", "config": {**config, "layers": layers}}
        # Before Keras 2.2.3 the configuration was the list of layers.
        config = {"name": name, "layers": config} if isinstance(config, list) else dict(config)
        layers = [self.layer(item) for item in config["layers"]]
        if config["layers"] and config["layers"][0]["class_name"] != "InputLayer":
            shape = _input_shape(config)
            if shape is None:
                raise ModelError(
                    f"{self.source}: the model {config.get('name', name)!r} was saved before it"
                    " was built, so its input shape is unknown",
                    hint="call it once on a sample and save it again",
                )
            layers.insert(0, _input_layer(shape, config["layers"][0]))
        config.pop("build_input_shape", None)
        return {**described, "config": {**config, "layers": layers}}

    def layer(self, described: Config) -> Config:
        """One layer, cell or nested model."""
        kind = described["class_name"]
        if kind in _MODELS:
            return self.model(described, name=described.get("name", "model"))
        config = {k: v for k, v in described["config"].items() if k not in _ANYWHERE}
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = config["dtype"]["config"]["name"]
        if kind == "InputLayer":
            given = described["config"]
            shape = given.get("batch_input_shape", given.get("batch_shape"))
            config = {"batch_shape": shape, "dtype": config["dtype"], "name": config["name"]}
        elif kind.rpartition(">")[2] not in self.custom:
            config = self._settings(kind, config)
        # `build_config` belongs to the newer format, which builds layers one by one.
        kept = {k: v for k, v in described.items() if k != "build_config"}
        return {**kept, "config": config}

    def _settings(self, kind: str, config: Config) -> Config:
        import keras

        rule = RULES.get(kind)
        where = f"{self.source}: the layer {config.get('name', kind)!r} ({kind})"
        if rule is None:
            raise ModelError(
                f"{self.source}: the layer {config.get('name', kind)!r} is a {kind}, which has no"
                " exact form in Keras 3",
                hint=f"a class of your own: --custom-objects package.module; otherwise {WAY_OUT}",
            )
        accepted = _accepted(getattr(keras.layers, kind))
        found: Config = dict(rule.missing)
        for key, value in config.items():
            if key in rule.dropped:
                continue
            if key in rule.only:
                if value not in rule.only[key]:
                    raise ModelError(
                        f"{where} has {key}={value!r}, which Keras 3 does not have", hint=WAY_OUT
                    )
                continue
            key = rule.renamed.get(key, key)
            if key not in accepted:
                raise ModelError(
                    f"{where} has the setting {key}={value!r}, which Keras 3 does not know",
                    hint=WAY_OUT,
                )
            found[key] = self._value(where, key, value)
        return found

    def _value(self, where: str, key: str, value: Any) -> Any:
        if key.endswith("_initializer"):
            return "zeros"
        if key.endswith(_TRAINING_ONLY):
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
        if value is None or value in self.custom:
            return value
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            shown = value if isinstance(value, str) else value.get("class_name", value)
            raise ModelError(
                f"{where} has the activation {shown}, which has no exact form in Keras 3",
                hint=f"a function of your own: --custom-objects package.module; otherwise"
                f" {WAY_OUT}",
            )
        return _ACTIVATIONS[value]


def _input_shape(config: Config) -> list[int | None] | None:
    """The batch shape of a Sequential model without an InputLayer."""
    first = config["layers"][0]
    inside = first["config"]
    if isinstance(inside, dict) and "batch_input_shape" in inside:
        return list(inside["batch_input_shape"])
    if first["class_name"] in _MODELS:
        layers = inside if isinstance(inside, list) else inside["layers"]
        return _input_shape({"layers": layers})
    shape = config.get("build_input_shape")
    return None if shape is None else list(shape)


def _input_layer(shape: list[int | None], first: Config) -> Config:
    inside = first["config"]
    dtype = inside.get("dtype", "float32") if isinstance(inside, dict) else "float32"
    name = inside.get("name", first["class_name"].lower()) if isinstance(inside, dict) else "model"
    dtype = dtype if isinstance(dtype, str) else "float32"
    return {
        "class_name": "InputLayer",
        "config": {"batch_shape": shape, "dtype": dtype, "name": f"{name}_input"},
    }


def _accepted(kind: type) -> set[str]:
    """Names of the settings that a class and its bases take."""
    found = {"name", "trainable", "dtype", "activity_regularizer"}
    for base in kind.__mro__[:-1]:
        parameters = inspect.signature(base.__init__).parameters.values()
        found |= {p.name for p in parameters}
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            break
    return found
