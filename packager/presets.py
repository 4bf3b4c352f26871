"""Preprocessing presets: `0..1`, `-1..1`, `0..255`, and `keras:FAMILY` for keras.applications.

A preset says what becomes of a pixel value `p`, as `p * scale[c] + offset[c]`. It says nothing
about sizes and resizing. The `keras:` presets do what the family's `preprocess_input` does
(`keras/src/applications/imagenet_utils.py`).
"""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import TypedDict

from packager.preprocess import PreprocessError


class Preset(TypedDict):
    """What a preset declares of the manifest's `inputs[].image`.

    Attributes:
        channels: `rgb` or `bgr`; None if the preset serves any number of channels.
        scale: One factor, or one per channel in the order of `channels`.
        offset: What is added after scaling, in the unit of the tensor.
    """

    channels: str | None
    scale: list[float]
    offset: list[float]


# ImageNet's channel statistics as keras.applications has them: `torch` models divide by 255
# and standardise in RGB; `caffe` models subtract a mean in BGR, in pixel values.
TORCH_MEAN, TORCH_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CAFFE_BGR_MEAN = (103.939, 116.779, 123.68)

_UNIT = Preset(channels=None, scale=[1 / 255], offset=[0.0])
_SYMMETRIC = Preset(channels=None, scale=[1 / 127.5], offset=[-1.0])
_RAW = Preset(channels=None, scale=[1.0], offset=[0.0])

_TF = Preset(channels="rgb", scale=[1 / 127.5], offset=[-1.0])
# These families normalise inside the model and take pixel values.
_INSIDE = Preset(channels="rgb", scale=[1.0], offset=[0.0])
_CAFFE = Preset(channels="bgr", scale=[1.0], offset=[-mean for mean in CAFFE_BGR_MEAN])
_TORCH = Preset(
    channels="rgb",
    scale=[1 / (255 * std) for std in TORCH_STD],
    offset=[-mean / std for mean, std in zip(TORCH_MEAN, TORCH_STD, strict=True)],
)

PRESETS = MappingProxyType(
    {
        "0..1": _UNIT,
        "-1..1": _SYMMETRIC,
        "0..255": _RAW,
        "keras:convnext": _INSIDE,
        "keras:densenet": _TORCH,
        "keras:efficientnet": _INSIDE,
        "keras:efficientnet_v2": _INSIDE,
        "keras:inception_resnet_v2": _TF,
        "keras:inception_v3": _TF,
        "keras:mobilenet": _TF,
        "keras:mobilenet_v2": _TF,
        "keras:mobilenet_v3": _INSIDE,
        "keras:nasnet": _TF,
        "keras:resnet": _CAFFE,
        "keras:resnet50": _CAFFE,
        "keras:resnet101": _CAFFE,
        "keras:resnet152": _CAFFE,
        "keras:resnet_v2": _TF,
        "keras:resnet50_v2": _TF,
        "keras:resnet101_v2": _TF,
        "keras:resnet152_v2": _TF,
        "keras:vgg16": _CAFFE,
        "keras:vgg19": _CAFFE,
        "keras:xception": _TF,
    }
)


def preset(name: str) -> Preset:
    """Returns the preset called `name`; case and underscores do not matter.

    Raises:
        PreprocessError: There is no such preset; the hint lists those that exist.
    """
    spellings = {_spelling(known): known for known in PRESETS}
    known = spellings.get(_spelling(name))
    if known is None:
        close = difflib.get_close_matches(_spelling(name), spellings, n=1)
        suggestion = f"; did you mean {spellings[close[0]]!r}?" if close else ""
        raise PreprocessError(
            f"preprocessing preset {name!r} is not known{suggestion}",
            hint=f"Presets: {', '.join(PRESETS)}.",
        )
    found = PRESETS[known]
    return Preset(
        channels=found["channels"], scale=list(found["scale"]), offset=list(found["offset"])
    )


def _spelling(name: str) -> str:
    return name.lower().replace("_", "")
