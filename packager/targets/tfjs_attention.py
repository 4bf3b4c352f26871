"""Attention layers, by classes of web/packager-layers.js."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from packager.loaders.layer_graph import Weights
from packager.targets.tfjs_parts import Chain, Config, Refused, Rule, Site, Source, custom

_PLACES = ("query", "value", "key", "query_mask", "value_mask", "key_mask", "attention_mask")
_ROLES = {name: name.replace("_mask", "Mask") for name in _PLACES}
_HEADS = ("query", "key", "value", "gate")


def _given(site: Site) -> dict[str, Source]:
    """The tensors of the call by their role, in camelCase."""
    found: dict[str, Source] = {}
    for place, name in enumerate(_PLACES):
        value = site.argument(place, name)
        if value is not None:
            if not isinstance(value, dict) or set(value) != {"tensor"}:
                raise Refused(f"its {name} is a constant", "make it an input")
            found[_ROLES[name]] = (-1, value["tensor"])
    return found


def _flag(site: Site, name: str) -> bool:
    return bool(site.call.kwargs.get(name))


def _head_weights(weights: Weights) -> Weights:
    """`query/kernel` as `queryKernel`; the output's are under `attention_output`."""
    found: Weights = {}
    for path, array in weights.items():
        part, _, kind = path.rpartition("/")
        part = "output" if part.endswith("attention_output") else part.rpartition("/")[2]
        if part not in (*_HEADS, "output") or kind not in ("kernel", "bias"):
            raise Refused(f"TF.js has no place for the weight {path}")
        found[f"{part}{kind.capitalize()}"] = array
    return found


def _multi_head(site: Site, settings: Config) -> Chain:
    given = _given(site)
    if any(len(site.shapes[place]) != 3 for _, place in list(given.values())[:2]):
        raise Refused(
            "TF.js attends over one axis only", "reshape to (batch, steps, features) before"
        )
    outputs = [site.output.shape]
    if _flag(site, "return_attention_scores"):
        if 1 not in site.call.outputs:
            raise Refused("the shape of its attention scores is not known")
        outputs.append(site.call.outputs[1].shape)
    settings |= {
        "roles": list(given),
        "causal": _flag(site, "use_causal_mask"),
        "window": site.config.get("sliding_window"),
        "returnScores": len(outputs) > 1,
        "even": not site.config.get("dropout") and len(outputs) == 1,
    }
    weights = _head_weights(site.weights)
    return (
        custom(
            "MultiHeadAttention", settings, weights, sources=tuple(given.values()), outputs=outputs
        ),
    )


def _multi_head_attention(site: Site) -> Chain:
    if site.config.get("attention_axes") not in (None, [1], 1):
        raise Refused("TF.js attends over the first axis only", "use attention_axes=None")
    return _multi_head(site, {"scale": 1.0 / math.sqrt(site.config["key_dim"]), "repeats": 1})


def _grouped_query_attention(site: Site) -> Chain:
    config = site.config
    repeats = config["num_query_heads"] // config["num_key_value_heads"]
    return _multi_head(site, {"scale": 1.0 / math.sqrt(config["head_dim"]), "repeats": repeats})


def _attention(site: Site) -> Chain:
    config = site.config
    tensors = site.argument(0, "inputs")
    given = dict(zip(("query", "value", "key"), _sources(tensors), strict=False))
    masks = site.argument(1, "mask") or []
    for role, mask in zip(("queryMask", "valueMask"), masks, strict=False):
        if mask is not None:
            given[role] = _sources([mask])[0]
    if any(len(site.shapes[place]) != 3 for _, place in given.values() if place < len(tensors)):
        raise Refused("TF.js attends over one axis only", "use inputs of three axes")
    mode = "additive" if site.layer.class_name == "AdditiveAttention" else config["score_mode"]
    outputs = [site.output.shape]
    if _flag(site, "return_attention_scores"):
        if 1 not in site.call.outputs:
            raise Refused("the shape of its attention scores is not known")
        outputs.append(site.call.outputs[1].shape)
    settings = {
        "roles": list(given),
        "mode": mode,
        "causal": _flag(site, "use_causal_mask"),
        "returnScores": len(outputs) > 1,
    }
    names = {"scale": "scale", "concat_score_weight": "weight"}
    weights = {names[name]: np.asarray(array) for name, array in site.weights.items()}
    part = custom("Attention", settings, weights, sources=tuple(given.values()), outputs=outputs)
    return (part,)


def _sources(tensors: Any) -> list[Source]:
    if not isinstance(tensors, list) or any(set(t) != {"tensor"} for t in tensors):
        raise Refused("an argument that should be a tensor is a constant", "make it an input")
    return [(-1, tensor["tensor"]) for tensor in tensors]


ATTENTION_RULES: dict[str, Rule] = {
    "MultiHeadAttention": _multi_head_attention,
    "GroupedQueryAttention": _grouped_query_attention,
    "GroupQueryAttention": _grouped_query_attention,
    "Attention": _attention,
    "AdditiveAttention": _attention,
}
