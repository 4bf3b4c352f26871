"""The SavedModel: `serving_default` with the model's own names and a free batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packager.bundle import Artifact, Runtime
from packager.errors import ConversionError, brief
from packager.loaders.opened import End, OpenedModel


def concrete_function(opened: OpenedModel, shapes: dict[str, tuple[int | None, ...]]) -> Any:
    """Traces the model for the given input shapes, batch axis included.

    A new `tf.function` each time: one that has been traced for a free batch would answer with
    that trace when it is asked for a fixed one.
    """
    import tensorflow as tf

    function = tf.function(lambda **tensors: opened.call(tensors), autograph=False)
    specs = {
        end.name: tf.TensorSpec(shapes[end.name], end.dtype, name=end.name) for end in opened.inputs
    }
    return function.get_concrete_function(**specs)


def free_batch(end: End) -> tuple[int | None, ...]:
    """The shape of an input with a free batch axis."""
    return (None, *end.shape[1:]) if end.shape else ()


def write(opened: OpenedModel, folder: Path) -> None:
    """Writes the SavedModel into a folder that may hold other files already.

    Saving through a plain `tf.Module` stores each weight once; Keras' own export stores them
    twice.

    Raises:
        ConversionError: TensorFlow cannot save the model.
    """
    import tensorflow as tf

    try:
        function = concrete_function(opened, {e.name: free_batch(e) for e in opened.inputs})
        module = tf.Module()
        module.model_variables = list(opened.variables)
        module.keep_alive = opened.keep_alive if _has_resources(function, opened) else []
        tf.saved_model.save(module, str(folder), signatures={"serving_default": function})
    except Exception as error:
        raise ConversionError(f"saved_model: {brief(error)}") from error


def _has_resources(function: Any, opened: OpenedModel) -> bool:
    """Whether the graph refers to more than variables: look-up tables, for instance."""
    import tensorflow as tf

    known = {id(v.handle) for v in opened.variables if hasattr(v, "handle")}
    captured = [outer for outer, _ in function.graph.captures if outer.dtype == tf.resource]
    return any(id(outer) not in known for outer in captured)


def artifact(folder: Path, tensorflow_version: str) -> Artifact:
    """Describes the SavedModel that was written into a bundle's folder."""
    files = [folder / "saved_model.pb", folder / "fingerprint.pb"]
    files += [path for path in (folder / "variables").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.is_file())
    runtime = Runtime("saved_model", {"tensorflow": tensorflow_version})
    return Artifact("saved_model", ".", runtime, size_bytes=size)
