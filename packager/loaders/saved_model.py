"""Opens TensorFlow SavedModels by their signature. Runs in the TensorFlow child."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from packager.errors import ModelError, brief
from packager.loaders import layer_names, names, saved_model_file, tf1
from packager.loaders.opened import End, OpenedModel, Tensors, check_weights

# What Keras and TensorFlow call an end that nobody named.
_ANONYMOUS = re.compile(r"(inputs|args|output|keras_tensor|Identity)(_\d+)?")


def open_folder(
    source: str,
    signature: str | None,
    saved_by: str,
    ends: dict[str, list[list[str]]] | None = None,
) -> OpenedModel:
    """Opens a SavedModel and takes one of its signatures.

    Args:
        source: The folder.
        signature: The signature's name; None takes `serving_default`, or the only one.
        saved_by: As in `ModelFile`.
        ends: `inputs` and `outputs` in the model's order, each `[signature's name, model's own
            name]`, where they are known better than from the signature.

    Raises:
        ModelError: It cannot be loaded, or the signature does not exist or is not clear.
    """
    loaded = _load(source)
    function = _choose(source, loaded.signatures, signature)
    given, found = function.structured_input_signature[1], function.structured_outputs
    texts = tuple(name for name, spec in found.items() if spec.dtype.name == "string")
    found = {name: spec for name, spec in found.items() if name not in texts}
    if not found:
        raise ModelError(
            f"{source}: all outputs of the signature are text: {', '.join(texts)}",
            hint=f"choose another one with --signature; it has: {', '.join(loaded.signatures)}",
        )
    if ends is None:
        inputs = _ends(dict(sorted(given.items())), {}, "input")
        outputs = _ends(_in_order(source, found), layer_names.of_outputs(function), "output")
    else:
        inputs = _known_ends(given, ends["inputs"])
        outputs = _known_ends(found, [pair for pair in ends["outputs"] if pair[0] in found])
    _refuse_fixed_batch(source, inputs)
    check_weights(list(function.variables), source)

    def call(tensors: Tensors) -> Tensors:
        result = function(**{key: tensors[end.name] for key, end in inputs.items()})
        return {end.name: result[key] for key, end in outputs.items()}

    return OpenedModel(
        format="saved_model",
        saved_by=saved_by,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs.values()),
        call=call,
        variables=list(function.variables),
        keep_alive=[loaded],
        left_out=texts,
    )


def _load(source: str) -> Any:
    import tensorflow as tf

    try:
        return tf.saved_model.load(tf1.without_variables(source))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{source}: TensorFlow cannot open it: {brief(error)}",
            hint="check that saved_model.pb and variables/ were copied completely",
        ) from error


def _in_order(source: str, outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs in the model's order, where Keras 2 noted it; `output_10` after `output_9`."""
    noted = saved_model_file.read_origin(Path(source)).outputs
    if set(noted) == set(outputs):
        return {name: outputs[name] for name in noted}
    return {name: outputs[name] for name in sorted(outputs, key=_number)}


def _number(name: str) -> tuple[str, int, str]:
    text, _, number = name.rpartition("_")
    return (text, int(number), "") if number.isdecimal() else (name, -1, name)


def _refuse_fixed_batch(source: str, inputs: dict[str, End]) -> None:
    for end in inputs.values():
        if not end.shape:
            raise ModelError(
                f"{source}: the input {end.name!r} is a single value for all samples",
                hint="export a signature that sets it inside",
            )
        if end.fixed_batch and end.shape[0] != 1:
            raise ModelError(
                f"{source}: the input {end.name!r} takes exactly {end.shape[0]} samples at once",
                hint="export a signature with a free batch, TensorSpec([None, ...]), or with 1",
            )


def _choose(source: str, signatures: Any, wanted: str | None) -> Any:
    known = ", ".join(sorted(signatures)) or "none"
    if wanted is None:
        if "serving_default" in signatures:
            return signatures["serving_default"]
        if len(signatures) == 1:
            return next(iter(signatures.values()))
        raise ModelError(
            f"{source}: which signature is meant? It has: {known}", hint="add --signature NAME"
        )
    if wanted not in signatures:
        raise ModelError(
            f"{source} has no signature {wanted!r}; it has: {known}",
            hint="name one of them: --signature NAME",
        )
    return signatures[wanted]


def _ends(specs: dict[str, Any], layers: dict[str, str], kind: str) -> dict[str, End]:
    """Ends by the signature's name; `layers` has the names of layers for names without meaning."""
    originals = [layers.get(name, kind) if _ANONYMOUS.fullmatch(name) else name for name in specs]
    return {
        key: _end(name, original, specs[key])
        for key, name, original in zip(
            specs, names.sanitise(originals, kind), originals, strict=True
        )
    }


def _known_ends(specs: dict[str, Any], ends: list[list[str]]) -> dict[str, End]:
    return {name: _end(name, original, specs[name]) for name, original in ends}


def _end(name: str, original: str, spec: Any) -> End:
    shape = _shape(spec)
    return End(name, original, shape, spec.dtype.name, bool(shape) and shape[0] is not None)


def _shape(spec: Any) -> tuple[int | None, ...]:
    if spec.shape.rank is None:
        raise ModelError(f"the tensor {spec.name!r} has a shape of unknown rank")
    return tuple(spec.shape.as_list())
