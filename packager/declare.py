"""From an opened model and the user's configuration to the declared inputs, outputs and task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from packager import presets
from packager.bundle import ImageSpec, InputSpec, OutputSpec
from packager.errors import ConfigError
from packager.preprocess import CHANNELS, FITS, RESIZE_METHODS, PreprocessError

TASKS = ("classification", "binary", "multilabel", "regression", "none")
Preprocess = str | Mapping[str, Any] | None


@dataclass(frozen=True)
class Declared:
    """What the manifest says about the model's ends."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    task: str
    threshold: float | None
    labels: tuple[str, ...]


def declare(
    opened: Mapping[str, Any],
    *,
    task: str | None,
    threshold: float | None,
    labels: tuple[str, ...],
    preprocess: Preprocess,
) -> Declared:
    """Decides the task and the preprocessing declaration.

    Args:
        opened: The answer of the TensorFlow child's `open`.
        task: One of `TASKS`, or None to recognise it.
        threshold: For `binary` and `multilabel`; None is 0.5.
        labels: The labels, possibly none.
        preprocess: A preset, a mapping for the only image input, or a mapping by input name.

    Raises:
        ConfigError: The configuration does not fit the model.
    """
    inputs = tuple(
        InputSpec(e["name"], e["source_name"], tuple(e["shape"]), e["dtype"])
        for e in opened["inputs"]
    )
    outputs = tuple(
        OutputSpec(e["name"], e["source_name"], tuple(e["shape"]), e["dtype"], e["activation"])
        for e in opened["outputs"]
    )
    kind = task or _recognise(outputs[0], labels)
    _check_task(kind, outputs[0])
    if outputs[0].activation == "none" and kind in ("classification", "binary", "multilabel"):
        outputs = (replace(outputs[0], activation="logits"), *outputs[1:])
    cut = (0.5 if threshold is None else threshold) if kind in ("binary", "multilabel") else None
    return Declared(_with_images(inputs, preprocess), outputs, kind, cut, labels)


def _recognise(output: OutputSpec, labels: tuple[str, ...]) -> str:
    if len(output.shape) > 2:
        # Scores per pixel or per step are no answer for the sample.
        return "none"
    size = output.shape[-1] if len(output.shape) > 1 else 1
    if output.activation == "softmax":
        return "none" if size == 1 else "classification"
    if output.activation == "sigmoid":
        return "binary" if size == 1 else "multilabel"
    if labels:
        return "binary" if size == 1 else "classification"
    return "none"


def _check_task(task: str, output: OutputSpec) -> None:
    """Refuses a task whose answers cannot be read from the output."""
    if task not in ("classification", "binary", "multilabel"):
        return
    # An axis of length 1 changes nothing: [batch, 1, 1, classes] is as good.
    axes = [size for size in output.shape[1:] if size != 1]
    count = axes[0] if axes else 1
    where = f"task: the output {output.name!r} of shape {list(output.shape)}"
    if len(axes) > 1:
        raise ConfigError(
            f"{where} has several axes, {task!r} takes one score for each class",
            hint="leave the task out, or give a model whose output is [batch, classes]",
        )
    if task == "binary" and count not in (1, None):
        raise ConfigError(
            f"{where} has {count} values, 'binary' takes the one score of the positive class",
            hint="with two classes that exclude each other: task: classification, two labels",
        )
    if task == "classification" and count == 1:
        raise ConfigError(
            f"{where} has 1 value, 'classification' takes one for each class",
            hint="with one score of a positive class: task: binary",
        )


def _with_images(inputs: tuple[InputSpec, ...], preprocess: Preprocess) -> tuple[InputSpec, ...]:
    if preprocess is None:
        return inputs
    names = {spec.name for spec in inputs} | {spec.source_name for spec in inputs}
    if isinstance(preprocess, Mapping) and set(preprocess) <= names:
        by_name = dict(preprocess)
    else:
        candidates = [spec for spec in inputs if _image_size(spec) is not None]
        if len(candidates) != 1:
            raise ConfigError(
                f"preprocess: {len(candidates)} of the inputs"
                f" ({', '.join(s.name for s in inputs)}) can be images",
                hint="declare it by input name in package.yaml: preprocess: {NAME: 0..1}",
            )
        by_name = {candidates[0].name: preprocess}
    return tuple(
        replace(spec, image=image_spec(spec, by_name[key])) if key is not None else spec
        for spec in inputs
        for key in [next((k for k in (spec.name, spec.source_name) if k in by_name), None)]
    )


