"""Recurrent layers and the wrappers of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packager.loaders.layer_graph import Call, Layer, Spec, Weights
from packager.targets.tfjs_activations import inside
from packager.targets.tfjs_parts import (
    TENSOR,
    Chain,
    Config,
    Part,
    Refused,
    Rule,
    Site,
    Source,
    custom,
    operator,
)
from packager.targets.tfjs_stock import zeros

_KINDS = {"SimpleRNN": "simple", "LSTM": "lstm", "GRU": "gru"}
_CELLS = {f"{name}Cell": name for name in _KINDS}
# TF.js' own activations, inside a cell.
_INITIALIZERS = ("kernel", "recurrent", "bias")


def _cell_weights(weights: Weights) -> Weights:
    """Weights by their last name: Keras puts the cell's name in front."""
    return {name.rpartition("/")[2]: array for name, array in weights.items()}


def _activations(config: Config) -> list[str]:
    keys = ("activation", "recurrent_activation")
    return [inside(config[key]) for key in keys if key in config]


def _is_stock(config: Config, class_name: str) -> bool:
    """Whether TF.js' own class computes the same, without masks and states from outside."""
    own = any(name.startswith("Packager") for name in _activations(config))
    return not own and not (class_name == "GRU" and config.get("reset_after"))


def _stock_config(config: Config) -> Config:
    kept = ("units", "use_bias", "return_sequences", "return_state", "go_backwards")
    found = {key: config[key] for key in kept if key in config}
    keys = ("activation", "recurrent_activation")
    found |= {key: inside(config[key]) for key in keys if key in config}
    return found | {f"{name}_initializer": zeros() for name in _INITIALIZERS}


def _states(site: Site) -> list[Source]:
    """The tensors of `initial_state`, as sources."""
    given = site.argument(1, "initial_state")
    if given is None:
        return []
    listed = given if isinstance(given, list) else [given]
    return [_source(state) for state in listed]


def _source(value: Any) -> Source:
    if not isinstance(value, dict) or set(value) != {"tensor"}:
        raise Refused("an argument that should be a tensor is a constant", "make it an input")
    return (-1, value["tensor"])


def _mask(site: Site) -> Source | None:
    given = site.argument(2, "mask")
    return None if given is None else _source(given)


def _recurrent(site: Site) -> Chain:
    name, config = site.layer.class_name, site.config
    if config.get("stateful"):
        raise Refused("TF.js keeps no state between calls here", "use stateful=False")
    weights = _cell_weights(site.weights)
    mask, states = _mask(site), _states(site)
    if mask is None and not states and _is_stock(config, name):
        count = len(site.call.outputs) if config.get("return_state") else 1
        several = {"SimpleRNN": 2, "GRU": 2, "LSTM": 3}[name] if config.get("return_state") else 1
        return (Part(name, _stock_config(config), weights, outputs=max(count, several)),)
    sources = ((-1, 0), *([mask] if mask else []), *states)
    return (_own(name, config, weights, site, sources, has_mask=mask is not None),)


def _own(
    name: str,
    config: Config,
    weights: Weights,
    site: Site,
    sources: tuple[Source, ...],
    *,
    has_mask: bool,
) -> Part:
    """The layer as the class of packager-layers.js."""
    sequences, state = bool(config.get("return_sequences")), bool(config.get("return_state"))
    batch, steps = site.shape[:2]
    units = config["units"]
    output = (batch, steps, units) if sequences else (batch, units)
    states = (2 if name == "LSTM" else 1) if state else 0
    settings = {
        "kind": _KINDS[name],
        "units": units,
        "activation": inside(config["activation"]),
        "recurrentActivation": inside(config.get("recurrent_activation")),
        "resetAfter": bool(config.get("reset_after")),
        "hasMask": has_mask,
        "goBackwards": bool(config.get("go_backwards")),
        "returnSequences": sequences,
        "returnState": state,
        "zeroMasked": bool(config.get("zero_output_for_mask")),
    }
    shapes = [output, *[(batch, units)] * states]
    return custom("Recurrent", settings, _own_weights(weights), sources=sources, outputs=shapes)


def _own_weights(weights: Weights) -> Weights:
    found = {"kernel": weights["kernel"], "recurrentKernel": weights["recurrent_kernel"]}
    bias = weights.get("bias")
    if bias is None:
        return found
    if bias.ndim == 1:
        return found | {"bias": bias}
    # GRU with reset_after: one bias of the input and one of the state.
    return found | {"bias": bias[0], "recurrentBias": bias[1]}


