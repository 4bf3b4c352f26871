"""The image endpoint: a picture becomes a model's input as the bundle declares, and an answer."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from packager_server import answers, json_tensors, json_text
from packager_server.codes import Code, ServeError
from packager_server.core import Call, ServingCore
from packager_server.model import Array, find_signature


@dataclass(frozen=True)
class ImageLimits:
    """Bounds on a picture: its pixels after decoding, and how many classes an answer lists."""

    max_pixels: int = 50_000_000
    max_top: int = 1000


class ImageService:
    """Answers pictures."""

    def __init__(
        self, core: ServingCore, *, timeout_s: float = 30.0, limits: ImageLimits | None = None
    ) -> None:
        self._core = core
        self._timeout_s = timeout_s
        self._limits = limits or ImageLimits()

    def answer(self, name: str, version: int | None, data: bytes, top: int) -> dict[str, Any]:
        """Returns what the model says about an encoded picture.

        Raises:
            ServeError: Unknown model, no picture, too large a picture, or a model that takes none.
        """
        if not 1 <= top <= self._limits.max_top:
            raise ServeError(f"top must be 1 to {self._limits.max_top}, received {top}")
        lease = self._core.versions.acquire(name, version)
        try:
            manifest = lease.manifest
            spec = _image_input(manifest, name)
            tensor = self._tensor(data, spec)
            signature = find_signature(lease.model, "")
            inputs = {spec["name"]: tensor[None]}
            signature.check_inputs(inputs)
            call = Call(lease, signature, inputs, tuple(signature.outputs), api="image")
        except BaseException:
            lease.release()
            raise
        outputs = self._core.run(call, self._timeout_s)
        sample = {name: value[0] for name, value in outputs.items()}
        found = answers.explain(sample, manifest, top)
        return {"model": name, "version": call.lease.version, **found}

    def _tensor(self, data: bytes, spec: Mapping[str, Any]) -> Array:
        from PIL import Image

        from packager_server.preprocess import PreprocessError, preprocess

        try:
            with Image.open(io.BytesIO(data), formats=_formats()) as picture:
                pixels = picture.width * picture.height
                if pixels > self._limits.max_pixels:
                    raise ServeError(
                        f"The picture has {pixels} pixels, the limit is {self._limits.max_pixels}",
                        http=413,
                    )
                return np.asarray(preprocess(picture, spec))
        except PreprocessError as error:
            raise ServeError(
                f"The picture cannot be used: {error.message} {error.hint}".rstrip()
            ) from error
        except (
            OSError,
            ValueError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
        ) as error:
            raise ServeError(f"The body is no picture that this server reads: {error}") from error


@cache
def _formats() -> tuple[str, ...]:
    """Returns those of the preprocessing's formats that this Pillow can decode."""
    from PIL import Image

    from packager_server.preprocess import FORMATS

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _image_input(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inputs = manifest.get("inputs") or []
    if len(inputs) != 1 or not inputs[0].get("image"):
        raise ServeError(
            f"Model {name} declares no preprocessing of one image input: build its bundle with "
            "--preprocess, or send tensors to :predict",
            Code.FAILED_PRECONDITION,
        )
    spec: Mapping[str, Any] = inputs[0]
    return spec


def picture_from_json(body: bytes) -> bytes:
    """Returns the picture in `{"b64": "..."}`, `{"image": {"b64": "..."}}` or `{"image": "..."}`.

    Raises:
        ServeError: Another document, or no base64.
    """
    value = json_text.parse(body)
    if isinstance(value, dict) and "image" in value:
        value = value["image"]
    if json_tensors.is_base64(value):
        value = value["b64"]
    if not isinstance(value, str):
        raise ServeError('Expected {"image": {"b64": "..."}} with the picture in base64')
    # A page's FileReader writes data:image/png;base64,...
    if value.startswith("data:"):
        value = value.partition(",")[2]
    return json_tensors.decode_base64(value)
