"""From an opened model and the user's configuration to the declared inputs, outputs and task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from packager import presets
from packager.bundle import ImageSpec, InputSpec, OutputSpec
from packager.errors import ConfigError
from packager.preprocess import PreprocessError

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
    if outputs[0].activation == "none" and kind in ("classification", "binary", "multilabel"):
        outputs = (replace(outputs[0], activation="logits"), *outputs[1:])
    cut = (0.5 if threshold is None else threshold) if kind in ("binary", "multilabel") else None
    return Declared(_with_images(inputs, preprocess), outputs, kind, cut, labels)


def _recognise(output: OutputSpec, labels: tuple[str, ...]) -> str:
    size = output.shape[-1] if len(output.shape) > 1 else 1
    if output.activation == "softmax":
        return "classification"
    if output.activation == "sigmoid":
        return "binary" if size == 1 else "multilabel"
    if labels:
        return "binary" if size == 1 else "classification"
    return "none"


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
    merged.update(
        {k: tuple(map(float, _list(merged[k]))) for k in ("scale", "offset") if k in merged}
    )
    image = ImageSpec(**_known(merged))
    _check(image, spec, count)
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


def _check(image: ImageSpec, spec: InputSpec, count: int) -> None:
    channels = 1 if image.channels == "gray" else 3
    if count and channels != count:
        raise ConfigError(
            f"preprocess: {image.channels} images have {channels} channel(s), the input"
            f" {spec.name!r} has {count} (shape {list(spec.shape)})"
        )
    for field_name in ("scale", "offset"):
        if len(getattr(image, field_name)) not in (1, channels):
            raise ConfigError(f"preprocess: {field_name} needs 1 or {channels} numbers")
    if spec.dtype == "uint8" and image.scale != (1.0,):
        raise ConfigError(f"preprocess: the input {spec.name!r} is uint8: it takes pixels, 0..255")


def _image_size(spec: InputSpec) -> tuple[int, int, int] | None:
    """Height, width and channels of an input that can be an image."""
    shape = spec.shape[1:]
    if len(shape) == 2 and None not in shape:
        return int(shape[0] or 0), int(shape[1] or 0), 1
    if len(shape) == 3 and None not in shape and shape[2] in (1, 3):
        return int(shape[0] or 0), int(shape[1] or 0), int(shape[2] or 0)
    return None


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