def _bidirectional(site: Site) -> Chain:
    config = site.config
    inner = {k: _inner_layer(config, k) for k in ("layer", "backward_layer") if config.get(k)}
    forward = inner["layer"]
    backward = inner.get("backward_layer", forward)
    if forward.class_name not in _KINDS or backward.class_name not in _KINDS:
        raise Refused(f"TF.js has no Bidirectional of {forward.class_name} here")
    if forward.config.get("stateful"):
        raise Refused("TF.js keeps no state between calls here", "use stateful=False")
    if forward.config.get("go_backwards"):
        raise Refused("its forward layer goes backwards", "use go_backwards=False")
    halves = [_half(site.weights, place) for place in (0, 1)]
    is_stock = (
        _same_cell(forward, backward)
        and _mask(site) is None
        and not _states(site)
        and not forward.config.get("return_state")
        and _is_stock(forward.config, forward.class_name)
        and config.get("merge_mode") is not None
    )
    if is_stock:
        return (_stock_bidirectional(config, forward, halves),)
    return _own_bidirectional(site, (forward, backward), halves)


def _same_cell(forward: Layer, backward: Layer) -> bool:
    """Whether the backward layer is the forward one turned round, as Keras and TF.js make it."""

    def face(layer: Layer) -> Config:
        return {k: v for k, v in layer.config.items() if k not in ("name", "go_backwards")}

    return forward.class_name == backward.class_name and face(forward) == face(backward)


def _inner_layer(config: Config, key: str) -> Layer:
    described = config[key]
    return Layer(
        described["class_name"],
        described["config"].get("name", key),
        described["config"],
        module=described.get("module") or "",
    )


def _half(weights: Weights, place: int) -> Weights:
    """The forward or backward layer's weights; Keras lists the forward layer's first."""
    names = list(weights)
    half = len(names) // 2
    chosen = names[half:] if place else names[:half]
    return _cell_weights({name: weights[name] for name in chosen})


def _stock_bidirectional(config: Config, forward: Layer, halves: list[Weights]) -> Part:
    # TF.js puts forward_ and backward_ before the inner layer's name.
    inner = {
        "class_name": forward.class_name,
        "config": _stock_config(forward.config) | {"name": "cell"},
    }
    weights = {
        f"{direction}_cell/{name}": array
        for direction, half in zip(("forward", "backward"), halves, strict=True)
        for name, array in half.items()
    }
    return Part("Bidirectional", {"layer": inner, "merge_mode": config["merge_mode"]}, weights)


_MERGES = {
    "concat": Part("Concatenate", {"axis": -1}),
    "sum": Part("Add"),
    "mul": Part("Multiply"),
    "ave": Part("Average"),
}


