"""The reference implementation of the preprocessing declaration in `docs/bundle.md`.

An image becomes the tensor of one sample in seven steps:

1. EXIF orientation is applied.
2. 8 bits per channel; of a 16-bit channel the high byte is taken.
3. Alpha is composited over black: `(2 * p * alpha + 255) // 510`. Colour profiles are ignored.
4. Channels: `gray` is `(19595 R + 38470 G + 7471 B + 32768) >> 16`, `rgb` or `bgr`.
5. Fit and resize from `w x h` to `W x H`. An image with `w * H >= h * W` is the wider one. Of
   it, `crop` keeps a width of `cw = max(1, (2*h*W + H) // (2*H))` from `(w - cw) // 2` on;
   `pad` resizes it to a height of `rh = max(1, (2*h*W + w) // (2*w))`, which begins at
   `(H - rh) // 2` on the canvas. For a narrower one, width and height exchange their roles.
   `pillow:*` is `PIL.Image.resize` on 8 bits, antialiased. `tf:*` is `tf.image.resize`:
   half-pixel centres, no antialias, and float32 pixels for `tf:bilinear`.
6. `p * scale[c] + offset[c]` in float64, rounded once to the tensor's dtype. Integers are
   rounded half away from zero and clipped.
7. The declared shape, without its batch axis.

An image is a path, an open binary file, a Pillow image, or uint8 pixels `[h, w]` or
`[h, w, 1|3|4]`; of an animation the first frame counts. Whatever cannot be used raises
`PreprocessError`.

Needs NumPy and Pillow and imports nothing of packager: the server ships a copy of this file,
and `edge/run.py` holds the text between the two marker lines below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, Union

import numpy as np

# ---- preprocessing: begin (one text in packager/preprocess.py and edge/run.py) ----

try:
    from PIL import Image
except ImportError:  # Only pictures need it.
    Image = None  # type: ignore[assignment]

ImageSource = Union[str, "os.PathLike[str]", IO[bytes], "Image.Image", np.ndarray]

# Pillow's numbers: of its filters, and of the transposition that undoes an EXIF orientation.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
EXIF_ORIENTATION = 0x0112
RESIZE_METHODS = (*(f"pillow:{name}" for name in FILTERS), "tf:bilinear", "tf:nearest")
CHANNELS = ("gray", "rgb", "bgr")
FITS = ("stretch", "crop", "pad")
# Pillow opens more, one of them (EPS) with another program.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")


class PreprocessError(Exception):
    """An image or a declaration cannot be turned into a tensor; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def prepare_pixels(image: ImageSource, image_spec: Mapping[str, Any]) -> np.ndarray:
    """Runs steps 1 to 5: `[height, width, channels]`, float32 for `tf:bilinear`, else uint8."""
    W, H, channels = (image_spec[key] for key in ("width", "height", "channels"))
    _check_choice("channels", channels, CHANNELS)
    picture = _open(image)
    (left, top, cw, ch), (w, h), (x, y) = fit_boxes(*picture.size, W, H, image_spec["fit"])
    if (cw, ch) != picture.size:
        picture = picture.crop((left, top, left + cw, top + ch))
    picture = _as_mode(picture, "L" if channels == "gray" else "RGB")
    pixels = _resize(picture, w, h, image_spec["resize"])
    pixels = pixels[:, :, ::-1] if channels == "bgr" else pixels
    if (w, h) == (W, H):
        return pixels
    canvas = np.full((H, W, pixels.shape[2]), image_spec.get("pad_value", 0), pixels.dtype)
    canvas[y : y + h, x : x + w] = pixels
    return canvas


