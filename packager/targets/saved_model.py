"""The SavedModel: `serving_default` with the model's own names and a free batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle import Artifact, Runtime
from packager.console import human_size
from packager.errors import ConversionError, brief
from packager.loaders.opened import End, OpenedModel

if TYPE_CHECKING:
    from packager.children import Pending
    from packager.job import Job
    from packager.targets import Target

WRITTEN = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
_EXTRA = "assets.extra"


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
    """The shape of an input with a free batch axis.

    Keras models take any batch, whatever they declare; a SavedModel's function does not.
    """
    return (None, *end.shape[1:]) if end.shape and not end.fixed_batch else end.shape


def write(opened: OpenedModel, function: Any, folder: Path) -> None:
    """Writes the SavedModel into a folder that may hold other files already.

    Args:
        opened: The model.
        function: Its concrete function with a free batch.
        folder: Where to.

    Saving through a plain `tf.Module` stores each weight once; Keras' own export stores them
    twice.

    Raises:
        ConversionError: TensorFlow cannot save the model.
    """
    import tensorflow as tf

    try:
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
    if any(id(outer) not in known for outer in captured):
        return True
    # TensorFlow 1 has its tables inside the graph, and initializers outside.
    inside = function.graph.as_graph_def().library.function
    return any("Table" in node.op for called in inside for node in called.node_def)


def ask(job: Job) -> Pending:
    """Asks for the SavedModel's files in the bundle's folder."""
    parts = [job.folder / name for name in WRITTEN]
    return job.source.submit(
        "write_saved_model", "writing the SavedModel", reads=(), writes=parts, folder=job.folder
    )


def files(job: Job, target: Target) -> list[Path]:
    """What belongs to the SavedModel."""
    return [job.folder / name for name in (*WRITTEN, _EXTRA)]


def make(job: Job, pending: Pending) -> None:
    """Adds the SavedModel and its warm-up requests."""
    (target,) = job.selection.of(__name__)
    parts = files(job, target)
    with job.making([target], "SavedModel", *parts) as detail:
        pending.result()
        if job.data is not None:
            job.source.call(
                "write_warmup",
                "writing warm-up requests",
                reads=["samples"],
                writes=[job.folder / _EXTRA],
                folder=job.folder,
                model_name=job.manifest.name,
                samples=job.data.golden_inputs,
            )
        found = [f for part in parts for f in (part, *part.rglob("*")) if f.is_file()]
        size = sum(file.stat().st_size for file in found)
        detail.append(human_size(size))
        # A SavedModel is read by the TensorFlow that wrote it and by newer ones.
        runtime = Runtime("saved_model", {"tensorflow": job.manifest.tools["tensorflow"]})
        job.artifacts.append(Artifact("saved_model", ".", runtime, size_bytes=size))
