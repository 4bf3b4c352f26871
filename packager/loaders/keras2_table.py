"""What differs between the configurations of Keras 2 and Keras 3, by class, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Rule:
    """How the configuration of one class differs.

    Attributes:
        dropped: Settings without effect at inference, or repeated elsewhere.
        only: Settings to leave out at these values: they mean what Keras 3 does without them.
        refused: Settings and values that Keras 3 takes, but that cannot be packaged.
        renamed: Keras 3's names by those of Keras 2.
        missing: What Keras 2 takes where an old file has no entry, and Keras 3 does not.
        becomes: Keras 3's class; the same one when it is empty.
    """

    dropped: tuple[str, ...] = ()
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    refused: Mapping[str, object] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, object] = field(default_factory=dict)
    becomes: str = ""


_PLAIN = Rule()
_CELL = Rule(dropped=("implementation",))
_RECURRENT = Rule(
    dropped=("implementation",),
    only={"time_major": (False,), "num_constants": (None, 0)},
    # An answer would depend on the calls before it, or samples would not be on the first axis.
    refused={"stateful": True, "time_major": True},
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
            *("Attention", "Bidirectional"),
            *("CategoryEncoding", "CenterCrop", "Concatenate", "Conv1D", "Conv2D", "Conv3D"),
            *("Cropping1D", "Cropping2D", "Cropping3D", "Dense", "Dot"),
            *("Dropout", "ELU", "EinsumDense", "Flatten", "GaussianDropout", "GaussianNoise"),
            *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D"),
            *("GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"),
            *("GroupNormalization", "Hashing", "Identity", "LayerNormalization", "Masking"),
            *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "Maximum", "Minimum", "Multiply"),
            *("Normalization", "PReLU", "Permute", "ReLU", "RepeatVector", "Rescaling"),
            *("Reshape", "Resizing", "SpectralNormalization"),
            *("StackedRNNCells", "Subtract", "UnitNormalization"),
            *("RandomBrightness", "RandomContrast", "RandomFlip", "RandomRotation"),
            *("RandomTranslation", "RandomZoom"),
            *("UpSampling1D", "UpSampling2D", "UpSampling3D"),
            *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "TimeDistributed"),
        ),
        _PLAIN,
    ),
    "BatchNormalization": Rule(
        dropped=("fused", "virtual_batch_size"),
        only={"renorm": (False,), "adjustment": (None,)},
    ),
    "Conv1DTranspose": _TRANSPOSED,
    "Conv2DTranspose": _TRANSPOSED,
    "Conv3DTranspose": _TRANSPOSED,
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), _RECURRENT),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D"), _DEPTHWISE),
    **dict.fromkeys(
        ("SeparableConv1D", "SeparableConv2D"), Rule(dropped=_KERNEL, only={"groups": (1,)})
    ),
    # Given its own default, int64, Keras 3 truncates the layer's inputs when it is traced.
    "Discretization": Rule(only={"dtype": ("int64",)}),
    "Embedding": Rule(dropped=("input_length",), only={"sparse": (False,)}),
    **dict.fromkeys(("LSTM", "SimpleRNN", "RNN"), _RECURRENT),
    "GRU": replace(_RECURRENT, missing=_GRU_MISSING),
    **dict.fromkeys(("LSTMCell", "SimpleRNNCell"), _CELL),
    "GRUCell": replace(_CELL, missing=_GRU_MISSING),
    "IntegerLookup": Rule(dropped=("vocabulary_size",)),
    "LeakyReLU": Rule(renamed={"alpha": "negative_slope"}),
    "MultiHeadAttention": Rule(
        dropped=("query_shape", "key_shape", "value_shape"),
        only={"softmax_robust_masking": (False,)},
    ),
    "Softmax": Rule(only={"robust_masking": (False,)}),
    **dict.fromkeys(
        ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
        Rule(only={"noise_shape": (None,)}),
    ),
    "ThresholdedReLU": Rule(renamed={"theta": "threshold"}, becomes="ReLU"),
}
MODELS = ("Sequential", "Functional", "Model")
# Settings of every layer that Keras 3 does not have, or that say how random numbers are made.
ANYWHERE = (
    "batch_input_shape",
    "dynamic",
    "autocast",
    "ragged",
    "optional",
    "rng_type",
    "force_generator",
)
TRAINING_ONLY = ("_regularizer", "_constraint")

# The name that Keras 2's hard sigmoid is registered by.
HARD_SIGMOID = "packager>keras2_hard_sigmoid"
# Keras 3's names of the activations that compute the same numbers.
ACTIVATIONS = {
    **{
        name: name
        for name in (
            *("elu", "exponential", "gelu", "leaky_relu", "linear", "mish", "relu", "relu6"),
            *("selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh"),
        )
    },
    # How TensorFlow 2.0 to 2.3 wrote tf.nn.softmax.
    "softmax_v2": "softmax",
    # 0.2 x + 0.5, limited to 0..1; Keras 3's own hard_sigmoid is relu6(x + 3) / 6.
    "hard_sigmoid": HARD_SIGMOID,
}


Linear = Callable[[float], tuple[float, float]]


@dataclass(frozen=True)
class Operator:
    """An operator on tensors, which TensorFlow 2.4 and later saved as a layer.

    Attributes:
        layer: The layer that computes it of two tensors; empty when there is none.
        tensor_first: Scale and offset of `x * scale + offset` for tensor and number.
        number_first: The same for number and tensor; None when it is not linear.
    """

    layer: str
    tensor_first: Linear
    number_first: Linear | None


_ADD = Operator("Add", lambda c: (1.0, c), lambda c: (1.0, c))
OPERATORS = {
    "__operators__.add": _ADD,
    "math.add": _ADD,
    "math.subtract": Operator("Subtract", lambda c: (1.0, -c), lambda c: (-1.0, c)),
    "math.multiply": Operator("Multiply", lambda c: (c, 0.0), lambda c: (c, 0.0)),
    "math.truediv": Operator("", lambda c: (1.0 / c, 0.0), None),
}
OPERATOR_ACTIVATIONS = {
    "nn.relu": "relu",
    "nn.relu6": "relu6",
    "nn.silu": "silu",
    "nn.elu": "elu",
    "math.sigmoid": "sigmoid",
    "math.tanh": "tanh",
    "math.exp": "exponential",
    "math.softplus": "softplus",
}
# Layers whose first tensor is the input and whose others are the initial state.
STATEFUL = (
    *("Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "GRU", "LSTM", "RNN"),
    "SimpleRNN",
)