def fit_boxes(w: int, h: int, W: int, H: int, fit: str) -> tuple[tuple[int, ...], ...]:
    """Step 5: what is kept (left, top, width, height), its size on the target, its place there."""
    _check_choice("fit", fit, FITS)
    wider = w * H >= h * W
    if fit == "crop":
        cw = max(1, (2 * h * W + H) // (2 * H)) if wider else w
        ch = h if wider else max(1, (2 * w * H + W) // (2 * W))
        return ((w - cw) // 2, (h - ch) // 2, cw, ch), (W, H), (0, 0)
    if fit == "pad":
        rw = W if wider else max(1, (2 * w * H + h) // (2 * h))
        rh = max(1, (2 * h * W + w) // (2 * w)) if wider else H
        return (0, 0, w, h), (rw, rh), ((W - rw) // 2, (H - rh) // 2)
    return (0, 0, w, h), (W, H), (0, 0)


def normalise(pixels: np.ndarray, image_spec: Mapping[str, Any], dtype: str) -> np.ndarray:
    """Runs step 6 on uint8 or float32 pixels `[..., channels]`."""
    if pixels.dtype == np.uint8:
        return apply_tables(pixels, pixel_tables(image_spec, dtype))
    channels = 1 if image_spec["channels"] == "gray" else 3
    for key in ("scale", "offset"):
        if len(image_spec[key]) not in (1, channels):
            wanted = f"{key} needs 1 or {channels} entries"
            raise PreprocessError(f"{wanted}, received {image_spec[key]}")
    values: np.ndarray = pixels.astype(np.float64) * image_spec["scale"] + image_spec["offset"]
    return values.astype(dtype) if np.dtype(dtype).kind == "f" else _to_integer(values, dtype)


def pixel_tables(image_spec: Mapping[str, Any], dtype: str) -> np.ndarray:
    """Returns what step 6 makes of each of the 256 pixel values: `dtype`, `[channels, 256]`."""
    channels = 1 if image_spec["channels"] == "gray" else 3
    ramp = np.repeat(np.arange(256, dtype=np.float32)[:, None], channels, axis=1)
    return np.ascontiguousarray(normalise(ramp, image_spec, dtype).T)


def apply_tables(pixels: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Looks up uint8 pixels `[..., channels]` in tables `[channels, 256]`."""
    if pixels.shape[-1] != len(tables):
        raise PreprocessError(f"expected {len(tables)} channels, received {pixels.shape[-1]}")
    return np.stack([table[pixels[..., channel]] for channel, table in enumerate(tables)], axis=-1)


def quantize(x: np.ndarray, scale: float, zero_point: int, dtype: str) -> np.ndarray:
    """Returns `round(x / scale) + zero_point`, half away from zero, clipped to `dtype`'s range."""
    if np.isnan(x).any():
        raise PreprocessError("the input holds NaN, which a quantized model cannot take")
    return _to_integer(x.astype(np.float64) / float(scale), dtype, int(zero_point))


def dequantize(q: np.ndarray, scale: Any, zero_point: Any, axis: int = -1) -> np.ndarray:
    """Returns `(q - zero_point) * scale` as float32; several scales belong to `axis`."""
    moved = np.moveaxis(np.atleast_1d(q).astype(np.float64), axis, -1)
    values: np.ndarray = (moved - np.asarray(zero_point)) * np.asarray(scale, np.float64)
    return np.moveaxis(values, -1, axis).astype(np.float32)


def _open(source: ImageSource) -> Image.Image:
    """Returns the image upright, 8-bit and without alpha: mode L or RGB."""
    if Image is None:
        raise PreprocessError("images need Pillow", hint="python -m pip install pillow")
    if isinstance(source, np.ndarray):
        return _flatten(Image.fromarray(_checked(source)))
    try:
        if isinstance(source, Image.Image):
            return _decode(source)
        with Image.open(source) as picture:
            return _decode(picture)
    # Pillow's decoders raise many classes for a damaged file, and all of them mean the same.
    except Exception as error:
        name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "")
        raise PreprocessError(f"{name or 'image'}: cannot be read: {error}") from error


def _decode(picture: Image.Image) -> Image.Image:
    if picture.format not in (None, *FORMATS):
        raise PreprocessError(f"{picture.format} is none of {', '.join(FORMATS)}")
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and picture.width * picture.height > limit:
        size = f"{picture.width}x{picture.height}"
        raise PreprocessError(f"{size} pixels are more than Pillow's limit of {limit}")
    picture.load()
    # Not getexif(), which also reads XMP: browsers do not. Damaged EXIF raises many classes;
    # like every viewer, take the image as it is stored.
    exif = Image.Exif()
    try:
        exif.load(picture.info.get("exif", b""))
        turn = UPRIGHT.get(exif.get(EXIF_ORIENTATION, 1))
    except Exception:
        turn = None
    return _flatten(picture if turn is None else picture.transpose(Image.Transpose(turn)))


def _flatten(picture: Image.Image) -> Image.Image:
    """Brings any mode to 8-bit L or RGB, with alpha composited over black."""
    if picture.mode.startswith("I") or picture.mode == "F":
        return Image.fromarray(_high_bytes(picture))
    key = picture.info.get("transparency")
    if picture.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
        raise PreprocessError("16-bit RGB with a transparent colour is not supported")
    holder = picture.palette if picture.mode == "P" and picture.palette else picture
    if key is None and not holder.mode.upper().endswith("A"):
        return _as_mode(picture, "L" if picture.mode in ("1", "L") else "RGB")
    black = Image.new("RGBA", picture.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, picture.convert("RGBA")).convert("RGB")


def _high_bytes(picture: Image.Image) -> np.ndarray:
    """Returns the high bytes of 16-bit gray, uint8 `[h, w]`; Pillow's conversion would clip."""
    values = np.asarray(picture)
    # Pillow before 10.3 opens 16-bit gray with 32 bits; more than 16 in use is no picture.
    if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise PreprocessError("32-bit pixels have no 8-bit meaning")
    transparent = values == picture.info.get("transparency", -1)
    return np.where(transparent, 0, values.astype(np.int64) >> 8).astype(np.uint8)


def _checked(pixels: np.ndarray) -> np.ndarray:
    """Returns uint8 pixels as Pillow takes them: `[h, w]` or `[h, w, 3|4]`."""
    good_shape = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4))
    if pixels.dtype != np.uint8 or not good_shape or not pixels.size:
        found = f"{pixels.dtype} {list(pixels.shape)}"
        raise PreprocessError(f"expected uint8 pixels [h, w] or [h, w, 1|3|4], received {found}")
    gray = pixels.ndim == 3 and pixels.shape[2] == 1
    return np.ascontiguousarray(pixels[:, :, 0] if gray else pixels)


def _as_mode(picture: Image.Image, mode: str) -> Image.Image:
    # convert() copies even when there is nothing to do, which a large photo pays for.
    return picture if picture.mode == mode else picture.convert(mode)


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).reshape(picture.height, picture.width, -1)


def _resize(picture: Image.Image, w: int, h: int, method: str) -> np.ndarray:
    _check_choice("resize", method, RESIZE_METHODS)
    if method.startswith("tf:"):
        return _tf_resize(_pixels(picture), w, h, nearest=method == "tf:nearest")
    kernel = Image.Resampling(FILTERS[method.split(":")[1]])
    # Rows, then columns, in two calls: in one call Pillow 13 takes whichever order is cheaper.
    for step in ((w, picture.height), (w, h)):
        picture = picture if picture.size == step else picture.resize(step, kernel)
    return _pixels(picture)


def _tf_resize(pixels: np.ndarray, w: int, h: int, nearest: bool) -> np.ndarray:
    """The order of TensorFlow's float32 arithmetic: along rows first, then between them."""
    # The centres of the target's pixels on the axes of the source.
    x = (np.arange(w, dtype=np.float32) + np.float32(0.5)) * np.float32(pixels.shape[1] / w)
    y = (np.arange(h, dtype=np.float32) + np.float32(0.5)) * np.float32(pixels.shape[0] / h)
    if nearest:
        return _lines(_lines(pixels, y, 0), x, 1)
    x, y, rows = x - np.float32(0.5), y - np.float32(0.5), []
    for nearer in (np.floor, np.ceil):
        row = _lines(pixels, nearer(y), 0).astype(np.float32)
        left, right = _lines(row, np.floor(x), 1), _lines(row, np.ceil(x), 1)
        rows.append(left + (right - left) * (x - np.floor(x))[:, None])
    top, bottom = rows
    result: np.ndarray = top + (bottom - top) * (y - np.floor(y))[:, None, None]
    return result


def _lines(pixels: np.ndarray, at: np.ndarray, axis: int) -> np.ndarray:
    """Takes the rows or columns at whole positions, beyond an edge those at the edge."""
    return pixels.take(at.astype(np.intp), axis, mode="clip")


def _to_integer(values: np.ndarray, dtype: str, add: int = 0) -> np.ndarray:
    """Rounds half away from zero, adds, and clips to the range of `dtype`."""
    # floor(|x| + 0.5) would be wrong for the largest float below 0.5. The limit is for infinity.
    size = np.minimum(np.abs(values), 2.0**53)
    whole = np.floor(size)
    rounded = np.copysign(whole + (size - whole >= 0.5), values) + add
    limits = np.iinfo(dtype)
    clipped: np.ndarray = np.clip(rounded, limits.min, limits.max).astype(dtype)
    return clipped


def _check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PreprocessError(f"{key} {value!r} is not known; expected {', '.join(choices)}")


# ---- preprocessing: end ----


def preprocess(image: ImageSource, input_spec: Mapping[str, Any]) -> np.ndarray:
    """Turns an image into a sample of an entry of `inputs`: its shape without the batch axis."""
    name, image_spec, declared = input_spec["name"], input_spec.get("image"), input_spec["shape"]
    if image_spec is None:
        hint = "Give a .npy array, or build the bundle with --preprocess."
        raise PreprocessError(f"input {name!r} declares no preprocessing of images", hint=hint)
    tensor = normalise(prepare_pixels(image, image_spec), image_spec, input_spec["dtype"])
    try:
        # A free dimension (None) takes the size that is left over.
        return tensor.reshape([-1 if size is None else size for size in declared[1:]])
    except ValueError:
        what = f"pixels {list(tensor.shape)} do not fit the shape {declared}"
        raise PreprocessError(f"input {name!r}: {what}") from None


def load_image(source: ImageSource) -> np.ndarray:
    """Reads an image, or the first frame of an animation: steps 1 to 3.

    Returns:
        uint8 pixels `[h, w, 1]` (gray) or `[h, w, 3]` (RGB).

    Raises:
        PreprocessError: The image cannot be read, or is larger than Pillow's limit.
    """
    return _pixels(_open(source))


def to_channels(pixels: np.ndarray, channels: str) -> np.ndarray:
    """Converts uint8 pixels `[h, w, 1|3]` to `gray` (as Pillow's `L`), `rgb` or `bgr`: step 4."""
    _check_choice("channels", channels, CHANNELS)
    converted = _pixels(_open(pixels).convert("L" if channels == "gray" else "RGB"))
    return converted[:, :, ::-1] if channels == "bgr" else converted


def resize(pixels: np.ndarray, w: int, h: int, method: str) -> np.ndarray:
    """Resizes uint8 pixels `[.., .., 1|3]` to `[h, w, 1|3]`.

    `pillow:*` is `PIL.Image.resize` on 8 bits, antialiased; `tf:*` is `tf.image.resize`:
    half-pixel centres, no antialias, and float32 pixels for `tf:bilinear`.
    """
    return _resize(_open(pixels), w, h, method)
