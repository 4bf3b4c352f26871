"""Opens TensorFlow SavedModels by their signature. Runs in the TensorFlow child."""

from __future__ import annotations

import re
from typing import Any

from packager.errors import ModelError, brief
from packager.loaders import names
from packager.loaders.opened import End, OpenedModel, Tensors, check_weights

# What Keras and TensorFlow call an output that nobody named.
_ANONYMOUS = re.compile(r"(output|keras_tensor|Identity)(_\d+)?")


def open_folder(source: str, signature: str | None) -> OpenedModel:
    """Opens a SavedModel and takes one of its signatures.

    Args:
        source: The folder.
        signature: The signature's name; None takes `serving_default`, or the only one.

    Raises:
        ModelError: It cannot be loaded, or the signature does not exist or is not clear.
    """
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(source)
    except Exception as error:
        raise ModelError(
            f"{source}: TensorFlow cannot open it: {brief(error)}",
            hint="check that saved_model.pb and variables/ were copied completely",
        ) from error
    function = _choose(source, loaded.signatures, signature)
    version = getattr(loaded, "tensorflow_version", "")
    given = function.structured_input_signature[1]
    inputs = _ends(given, "input")
    _refuse_fixed_batch(source, inputs)
    outputs = _ends(function.structured_outputs, "output")
    check_weights(list(function.variables), source)

    def call(tensors: Tensors) -> Tensors:
        result = function(**{end.source_name: tensors[end.name] for end in inputs})
        return {end.name: result[end.source_name] for end in outputs}

    return OpenedModel(
        format="saved_model",
        saved_by=f"tensorflow {version}".strip(),
        inputs=inputs,
        outputs=outputs,
        call=call,
        variables=list(function.variables),
        keep_alive=[loaded],
    )


def _refuse_fixed_batch(source: str, inputs: tuple[End, ...]) -> None:
    for end in inputs:
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
        raise ModelError(f"{source} has no signature {wanted!r}; it has: {known}")
    return signatures[wanted]


def _ends(specs: dict[str, Any], kind: str) -> tuple[End, ...]:
    originals = list(specs)
    readable = [kind if _ANONYMOUS.fullmatch(name) else name for name in originals]
    return tuple(
        _end(name, original, specs[original])
        for name, original in zip(names.sanitise(readable, kind), originals, strict=True)
    )


def _end(name: str, original: str, spec: Any) -> End:
    shape = _shape(spec)
    return End(name, original, shape, spec.dtype.name, bool(shape) and shape[0] is not None)


def _shape(spec: Any) -> tuple[int | None, ...]:
    if spec.shape.rank is None:
        raise ModelError(f"the tensor {spec.name!r} has a shape of unknown rank")
    return tuple(spec.shape.as_list())
