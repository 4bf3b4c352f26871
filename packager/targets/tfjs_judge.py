"""Decides for one call of a layer which TF.js layers stand for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Layer, Spec, Weights
from packager.targets.tfjs_flatten import FlatLayer
from packager.targets.tfjs_operators import OPERATOR_RULES
from packager.targets.tfjs_parts import Chain, Part, Refused, Site
from packager.targets.tfjs_preprocessing import IDENTITIES
from packager.targets.tfjs_rules import LAYER_RULES, SEVERAL_INPUTS
from packager.targets.tfjs_stock import check_config

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "int64")
_POLICIES = (*_FLOATS, *_INTEGERS, "bool", "mixed_float16", "mixed_bfloat16")

# Arguments of calls that the rules read, by class; all layers take `training`, which an
# inference overrides. A mask does nothing to the layers in `_MASK_IGNORED`.
_RECURRENT = ("sequences", "initial_state", "mask")
_ATTENTION = ("return_attention_scores", "use_causal_mask")
_READ = {
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional"), _RECURRENT),
    **dict.fromkeys(("Attention", "AdditiveAttention"), ("inputs", "mask", *_ATTENTION)),
    **dict.fromkeys(
        ("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention"),
        (
            *("query", "value", "key", "query_mask", "value_mask", "key_mask", "attention_mask"),
            *_ATTENTION,
        ),
    ),
    **dict.fromkeys(("Softmax", "GlobalAveragePooling1D", "TimeDistributed"), ("inputs", "mask")),
    "ReversibleEmbedding": ("inputs", "reverse"),
    "CategoryEncoding": ("inputs", "count_weights"),
}
_MASK_IGNORED = ("BatchNormalization", *IDENTITIES)


def chain_of(item: FlatLayer, call: int, inputs: tuple[Spec, ...]) -> Chain:
    """Returns the TF.js layers that compute what a call of a layer does.

    Args:
        item: The layer.
        call: Which of its calls.
        inputs: Shapes and types of the tensors that it takes, batch axis included.

    Returns:
        The chain; empty when the layer does nothing at inference.

    Raises:
        Refused: There is no exact form.
    """
    if item.layer.class_name == "InputLayer":
        return (_input(item.layer),)
    return _judge(Site(item.layer, item.originals[call], inputs, _judge))


def _judge(site: Site) -> Chain:
    layer = site.layer
    if layer.class_name not in IDENTITIES:
        layer = replace(layer, weights=_converted(layer.weights))
    site = replace(site, layer=layer)
    _check_policy(layer)
    if is_operator(layer):
        return _operator(site)
    _check_module(layer)
    rule = LAYER_RULES.get(layer.class_name)
    if rule is None:
        raise Refused(f"TF.js has no layer that computes exactly what {layer.class_name} does")
    _check_arguments(site)
    if layer.class_name not in IDENTITIES:
        check_config(layer.config)
    chain = rule(site)
    if layer.class_name in _MASK_IGNORED and chain:
        # The mask is the call's second tensor.
        return (replace(chain[0], sources=((-1, 0),)), *chain[1:])
    return chain


def is_operator(layer: Layer) -> bool:
    """Whether Keras made the layer of an operator on tensors."""
    return layer.module.startswith(("keras.ops", "keras.src.ops"))


def _operator(site: Site) -> Chain:
    rule = OPERATOR_RULES.get(site.layer.class_name)
    if rule is None:
        raise Refused(
            f"TF.js has no layer for the operator {site.layer.class_name}",
            "use layers instead of operators on tensors",
        )
    return rule(site)


def _input(layer: Layer) -> Part:
    dtype = layer.config.get("dtype") or "float32"
    if isinstance(dtype, dict):
        dtype = dtype.get("config", {}).get("name", "")
    if dtype not in (*_FLOATS, *_INTEGERS, "bool"):
        raise Refused(f"TF.js has no input of {dtype}", "use a float32 or int32 input")
    if layer.config.get("sparse") or layer.config.get("ragged"):
        raise Refused("TF.js has no sparse or ragged input", "use a dense input")
    shape = [None, *layer.config["batch_shape"][1:]]
    # TF.js has no smaller integers, and refuses to feed a uint8 input.
    written = "float32" if dtype in _FLOATS else "int32"
    return Part("InputLayer", {"batch_input_shape": shape, "dtype": written, "sparse": False})


def _check_policy(layer: Layer) -> None:
    policy = layer.config.get("dtype")
    name = policy.get("config", {}).get("name") if isinstance(policy, dict) else policy
    if name is not None and name not in _POLICIES:
        raise Refused(f"TF.js computes in float32, the layer in {name}", "save it unquantized")


def _check_module(layer: Layer) -> None:
    module = layer.module
    if module != "keras" and not module.startswith("keras."):
        raise Refused(
            f"{layer.class_name} is custom code ({module or 'no module'}), which TF.js cannot run",
            "build it of Keras layers",
        )


def _check_arguments(site: Site) -> None:
    """Refuses arguments of the call that its rule does not read."""
    name, call = site.layer.class_name, site.call
    read = _READ.get(name, ("inputs",))
    ignored = ("training", *(("mask",) if name in _MASK_IGNORED else ()))
    unread = [key for key in call.kwargs if key not in (*read, *ignored)]
    unread += [str(i) for i, value in enumerate(call.args) if i >= len(read) and _counts(value)]
    if unread:
        raise Refused(f"TF.js takes no {', '.join(sorted(unread))} when it calls a layer")
    several = len(site.inputs) > 1 and isinstance(call.args[0] if call.args else None, list)
    if several and name not in SEVERAL_INPUTS:
        raise Refused("TF.js gives the layer one tensor; the others are lost")


def _counts(value: Any) -> bool:
    return value is not None and not isinstance(value, bool)


def _converted(weights: Weights) -> Weights:
    """Weights as TF.js stores them: float32 or int32."""
    return {name: _converted_weight(name, array) for name, array in weights.items()}


def _converted_weight(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.name in (*_INTEGERS, "uint32"):
        return array.astype(np.int32)
    if array.dtype.name not in _FLOATS:
        raise Refused(f"TF.js has no weight of {array.dtype}, which {name} is")
    single = array.astype(np.float32)
    if not np.isfinite(single).all():
        raise Refused(f"its weight {name} holds NaN or infinities", "train or load it again")
    return single
