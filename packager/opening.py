"""Opens the source model in the TensorFlow child, by the way that its format needs.

A Keras 2 model is rebuilt for Keras 3 and compared with tf-keras on the same inputs. Where Keras 3
has no exact form of it, tf-keras exports a SavedModel, which is opened instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packager.cache import Cache
from packager.children import Child, Pending
from packager.config import Model
from packager.console import Reporter
from packager.errors import NoExactFormError, NoReferenceError, PackagerError
from packager.loaders.model_file import ModelFile, identify
from packager.verify import rebuilt_check

Opened = dict[str, Any]


def recognise(model: Model) -> ModelFile:
    """Recognises the model by its content; see `identify`."""
    return identify(
        model.source,
        architecture=model.architecture,
        allow_unsafe_code=model.allow_unsafe_code,
        allow_ops=model.allow_op,
        own_modules=model.custom_objects,
    )


def child(
    module: str, model: Model, work: Path, reporter: Reporter, cache: Cache | None = None
) -> Child:
    """Returns a worker that opens the model; it is confined unless the user has named code."""
    return Child(
        module,
        verbose=reporter.verbose,
        temporary=work,
        trusted=model.runs_code,
        cache=cache,
    )


def begin(
    model: Model, found: ModelFile, source: Child, *, keep_python: bool = False
) -> Pending | None:
    """Asks for the model to be opened, so that TensorFlow starts; None where more comes before it.

    Args:
        model: What to package.
        found: The same, recognised.
        source: The TensorFlow child.
        keep_python: As for `open_source`.
    """
    if found.is_keras2:
        return None
    return _ask(source, model, found.source, found.format, found, keep_python)


def open_source(
    model: Model,
    found: ModelFile,
    source: Child,
    work: Path,
    reporter: Reporter,
    *,
    keep_python: bool = False,
    cache: Cache | None = None,
    begun: Pending | None = None,
) -> Opened:
    """Opens the model and leaves it open in the child.

    Args:
        model: What to package.
        found: The same, recognised.
        source: The TensorFlow child.
        work: A scratch folder.
        reporter: Where the stages are shown.
        keep_python: Run a Keras 3 model as it is, without a graph.
        cache: Answers of earlier builds.
        begun: What `begin` returned.

    Returns:
        The answer of the child's `open`: ends, number of parameters, versions, and why no graph
        holds the model (`no_graph`).

    Raises:
        ModelError: It cannot be opened, and why.
        ConversionError: A rebuilt Keras 2 model computes something else.
    """
    begun = begun or begin(model, found, source, keep_python=keep_python)
    if begun is not None:
        with reporter.stage("open it in TensorFlow"):
            opened: Opened = begun.result()
        _warn_of_text(opened, reporter)
        return opened
    with child("packager.loaders.tf_keras_worker", model, work, reporter, cache) as old:
        return open_keras2(model, found, source, old, work, reporter)


def open_keras2(
    model: Model, found: ModelFile, source: Child, old: Child, work: Path, reporter: Reporter
) -> Opened:
    """As `open_source`, for a Keras 2 model, with the tf-keras child `old`."""
    # Both import TensorFlow meanwhile.
    reference = old.submit(
        "open",
        "opening the Keras 2 model in tf-keras",
        keep=True,
        reads=_files_of(found.architecture),
        source=found.source,
        format=found.format,
        architecture=found.architecture,
        custom_objects=list(model.custom_objects),
        unsafe=model.allow_unsafe_code,
    )
    try:
        with reporter.stage("open it in TensorFlow") as detail:
            if found.format == "keras_h5":
                opened = _open(source, model, found.source, found.format, found)
            else:
                if not reference.result():
                    return _without_reference(model, found, source, reporter)
                path = work / "keras2.h5"
                stage = "describing the Keras 2 model by its layers"
                old.call("save_h5", stage, reads=(), writes=[path], path=path)
                with _naming(found.source, path):
                    opened = _open(source, model, str(path), "keras_h5", found)
            detail.append("rebuilt for Keras 3")
    except NoExactFormError as error:
        return _exported(error, reference, found, source, old, work, reporter)
    reference.result()
    with reporter.stage("compare it with tf-keras") as detail:
        detail.append(rebuilt_check.check(found.source, opened, source, old, work, reporter))
    return opened


def _open(source: Child, model: Model, path: str, file_format: str, found: ModelFile) -> Opened:
    opened: Opened = _ask(source, model, path, file_format, found).result()
    return opened


def _ask(
    source: Child,
    model: Model,
    path: str,
    file_format: str,
    found: ModelFile,
    keep_python: bool = False,
) -> Pending:
    return source.submit(
        "open",
        "opening the model",
        keep=True,
        reads=_files_of(found.architecture),
        source=path,
        format=file_format,
        saved_by=found.saved_by,
        architecture=found.architecture,
        signature=model.signature,
        custom_objects=list(model.custom_objects),
        allow_unsafe_code=model.allow_unsafe_code,
        keep_python=keep_python,
    )


def _files_of(architecture: str) -> list[str]:
    """Which arguments of `open` are files; an architecture may be a function of the user's."""
    return ["source", "architecture"] if Path(architecture).is_file() else ["source"]


def _without_reference(model: Model, found: ModelFile, source: Child, reporter: Reporter) -> Opened:
    """The user's function built a Keras 3 model, for weights of Keras 2."""
    reporter.warn(
        f"the weights were saved by {found.saved_by}, and {found.architecture} returned a model of"
        " Keras 3: nothing compares the two. Measure it with --evaluation, or let the function use"
        " `from tensorflow import keras`"
    )
    return _open(source, model, found.source, found.format, found)


def _exported(
    reason: NoExactFormError,
    reference: Pending,
    found: ModelFile,
    source: Child,
    old: Child,
    work: Path,
    reporter: Reporter,
) -> Opened:
    """Opens what tf-keras exports; the first error counts where tf-keras cannot open it either."""
    with reporter.stage("export it with tf-keras") as detail:
        try:
            reference.result()
        except NoReferenceError as error:
            raise reason from error
        folder = work / "tf-keras-export"
        stage = "exporting the Keras 2 model with tf-keras"
        ends = old.call("export", stage, reads=(), writes=[folder], folder=folder)
        detail.append("no exact form in Keras 3")
    reporter.warn(
        f"{reason.message}. tf-keras exported the model instead: there are no Keras layers to"
        " describe, so it gets no tfjs/layers"
    )
    opened: Opened = source.call(
        "open",
        "opening what tf-keras exported",
        keep=True,
        reads=["source"],
        source=folder,
        format="saved_model",
        saved_by=found.saved_by,
        ends=ends,
        no_layers=reason.message,
    )
    _warn_of_text(opened, reporter)
    return {**opened, "treatment": "exported by tf-keras: Keras 3 has no exact form of it"}


def _warn_of_text(opened: Opened, reporter: Reporter) -> None:
    for name in opened["left_out"]:
        reporter.warn(f"the output {name!r} is text and is left out; --labels names classes")


@contextlib.contextmanager
def _naming(source: str, path: Path) -> Iterator[None]:
    """Lets errors name the user's file instead of the one made from it."""
    try:
        yield
    except PackagerError as error:
        message = error.message.replace(str(path), source)
        raise type(error)(message, hint=error.hint) from error