def image_spec(spec: InputSpec, value: str | Mapping[str, Any]) -> ImageSpec:
    """Completes a preprocessing declaration from the input's shape.

    Args:
        spec: The input.
        value: A preset's name, or a mapping with any of ImageSpec's fields and `preset`.

    Raises:
        ConfigError: The input cannot be an image, or the declaration does not fit it.
    """
    given = {"preset": value} if isinstance(value, str) else dict(value)
    size = _image_size(spec)
    if size is None and not {"width", "height", "channels"} <= set(given):
        raise ConfigError(
            f"preprocess: the shape {list(spec.shape)} of the input {spec.name!r} is no image",
            hint="images are [batch, height, width, 1 or 3] or [batch, height, width]",
        )
    height, width, count = size or (0, 0, 0)
    merged: dict[str, Any] = {
        "width": width, "height": height, "channels": "gray" if count == 1 else "rgb",
        **_preset(given.pop("preset", None), spec),
        **given,
    }  # fmt: skip
    merged.update({k: _numbers(k, merged[k]) for k in ("scale", "offset") if k in merged})
    image = ImageSpec(**_known(merged))
    _check_values(image)
    _check_fits(image, spec)
    return image


def _preset(name: str | None, spec: InputSpec) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        found = presets.preset(name)
    except PreprocessError as error:
        raise ConfigError(f"preprocess: {error.message}", hint=error.hint) from None
    return {key: value for key, value in found.items() if value is not None}


def _known(merged: dict[str, Any]) -> dict[str, Any]:
    known = {item.name for item in fields(ImageSpec)}
    unknown = sorted(set(merged) - known)
    if unknown:
        raise ConfigError(
            f"preprocess: unknown key {unknown[0]!r}", hint=f"known: {', '.join(sorted(known))}"
        )
    return merged


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    try:
        # YAML reads 1e-3, without a point, as text.
        numbers = tuple(float(v) for v in values if not isinstance(v, bool))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != len(values) or not all(map(math.isfinite, numbers)):
        raise ConfigError(
            f"preprocess: {key} needs a finite number, or one for each channel, received {value!r}"
        )
    return numbers


def _check_values(image: ImageSpec) -> None:
    """Checks each field by itself, and that there is a scale and an offset for each channel."""
    choices = (("channels", CHANNELS), ("resize", RESIZE_METHODS), ("fit", FITS))
    for key, known in choices:
        value = getattr(image, key)
        if value not in known:
            near = [name for name in known if name.endswith(f":{value}")]
            raise ConfigError(
                f"preprocess: {key} {value!r} is not known",
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}",
            )
    for key, low, high in (("width", 1, math.inf), ("height", 1, math.inf), ("pad_value", 0, 255)):
        value = getattr(image, key)
        if type(value) is not int or not low <= value <= high:
            wanted = "a positive whole number" if high == math.inf else "a whole number, 0 to 255"
            raise ConfigError(f"preprocess: {key} needs {wanted}, received {value!r}")
    for key in ("scale", "offset"):
        if len(getattr(image, key)) not in (1, _count(image)):
            raise ConfigError(
                f"preprocess: {key} needs 1 number or {_count(image)} ({image.channels}),"
                f" received {len(getattr(image, key))}"
            )


def _check_fits(image: ImageSpec, spec: InputSpec) -> None:
    """Checks the declaration against the shape and the dtype of the input."""
    channels = _count(image)
    shape = spec.shape[1:]
    # Only one axis can take the size that is left over.
    if shape.count(None) > 1:
        raise ConfigError(
            f"preprocess: the input {spec.name!r} of shape {list(spec.shape)} has several free"
            " axes, images need a fixed size",
            hint="save the model with the height and width that it is used with",
        )
    # Axes of length 1 change nothing, and a flat input takes the pixels in C order.
    full = (image.height, image.width, channels)
    forms = [[n for n in full if n != 1], [math.prod(full)]]
    axes = [n for n in shape if n != 1]
    if not any(_same(axes, form) for form in forms):
        raise ConfigError(
            f"preprocess: {image.channels} images of {image.width} x {image.height} have {channels}"
            f" channel(s), [height, width, channels] = {list(full)}; the input {spec.name!r}"
            f" has the shape {list(spec.shape)}",
            hint="leave width, height and channels out: the input's shape gives them"
            if _image_size(spec)
            else "images are [batch, height, width, 1 or 3] or [batch, height, width]",
        )
    raw = set(image.scale) == {1.0} and set(image.offset) == {0.0}
    if spec.dtype == "uint8" and not raw:
        raise ConfigError(
            f"preprocess: the input {spec.name!r} is uint8: it takes pixels, 0..255",
            hint="preprocess: 0..255",
        )


def _count(image: ImageSpec) -> int:
    return 1 if image.channels == "gray" else 3


def _same(axes: Sequence[int | None], form: Sequence[int]) -> bool:
    return len(axes) == len(form) and all(
        own in (None, n) for own, n in zip(axes, form, strict=True)
    )


def _image_size(spec: InputSpec) -> tuple[int, int, int] | None:
    """Height, width and channels of an input that can be an image."""
    shape = spec.shape[1:]
    if len(shape) == 2 and None not in shape:
        return int(shape[0] or 0), int(shape[1] or 0), 1
    if len(shape) == 3 and None not in shape and shape[2] in (1, 3):
        return int(shape[0] or 0), int(shape[1] or 0), int(shape[2] or 0)
    return None