def _own_bidirectional(site: Site, layers: tuple[Layer, Layer], halves: list[Weights]) -> Chain:
    mask, given = _mask(site), _states(site)
    merge = site.config.get("merge_mode")
    parts: list[Part] = []
    for place, layer in enumerate(layers):
        config = layer.config | ({"go_backwards": True} if place else {})
        half = given[place * len(given) // 2 : (place + 1) * len(given) // 2]
        sources = ((-1, 0), *([mask] if mask else []), *half)
        parts.append(
            _own(layer.class_name, config, halves[place], site, sources, has_mask=mask is not None)
        )
    second: Source = (1, 0)
    if layers[0].config.get("return_sequences"):
        shape = parts[1].config["outputShapes"][0]
        parts.append(operator("flip", {"tensor": 0}, 1, sources=((1, 0),), outputs=[shape]))
        second = (2, 0)
    if merge is not None:
        joined = _MERGES[merge]
        parts.append(Part(joined.class_name, joined.config, sources=((0, 0), second)))
        merged: tuple[Source, ...] = ((len(parts) - 1, 0),)
    else:
        merged = ((0, 0), second)
    states = tuple((i, k) for i in (0, 1) for k in range(1, len(parts[i].config["outputShapes"])))
    if merge is None or states:
        parts.append(_together(site, (*merged, *states)))
    return tuple(parts)


def _together(site: Site, sources: tuple[Source, ...]) -> Part:
    """Several tensors as the outputs of one layer."""
    specs = [site.call.outputs.get(place) for place in range(len(sources))]
    shapes = [spec.shape for spec in specs if spec is not None]
    if len(shapes) < len(sources):
        # What nobody uses has no recorded shape; TF.js only counts it.
        shapes = [spec.shape if spec else site.output.shape for spec in specs]
    tensors = [{"tensor": i} for i in range(len(sources))]
    return operator("identity", *tensors, sources=sources, outputs=shapes)


def _rnn(site: Site) -> Chain:
    """RNN of cells: each cell is a layer, and stacked cells are layers one after another."""
    config = site.config
    cell = config["cell"]
    cells = cell["config"]["cells"] if cell["class_name"] == "StackedRNNCells" else [cell]
    if config.get("return_state") and len(cells) > 1:
        raise Refused("TF.js returns no states of stacked cells here", "use return_state=False")
    if any(c["class_name"] not in _CELLS for c in cells):
        raise Refused("a cell is custom code, which TF.js cannot run", "use the cells of Keras")
    if len(cells) > 1 and (_mask(site) or _states(site)):
        raise Refused("stacked cells take no mask and no states here", "use one layer per cell")
    names = list(site.weights)
    chain: list[Part] = []
    shape = site.shape
    for number, each in enumerate(cells):
        is_last = number == len(cells) - 1
        inner = each["config"] | {
            "return_sequences": True if not is_last else config.get("return_sequences"),
            "return_state": config.get("return_state") if is_last else False,
            "go_backwards": config.get("go_backwards") if number == 0 else False,
            "zero_output_for_mask": config.get("zero_output_for_mask"),
            "stateful": config.get("stateful"),
        }
        count = 3 if inner.get("use_bias", True) else 2
        weights = {name: site.weights[name] for name in names[:count]}
        names = names[count:]
        at = Site(
            Layer(_CELLS[each["class_name"]], site.layer.name, inner, weights=weights),
            site.call if number == 0 else Call(()),
            (Spec(shape, "float32"), *site.inputs[1:]),
            site.inner,
        )
        made = _recurrent(at)
        chain += made if number == 0 else [replace(part, sources=None) for part in made]
        shape = (shape[0], shape[1], inner["units"])
    return tuple(chain)


def _time_distributed(site: Site) -> Chain:
    """A layer for each step: the steps become part of the batch, and come back after it."""
    inner = _inner_layer(site.config, "layer")
    if site.argument(1, "mask") is not None and inner.class_name in _KINDS:
        raise Refused("TF.js passes no mask into TimeDistributed", "leave the mask out")
    batch, steps, *rest = site.shape
    output = site.output.shape
    prefix = f"{inner.name}/"
    weights = {name.removeprefix(prefix): array for name, array in site.weights.items()}
    at = Site(
        Layer(inner.class_name, inner.name, inner.config, (), weights, module=inner.module),
        Call((), outputs={0: Spec((batch, *output[2:]), "float32")}),
        (Spec((batch, *rest), site.inputs[0].dtype),),
        site.inner,
    )
    chain = site.inner(at)
    if any(part.outputs > 1 or part.sources not in (None, ((-1, 0),)) for part in chain):
        raise Refused(f"TF.js has no TimeDistributed of {inner.class_name} here")
    if rest.count(None) or None in output[2:]:
        raise Refused("a size is free", "give the input a fixed shape")
    only = chain[0] if len(chain) == 1 else None
    plain = only is not None and not only.needs_script and steps is not None
    if only is not None and plain and only.class_name in _TIME_DISTRIBUTED:
        config = {"class_name": only.class_name, "config": only.config | {"name": "inside"}}
        return (Part("TimeDistributed", {"layer": config}, only.weights, sources=((-1, 0),)),)
    folded = operator(
        "reshape", TENSOR, [-1, *rest], outputs=[(None, *rest)], dtype=None, sources=((-1, 0),)
    )
    spread = operator(
        "unfold",
        TENSOR,
        {"tensor": 1},
        outputs=[output],
        dtype=None,
        sources=((len(chain), 0), (-1, 0)),
    )
    return (folded, *(replace(part, sources=None) for part in chain), spread)


# What TF.js was seen to distribute over time exactly.
_TIME_DISTRIBUTED = ("Dense", "Conv2D", "MaxPooling2D", "Flatten", "Activation")


def _conv_lstm(site: Site) -> Chain:
    config = site.config
    if site.layer.class_name != "ConvLSTM2D":
        raise Refused(f"TF.js has no {site.layer.class_name}", "use ConvLSTM2D")
    if _mask(site) or _states(site) or config.get("stateful"):
        raise Refused("TF.js passes no mask or state into ConvLSTM2D", "leave them out")
    kept = ("filters", "kernel_size", "strides", "padding", "dilation_rate", "use_bias")
    settings = {key: config[key] for key in (*kept, "return_sequences", "go_backwards")}
    keys = ("activation", "recurrent_activation")
    settings |= {key: inside(config[key]) for key in keys}
    settings |= {f"{name}_initializer": zeros() for name in _INITIALIZERS}
    if config.get("return_state"):
        raise Refused("TF.js returns no states of ConvLSTM2D here", "use return_state=False")
    return (Part("ConvLSTM2D", settings, _cell_weights(site.weights)),)


RECURRENT_RULES: dict[str, Rule] = {
    **dict.fromkeys(_KINDS, _recurrent),
    "Bidirectional": _bidirectional,
    "RNN": _rnn,
    "TimeDistributed": _time_distributed,
    **{f"ConvLSTM{n}D": _conv_lstm for n in (1, 2, 3)},
}
