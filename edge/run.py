#!/usr/bin/env python3
# /// script
# requires-python = ">=3.9"
# dependencies = ["ai-edge-litert>=2.0.3", "numpy", "pillow>=9.1"]
# ///
"""Runs the TFLite files of a bundle on this machine, and checks that they compute what they should.

    python run.py info|verify|predict|watch|bench|serve|run BUNDLE|FILE.tflite ...

BUNDLE is a folder NAME/VERSION, or NAME for its newest version; a lone .tflite file holds a card.
Needs NumPy, one interpreter (ai-edge-litert, tflite-runtime or tensorflow), Pillow for images.
Exit codes: 0 ok, 1 failure, 2 usage, 3 a sample outside its tolerance, 4 something is missing.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Union

try:
    import numpy as np
except ImportError as error:
    print(f"error: {error}\n  python -m pip install numpy", file=sys.stderr)
    raise SystemExit(4) from None

Args = argparse.Namespace
Facts = Mapping[str, Any]
# What it is called, and the sample: a file, a picture, an array or JSON.
Sample = tuple[str, Any]
FAILED, USAGE, OUTSIDE, LACKS = 1, 2, 3, 4
# The bytes of a frame or a request.
LARGEST = 1 << 25


class RunnerError(Exception):
    """Something that the user can act on: what and why, and as `hint` what to do."""

    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.hint, self.exit_code = hint, exit_code


def note(text: str) -> None:
    """Tells the user something on standard error, where it cannot mix with answers."""
    print(text, file=sys.stderr, flush=True)


def tell(facts: Facts) -> None:
    """Prints one JSON document as a line."""
    print(json.dumps(facts, ensure_ascii=False), flush=True)


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

# One sample cannot be used; the others go on.
SampleError = PreprocessError

# ==== Files: a bundle with its manifest, or a lone .tflite file with its card ====

SCHEMA = 1
CARD_MARK = rb"PACKAGER_CARD\0"
# What `bench --save` keeps. Files in report/ are not hashed.
CHOICE = "report/edge-choice.json"


@dataclass(frozen=True)
class Bundle:
    """A folder, its manifest (of a lone file: the card), and the TFLite entries in that."""

    root: Path
    facts: Facts
    artifacts: Sequence[Facts]

    def file(self, name: str) -> Path:
        """Returns the path of one of its files; a name that leads out of the bundle is refused."""
        path = self.root / name
        if Path(name).is_absolute() or self.root.resolve() not in path.resolve().parents:
            raise RunnerError(f"{self.root}: the path {name!r} leads out of the bundle")
        return path

    def artifact(self, wanted: str | None = None) -> Facts:
        """Returns the wanted artifact; else int8 if it passed its gate, float32, or the first."""
        by_id = {artifact["id"]: artifact for artifact in self.artifacts}
        passed = by_id.get("tflite/int8", {}).get("gate", {}).get("status") == "passed"
        preferred = [wanted] if wanted else ["tflite/int8"] * passed + ["tflite/float32", *by_id]
        for name in preferred:
            if name in by_id:
                return by_id[name]
        hint = f"This bundle has: {', '.join(by_id) or 'none'}."
        raise RunnerError(f"{self.root}: no TFLite file {wanted or ''}", hint, USAGE)

    def identity(self) -> dict[str, Any]:
        """Names the bundle, with the hash of what describes it."""
        manifest = self.root / "manifest.json"
        described = manifest if manifest.is_file() else self.file(self.artifacts[0]["path"])
        facts = {key: self.facts.get(key) for key in ("name", "version")}
        return {**facts, "manifest_sha256": sha256(described)}


def open_target(name: str, key: str | None = None) -> Bundle:
    """Opens a bundle (NAME/VERSION, or NAME for the newest version) or a .tflite file.

    With a key, only a bundle that its owner has signed.
    """
    path = Path(name)
    if path.is_file():
        real = path.resolve()
        if (real.parent.parent / "manifest.json").is_file():
            bundle = open_target(str(real.parent.parent), key)
            entries = [a for a in bundle.artifacts if (bundle.root / a["path"]).resolve() == real]
            if entries:
                return Bundle(bundle.root, bundle.facts, entries)
        if key:
            raise RunnerError(f"{path} is no file of a signed bundle, which --key asks for")
        card = read_card(path)
        entry = {"id": path.name, "path": real.name, "runtime": card.get("runtime", {})}
        return Bundle(real.parent, card, [entry])
    if not path.is_dir():
        raise RunnerError(f"{name}: no such bundle or file", exit_code=USAGE)
    versions = [p.parent for p in path.glob("*/manifest.json") if p.parent.name.isdecimal()]
    newest = max(versions, key=lambda version: int(version.name), default=None)
    root = path if (path / "manifest.json").is_file() else newest
    if root is None:
        hint = "Give NAME/VERSION, NAME, or a .tflite file."
        raise RunnerError(f"{path}: no manifest.json here or in a number's folder", hint, USAGE)
    content = (root / "manifest.json").read_bytes()
    if key:
        check_signature(root, content, key)
    manifest = read_json(root / "manifest.json", content)
    tflite = [a for a in manifest["artifacts"] if a["runtime"]["kind"] == "tflite"]
    return Bundle(root, manifest, tflite)


def check_signature(root: Path, manifest: bytes, key: str) -> None:
    """Refuses a manifest that the owner of a public key (PEM, Ed25519) has not signed."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise RunnerError("--key needs a package", "pip install cryptography", LACKS) from None
    try:
        signature = base64.b64decode((root / "manifest.sig").read_bytes().strip(), validate=True)
        public: Any = load_pem_public_key(Path(key).read_bytes())
        public.verify(signature, manifest)
    except (OSError, ValueError, TypeError, AttributeError, InvalidSignature) as error:
        what = f"{root}: manifest.json has no signature by the owner of {key} ({error!r})"
        raise RunnerError(what, "Take the bundle from where it was signed.") from None


def read_json(path: Path, text: bytes | None = None) -> dict[str, Any]:
    """Reads manifest.json, golden/samples.json or a card; refuses one for a later program."""
    try:
        facts = json.loads(path.read_bytes() if text is None else text)
    except (OSError, ValueError) as error:
        raise RunnerError(f"{path}: cannot be read: {error}", "Copy the bundle again.") from None
    schema = facts.get("schema") if isinstance(facts, dict) else None
    if not isinstance(schema, int) or schema > SCHEMA:
        what = f"{path}: expected schema {SCHEMA}, received {schema!r}"
        raise RunnerError(what, "Use the edge/run.py of the bundle itself.")
    return dict(facts)


def read_card(path: Path) -> dict[str, Any]:
    """Returns the card embedded in a .tflite file, or {} when it has none."""
    content = path.read_bytes()
    if content[4:8] != b"TFL3":
        raise RunnerError(f"{path}: not a TFLite file", exit_code=USAGE)
    # The mark is also the name of the metadata buffer; a length and the card follow the other.
    found = re.search(CARD_MARK + rb"(.{4})(?=\{)", content, re.DOTALL)
    if found is None:
        return {}
    length = int.from_bytes(found[1], "little")
    return read_json(path, content[found.end() : found.end() + length])


def load_arrays(path: Path) -> Any:
    """Returns the array of a .npy file, memory-mapped, or the named arrays of a .npz file."""
    try:
        if path.suffix.lower() != ".npz":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False).items())
    # NumPy raises many classes for a damaged file, and all of them mean the same.
    except Exception as error:
        raise SampleError(f"{path}: cannot be read as NumPy data: {error}") from None


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, read in parts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all."""
    if path.exists() and not path.is_file():
        # A pipe or a device, such as /dev/stdout, must not be replaced by a file.
        path.write_bytes(content)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# ==== The interpreter: which package runs the file, with which delegate ====

# In order of preference: the package and the module that holds its Interpreter.
RUNTIMES = {
    "ai-edge-litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
    "tensorflow": "tensorflow.lite.python.interpreter",
}
# The last versions that were compiled against NumPy 1: beside NumPy 2 their import crashes.
LAST_FOR_NUMPY_1 = {"ai-edge-litert": "1.0.1", "tflite-runtime": "2.14.0"}
# auto is XNNPACK where the package has it. The reference kernels give the same bits everywhere.
KERNELS = {"auto": "AUTO", "plain": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}
EDGE_TPU = {"Darwin": "libedgetpu.1.dylib", "Windows": "edgetpu.dll"}
EDGE_TPU_HINT = "Run install.sh --edgetpu, or use --fallback-cpu."


def choose_runtime(artifact: Facts, forced: str | None) -> dict[str, str]:
    """Returns name and version of the first installed package that may run the artifact."""
    # Other packages may load the file and compute something else. A lone file's card has the list.
    allowed = artifact["runtime"].get("min_version") or dict.fromkeys(RUNTIMES, "")
    reasons: list[str] = []
    for package in [forced] if forced else RUNTIMES:
        version = installed_version(package)
        reason = why_not(package, version, allowed)
        if version is not None and not reason:
            for passed_over in reasons:
                note(f"note: {passed_over}; using {package} {version}")
            return {"name": package, "version": version}
        reasons += [reason] if forced or version is not None else []
    what = "; ".join(reasons) or f"none of {', '.join(RUNTIMES)} is installed"
    hint = "Choose another artifact with --artifact."
    # There is no 32-bit build of ai-edge-litert.
    order = [forced, "tflite-runtime" if sys.maxsize < 2**32 else None, *RUNTIMES]
    name = next((package for package in order if package in allowed), None)
    if name:
        wanted = f"{name}>={allowed[name]}" if allowed[name] else name
        numpy = ' "numpy<2"' if name == "tflite-runtime" else ""
        hint = f'python -m pip install "{wanted}"{numpy}'
    raise RunnerError(f"{artifact['id']}: {what}", hint, LACKS)


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, "" if it does not tell, None if missing."""
    module = RUNTIMES[package].split(".")[0]
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # A build under another name, such as tensorflow-cpu.
        return str(getattr(importlib.import_module(module), "__version__", ""))


def why_not(package: str, version: str | None, allowed: Mapping[str, str]) -> str:
    """Returns why this package may not run a file, or an empty text if it may."""
    if version is None:
        return f"{package} is not installed"
    if package not in allowed:
        return f"{package} {version} was not seen to give right numbers with this file"
    if release(version) < release(allowed[package]):
        return f"{package} {version or '(unknown version)'} is older than {allowed[package]}"
    numpy_1 = release(version) <= release(LAST_FOR_NUMPY_1.get(package, "0"))
    if numpy_1 and release(np.__version__) >= (2,):
        return f"{package} {version} needs numpy<2, but NumPy {np.__version__} is installed"
    return ""


def release(version: str) -> tuple[int, ...]:
    """Returns "2.20.0.dev1" as (2, 20, 0), for comparison."""
    return tuple(int(part) for part in re.split(r"[^\d.]", version)[0].split(".") if part)


def wanted_delegate(path: Path, args: Args) -> tuple[str, dict[str, str]] | None:
    """Returns library and options of --delegate, or of the Edge TPU for a file made for it."""
    if args.delegate:
        library, *options = re.split(r":(?=\w+=)", args.delegate)
        return library, dict(option.split("=", 1) for option in options)
    if not path.name.endswith("_edgetpu.tflite"):
        return None
    device = {} if args.edgetpu in (None, "any") else {"device": args.edgetpu}
    return EDGE_TPU.get(platform.system(), "libedgetpu.so.1"), device


def load_delegate(module: Any, library: str, options: Facts) -> Any:
    """Loads a delegate; without its library or its device the error says so."""
    try:
        # Where there is no library, load_delegate() also prints a traceback.
        ctypes.CDLL(library)
        return module.load_delegate(library, options)
    except (OSError, ValueError) as error:
        what = f"delegate {library} {dict(options) or ''} cannot be used: {error}".strip()
        hint = EDGE_TPU_HINT if "edgetpu" in library else "Check the path and the options."
        raise RunnerError(what, hint, LACKS) from None


def load_interpreter(runtime: Facts, path: Path, args: Args) -> Any:
    """Returns the package's Interpreter for a file, with its tensors allocated."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    what = f"{runtime['name']} {runtime['version']}"
    try:
        module = importlib.import_module(RUNTIMES[runtime["name"]])
    except ImportError as error:
        raise RunnerError(f"{what} cannot be imported: {error}", exit_code=LACKS) from error
    options = {"model_path": str(path), "num_threads": args.threads or 1}
    delegate = wanted_delegate(path, args)
    if delegate:
        options["experimental_delegates"] = [load_delegate(module, *delegate)]
    for kernels in (args.kernels, "plain"):
        resolver = getattr(module.OpResolverType, KERNELS[kernels])
        try:
            interpreter = module.Interpreter(**options, experimental_op_resolver_type=resolver)
            interpreter.allocate_tensors()
            return interpreter
        except (ValueError, RuntimeError) as error:
            reason = str(error)
        # XNNPACK refuses a few files that the plain kernels can run.
        if "XNNPACK" not in reason:
            break
        note(f"note: {path}: XNNPACK cannot run it, trying the plain kernels of {what}")
    if "edgetpu-custom-op" in reason:
        raise RunnerError(f"{path}: needs an Edge TPU's delegate", EDGE_TPU_HINT, LACKS)
    raise RunnerError(f"{path}: {what} cannot load it: {reason}", "Copy the file again.")


# ==== The model: named tensors in, named tensors out ====


class Tensor:
    """An input or output of the file; `scales` is empty when it is not quantized."""

    def __init__(self, name: str, detail: Facts) -> None:
        quantization = detail["quantization_parameters"]
        self.name, self.index, self.dtype = name, int(detail["index"]), np.dtype(detail["dtype"])
        self.shape = tuple(int(size) for size in detail["shape"])
        self.scales, self.zeros = quantization["scales"], quantization["zero_points"]
        self.axis = int(quantization["quantized_dimension"])

    def quantized(self, x: np.ndarray) -> np.ndarray:
        """Returns float values as the tensor stores them."""
        if len(self.scales):
            return quantize(x.astype(np.float32), self.scales[0], self.zeros[0], str(self.dtype))
        return x.astype(self.dtype)

    def encode(self, value: Any) -> np.ndarray:
        """Returns one sample, an array or lists of numbers, in the tensor's shape and dtype."""
        try:
            array = np.asarray(value)
            ids = {array.dtype.kind, self.dtype.kind} <= {"i", "u"} and not len(self.scales)
            if not isinstance(value, np.ndarray) and not ids:
                array = array.astype(np.float32)
        except (ValueError, TypeError, OverflowError) as error:
            raise SampleError(f"input {self.name!r} is no array of numbers: {error}") from None
        # Numbers such as ids may be stored wider than the tensor, quantized values not.
        good = array.dtype == self.dtype or (ids and (array.astype(self.dtype) == array).all())
        floats = array.dtype.kind == "f" and (self.dtype.kind == "f" or len(self.scales))
        if not (good or floats) or array.shape not in (self.shape, self.shape[1:]):
            want = f"input {self.name!r}: expected {self.dtype} {list(self.shape[1:])}"
            raise SampleError(f"{want}, received {array.dtype} {list(array.shape)}")
        array = self.quantized(array) if floats else array.astype(self.dtype)
        return array.reshape(self.shape)

    def decode(self, value: np.ndarray) -> np.ndarray:
        """Returns the float32 values of one sample, without the batch axis."""
        if len(self.scales):
            value = dequantize(value, self.scales, self.zeros, self.axis)
        value = value.astype(np.float32)
        return value[0] if value.ndim and len(value) == 1 else value


class Model:
    """A TFLite file that takes and gives one sample at a time, by the manifest's names."""

    def __init__(self, bundle: Bundle, artifact: Facts, args: Args) -> None:
        started = time.perf_counter()
        self.facts, self.stateful = bundle.facts, args.stateful
        self.runtime = choose_runtime(artifact, args.runtime)
        path = bundle.file(artifact["path"])
        size = path.stat().st_size if path.is_file() else 0
        listed = bundle.facts.get("files", {}).get(artifact["path"], {}).get("bytes", size)
        # A truncated file can crash an interpreter.
        if not size or size != listed:
            raise RunnerError(f"{path}: {size} bytes, expected {listed}", "Copy it again.")
        # The signature is the manifest's, which has the hash of the file.
        if args.key and sha256(path) != bundle.facts["files"][artifact["path"]]["sha256"]:
            raise RunnerError(f"{path} is not the file that was signed", "Copy it again.")
        self.interpreter = load_interpreter(self.runtime, path, args)
        self.specs = {spec["name"]: spec for spec in self.facts.get("inputs", [])}
        outputs = [spec["name"] for spec in self.facts.get("outputs", [])]
        self.inputs, self.outputs = bind(self.interpreter, (list(self.specs), outputs), path)
        # Each of the 256 pixel values has one result, which a table holds.
        self.tables: dict[str, np.ndarray] = {}
        # The seconds that loading took, and when the last invoke() began and ended.
        self.load_s, self.invoked = time.perf_counter() - started, (0.0, 0.0)

    def read(self, value: Any, files: bool = True) -> dict[str, Any]:
        """Takes a file, a picture, an array, JSON, or one of these for each input by its name."""
        if isinstance(value, Path) and value.suffix.lower() == ".npz":
            value = load_arrays(value)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise SampleError(f"not JSON: {error}") from None
        if not isinstance(value, dict) and len(self.inputs) > 1:
            names = ", ".join(self.inputs)
            raise SampleError(f"the model takes {names}", hint="Give a .npz file with all inputs.")
        named = value if isinstance(value, dict) else dict.fromkeys(self.inputs, value)
        # In JSON, a text is the name of a file.
        paths = {k: Path(v) for k, v in named.items() if files and isinstance(v, str)}
        named = {**named, **paths}
        return {name: self.tensor(name, named[name]) for name in self.inputs if name in named}

    def tensor(self, name: str, value: Any) -> Any:
        """Preprocesses image files and uint8 arrays (pixels); others are the model's input."""
        spec, tensor = self.specs.get(name, {}), self.inputs[name]
        image = spec.get("image")
        if isinstance(value, Path) and value.suffix.lower() == ".npy":
            value = load_arrays(value)
        pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8 and image is not None
        if not pixels and not isinstance(value, (Path, io.BytesIO)):
            return value
        if image is None:
            raise SampleError(f"input {name!r} takes no image", hint="Give a .npy array.")
        if Image is None:
            raise RunnerError("images need Pillow", "python -m pip install pillow", LACKS)
        if name not in self.tables:
            self.tables[name] = tensor.quantized(pixel_tables(image, spec["dtype"]))
        prepared = prepare_pixels(value, image)
        if prepared.dtype == np.uint8:
            values = apply_tables(prepared, self.tables[name])
        else:
            values = tensor.quantized(normalise(prepared, image, spec["dtype"]))
        # The channels may have no axis of their own. What does not fit is refused by encode().
        fits = values.size == np.prod(tensor.shape)
        return values.reshape(tensor.shape) if fits else values

    def __call__(self, sample: Facts) -> dict[str, np.ndarray]:
        """Runs one sample: input name -> array or lists; returns output name -> float32 array."""
        # A fused LSTM keeps its state between calls: right for the blocks of one stream only.
        if not self.stateful:
            self.interpreter.reset_all_variables()
        for name, tensor in self.inputs.items():
            if name not in sample:
                raise SampleError(f"input {name!r} is missing; received {', '.join(sample)}")
            self.interpreter.set_tensor(tensor.index, tensor.encode(sample[name]))
        started = time.perf_counter()
        try:
            self.interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise RunnerError(f"the interpreter cannot run this file: {error}") from None
        self.invoked = (started, time.perf_counter())
        get = self.interpreter.get_tensor
        return {name: out.decode(get(out.index)) for name, out in self.outputs.items()}


def bind(interpreter: Any, wanted: Iterable[list[str]], path: Path) -> list[dict[str, Tensor]]:
    """Maps the manifest's input and output names to tensors by name, never by position."""
    signatures = interpreter.get_signature_list()
    # A signature's runner refers to the interpreter's memory and would block every later
    # invoke(), so it must not outlive this function.
    owner = interpreter.get_signature_runner(next(iter(signatures))) if signatures else interpreter
    found = []
    for names, details in zip(wanted, (owner.get_input_details(), owner.get_output_details())):
        named = details if signatures else {detail["name"]: detail for detail in details}
        if len(names) == len(named) == 1:
            named = dict.fromkeys(names, next(iter(named.values())))
        if names and set(names) != set(named):
            has = f"expected {', '.join(names)}, but the file has {', '.join(named)}"
            raise RunnerError(f"{path}: {has}")
        found.append({name: Tensor(name, named[name]) for name in names or named})
    return found


def choose(bundle: Bundle, args: Args) -> tuple[Facts, str]:
    """Picks the artifact by flags, by `bench --save` (its threads too), by gates; and says why."""
    asked = [bundle.artifact(args.artifact)] if args.artifact else []
    if args.edgetpu:
        for entry in asked or bundle.artifacts:
            if entry["path"].endswith("_edgetpu.tflite"):
                return entry, "asked for"
        if not args.fallback_cpu:
            raise RunnerError(f"{bundle.root}: no file made for the Edge TPU", exit_code=LACKS)
        note("note: no file made for the Edge TPU; using the CPU")
    if asked:
        return asked[0], "asked for"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        saved = json.loads((bundle.root / CHOICE).read_bytes())
        if (saved["bundle"], saved["machine"]) == (bundle.identity(), machine()):
            args.threads = args.threads or int(saved["threads"])
            return bundle.artifact(saved["artifact"]), "saved by bench"
    return bundle.artifact(), "int8 if it passed its gate, else float32"


def open_model(args: Args) -> Model:
    """Opens the chosen artifact; with --fallback-cpu its plain file if the Edge TPU is missing."""
    bundle = open_target(args.target, args.key)
    artifact, _ = choose(bundle, args)
    try:
        return Model(bundle, artifact, args)
    except RunnerError as error:
        if error.exit_code != LACKS or not args.fallback_cpu:
            raise
        note(f"note: {error}; using the CPU")
    args.delegate = None
    return Model(bundle, bundle.artifact(artifact["id"].replace("_edgetpu", "")), args)


# ==== Answers: from numbers to labels ====


def answer(outputs: Mapping[str, np.ndarray], facts: Facts, top: int) -> dict[str, Any]:
    """Returns what the outputs of one sample mean, by the task; labels belong to the first."""
    for name, values in outputs.items():
        if not np.isfinite(values).all():
            raise SampleError(f"output {name!r} holds NaN or infinity")
    task, labels = facts.get("task", "none"), facts.get("labels", [])
    if task not in ("classification", "binary", "multilabel"):
        return {"outputs": {name: values.tolist() for name, values in outputs.items()}}
    spec = facts["outputs"][0]
    scores: np.ndarray = outputs[spec["name"]].ravel().astype(np.float64)
    if spec["activation"] == "logits" and task == "classification":
        powers = np.exp(scores - scores.max())
        scores = powers / powers.sum()
    elif spec["activation"] == "logits":
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, and tanh cannot overflow.
        scores = (1.0 + np.tanh(scores / 2)) / 2
    names = {**{i: str(i) for i in range(max(2, scores.size))}, **dict(enumerate(labels))}
    threshold = 0.5 if facts.get("threshold") is None else facts["threshold"]
    if task == "binary":
        number = int(scores[0] >= threshold)
        names = {0: f"not {labels[0]}", 1: labels[0]} if len(labels) == 1 else names
        return {"class": number, "label": names[number], "score": float(scores[0])}
    best = np.argsort(-scores, kind="stable")[:top].tolist()
    ranked = [{"class": i, "label": names[i], "score": float(scores[i])} for i in best]
    if task == "classification":
        return {**ranked[0], "top": ranked}
    present = np.flatnonzero(scores >= threshold).tolist()
    return {"labels": [names[i] for i in present], "top": ranked}


def sentence(result: Facts) -> str:
    """Returns an answer as one line for people."""
    if "outputs" in result:
        values = {name: np.ravel(value) for name, value in result["outputs"].items()}
        return ", ".join(f"{name} {np.array2string(v, threshold=8)}" for name, v in values.items())
    if "labels" in result:
        return ", ".join(result["labels"]) or "none"
    return ", ".join(f"{r['label']} {r['score']:.4f}" for r in result.get("top", [result]))


def answers(
    model: Model, samples: Iterable[Sample], top: int
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yields each sample with its answer; what is wrong with one is reported and is its answer."""
    for name, value in samples:
        try:
            result = answer(model(model.read(value)), model.facts, top)
        except SampleError as error:
            message = error.message if name in error.message else f"{name}: {error.message}"
            note(f"error: {message} {error.hint}".rstrip())
            result = {"error": message}
        yield name, value, result


# ==== info, predict, run ====

SUFFIXES = re.compile(r"(?i)\.(avif|bmp|gif|jpe?g|npy|npz|p[gpn]m|png|tiff?|webp)")


def command_info(args: Args) -> int:
    """Shows what a bundle or file holds and what would run it."""
    bundle = open_target(args.target, args.key)
    shown = ("name", "version", "task", "threshold", "labels", "inputs", "outputs")
    report = {key: bundle.facts[key] for key in shown if key in bundle.facts}
    chosen, why = choose(bundle, args)
    report.update(default=chosen["id"], why=why, threads=args.threads or 1, artifacts=[])
    for entry in bundle.artifacts:
        try:
            runtime = choose_runtime(entry, args.runtime)
        except RunnerError as error:
            runtime = {"problem": str(error), "hint": error.hint}
        path, gate = bundle.file(entry["path"]), entry.get("gate", {}).get("status")
        facts = {"id": entry["id"], "size_bytes": path.stat().st_size, "gate": gate}
        facts.update(delegate=wanted_delegate(path, args), runtime=runtime)
        report["artifacts"].append(facts)
    if not bundle.facts:
        note("no card in this file: its data and preprocessing are not known")
    print(json.dumps(report, ensure_ascii=False, indent=None if args.json else 1), flush=True)
    return 0


def command_predict(args: Args) -> int:
    """Prints one answer a line; a file that cannot be used is reported and the rest goes on."""
    exit_code = 0
    for name, _, result in answers(open_model(args), samples(args.files), args.top):
        exit_code = FAILED if "error" in result else exit_code
        if args.json:
            tell({"file": name, **result})
        elif "error" not in result:
            print(f"{name}: {sentence(result)}", flush=True)
    return exit_code


def samples(names: Iterable[str]) -> Iterator[Sample]:
    """Yields files and those in folders; for "-" the names and the JSON of stdin's lines."""
    for name in names:
        if name == "-":
            for number, line in enumerate(map(str.strip, sys.stdin), 1):
                if line[:1] in ("{", "["):
                    yield f"line {number}", line
                elif line.strip("-"):
                    yield from samples([line])
        elif Path(name).is_dir():
            files = sorted(f for f in Path(name).iterdir() if SUFFIXES.fullmatch(f.suffix))
            # An empty folder is a mistake; reading it as a file reports it.
            yield from ((str(file), file) for file in files or [Path(name)])
        else:
            yield name, Path(name)


def command_run(args: Args) -> int:
    """Runs N samples from DIR/<input>.npy and writes DIR/<output>.npy, one sample at a time."""
    model, folder, started = open_model(args), Path(args.outputs), time.perf_counter()
    unsafe = [name for name in (*model.inputs, *model.outputs) if re.search(r"[/\\]", name)]
    if unsafe:
        raise RunnerError(f"{unsafe[0]!r} is the name of a tensor and cannot be that of a file")
    arrays = {name: load_arrays(Path(args.inputs) / f"{name}.npy") for name in model.inputs}
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    count, *others = {*counts.values()}
    if count == 0 or others:
        raise RunnerError(f"{args.inputs}: expected the same N > 0 samples, received {counts}")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for i in range(count):
            for name, value in model({key: array[i] for key, array in arrays.items()}).items():
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
                    facts = {"descr": "<f4", "fortran_order": False, "shape": (count, *value.shape)}
                    np.lib.format.write_array_header_1_0(files[name], facts)
                # Row by row, as N may be large. A memory map would kill us on a full disk.
                files[name].write(value.astype("<f4").tobytes())
    tell({"count": count, "seconds": time.perf_counter() - started, "runtime": model.runtime})
    return 0


# ==== watch ====

POLL_S = 0.2


def command_watch(args: Args) -> int:
    """Answers every new file of a folder, or every frame of a camera, until it is stopped."""
    if bool(args.folder) == bool(args.camera):
        raise RunnerError("give a folder or --camera", exit_code=USAGE)
    model, exit_code, due = open_model(args), 0, time.monotonic() + 1 / args.fps
    source = camera_pictures(args.camera) if args.camera else new_files(Path(args.folder))
    named = ((str(p) if args.folder else f"frame {n}", p) for n, p in enumerate(source))
    with contextlib.suppress(KeyboardInterrupt):
        for name, value, result in answers(model, named, args.top):
            if result.get("top", [result])[0].get("score", 1.0) >= args.threshold:
                # Kept before it is told: who reads the line finds the picture.
                try:
                    if args.save_hits and "error" not in result:
                        save_hit(Path(args.save_hits), value)
                except OSError as error:
                    note(f"error: {name} cannot be kept: {error}")
                    exit_code = FAILED
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                tell({"time": now, "file": name, **result})
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + 1 / args.fps
    return exit_code


def save_hit(folder: Path, value: Any) -> None:
    """Keeps a picture: a file under its name, a frame under the time."""
    if isinstance(value, Path):
        return write_whole(folder / value.name, value.read_bytes())
    suffix, content = "jpg", value
    if isinstance(value, np.ndarray):
        suffix, content = "png", io.BytesIO()
        Image.fromarray(value).save(content, "PNG")
    return write_whole(folder / f"{time.time_ns()}.{suffix}", content.getvalue())


def new_files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder once they are complete: unchanged between two looks."""
    looks: dict[Path, tuple[Any, int]] = {}
    while True:
        # Only files that are still there are remembered, so that memory does not grow.
        before, looks = looks, {}
        for path in sorted(p for p in folder.iterdir() if SUFFIXES.fullmatch(p.suffix)):
            with contextlib.suppress(FileNotFoundError):
                stamp = (path.stat().st_mtime_ns, path.stat().st_size)
                old, times = before.get(path, (None, 0))
                looks[path] = (stamp, times + 1 if stamp == old else 0)
        yield from [path for path, (_, times) in looks.items() if times == 1]
        time.sleep(POLL_S)


def camera_pictures(source: str) -> Iterator[Any]:
    """Yields RGB pictures of picamera2 or of OpenCV's camera, or JPEGs of a file or pipe."""
    if source == "auto":
        source = "picamera2" if importlib.util.find_spec("picamera2") else "0"
    if not re.fullmatch(r"picamera2|\d+|/dev/video\d+", source):
        yield from jpeg_pictures(Path(source))
        return
    try:
        if source == "picamera2":
            camera = importlib.import_module("picamera2").Picamera2()
            # picamera2 names formats from the last byte on: these arrays are R, G, B.
            camera.configure(camera.create_video_configuration({"format": "BGR888"}))
            camera.start()
        else:
            opencv = importlib.import_module("cv2")
            camera = opencv.VideoCapture(int(source) if source.isdecimal() else source)
    except (ImportError, IndexError, RuntimeError) as error:
        hint = "sudo apt install python3-picamera2 python3-opencv"
        raise RunnerError(f"camera {source} cannot be used: {error}", hint, LACKS) from None
    try:
        while source == "picamera2":
            yield camera.capture_array()
        while (picture := camera.read()[1]) is not None:
            yield np.ascontiguousarray(picture[:, :, ::-1])
    finally:
        camera.close() if source == "picamera2" else camera.release()
    raise RunnerError(f"camera {source} gives no pictures", "Check its cable and /dev/video*.")


def jpeg_pictures(path: Path) -> Iterator[io.BytesIO]:
    """Yields the JPEG pictures that follow each other in a file or pipe (MJPEG)."""
    data = b""
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 16):
            data += block
            while end := jpeg_end(data):
                yield io.BytesIO(data[data.find(b"\xff\xd8") : end])
                data = data[end:]
            if len(data) > LARGEST:
                raise RunnerError(f"{path}: no JPEG picture in {len(data)} bytes")
    if b"\xff\xd8" in data or not path.is_file():
        raise RunnerError(f"{path} gives no more pictures", "Check the camera.")


def jpeg_end(data: bytes) -> int:
    """Returns where the first JPEG picture in `data` ends, or 0 if it is not there whole."""
    start = data.find(b"\xff\xd8")
    at = start + 2
    # The parts before the pixels tell their lengths; one may hold a small JPEG of its own.
    while start >= 0 and data[at : at + 2] not in (b"\xff\xda", b""):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    end = data.find(b"\xff\xd9", at) if start >= 0 else -1
    return end + 2 if end >= 0 else 0


# ==== verify and bench: the golden samples on this machine ====

TIMES = ("preprocess_ms", "latency_ms", "postprocess_ms")


def command_verify(args: Args) -> int:
    """Checks the hashes, then every TFLite artifact on the golden samples, on this machine."""
    bundle = open_target(args.target, args.key)
    files = check_files(bundle)
    if not args.runs:
        note(f"files: {files['checked']} checked, {len(files['problems'])} problems")
    place = (bundle.facts.get("golden") or {}).get("path")
    golden = read_json(bundle.file(place)) if place else {}
    record: dict[str, Any] = {}
    entries, codes = [], [FAILED] if files["problems"] else []
    for artifact in [bundle.artifact(args.artifact)] if args.artifact else bundle.artifacts:
        entry = {"id": artifact["id"], "status": "failed", "samples": 0, "reason": ""}
        entries.append(entry)
        values = record[entry["id"]] = {}
        try:
            if artifact["path"] in [problem["path"] for problem in files["problems"]]:
                raise RunnerError("the file differs from its hash and was not run")
            if not golden.get("samples"):
                raise RunnerError("the bundle has no golden samples", exit_code=LACKS)
            examine(bundle, Model(bundle, artifact, args), golden, args, entry, values)
        except (RunnerError, SampleError) as error:
            codes.append(getattr(error, "exit_code", FAILED))
            entry["status"] = "skipped" if codes[-1] == LACKS else "failed"
            entry["reason"] = f"{error} ({error.hint})" if error.hint else str(error)
        show(entry, args)
    if args.record:
        write_whole(Path(args.record), json.dumps(record).encode())
    report = report_on(bundle, files, entries)
    if args.json or not sys.stdout.isatty():
        tell(report)
    # What is missing for some artifacts only leaves these skipped.
    order = (FAILED, OUTSIDE) if report["runtime"] else (FAILED, OUTSIDE, LACKS)
    return next((code for code in order if code in codes), 0)


def check_files(bundle: Bundle) -> dict[str, Any]:
    """Compares every file that the manifest lists with its SHA-256."""
    problems, listed = [], bundle.facts.get("files", {})
    for name in sorted(listed):
        try:
            problem = "" if sha256(bundle.file(name)) == listed[name]["sha256"] else "changed"
        except FileNotFoundError:
            problem = "missing"
        except (OSError, RunnerError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        if problem:
            problems.append({"path": name, "problem": problem})
            note(f"{problem}: {name}")
    return {"checked": len(listed), "problems": problems}


def examine(
    bundle: Bundle, model: Model, golden: Facts, args: Args, entry: dict[str, Any], values: Any
) -> None:
    """Compares the golden samples, times them (`args.runs` times more for bench), fills `entry`."""
    tolerances = golden.get("tolerances", {}).get(entry["id"])
    entry.update(runtime=model.runtime, threads=args.threads or 1, tolerance=tolerances)
    problems, times, every = [], [], golden["samples"]
    for number in range(len(every) + args.runs):
        sample = every[number % len(every)]
        started = time.perf_counter()
        outputs = model(model.read({k: bundle.file(v) for k, v in sample["inputs"].items()}))
        if number < len(every):
            values[sample["id"]] = {k: v.ravel().tolist() for k, v in outputs.items()}
            problems += compare(bundle, sample, outputs, entry)
        ended = time.perf_counter()
        with contextlib.suppress(SampleError):
            answer(outputs, model.facts, 3)
        before, after = model.invoked
        times.append((before - started, after - before, time.perf_counter() - ended))
    # In a benchmark the first round is the warm-up.
    times = times[len(every) if args.runs else 0 :]
    for name, column in zip(TIMES, zip(*times)):
        p50, p90, p99 = (np.percentile(column, [50, 90, 99]) * 1000).tolist()
        entry[name] = {"min": min(column) * 1000, "p50": p50, "p90": p90, "p99": p99}
    memory = re.search(r"VmHWM:\s*(\d+) kB", read_text("/proc/self/status"))
    entry["peak_memory_bytes"] = int(memory[1]) * 1024 if memory else None
    # Left at 0 when a sample cannot be run: that is no answer about the numbers.
    entry.update(load_ms=model.load_s * 1000, timed=len(times), samples=len(every))
    entry["status"] = "passed" if "max_abs_diff" in entry else "recorded"
    if problems:
        raise RunnerError(problems[0], exit_code=OUTSIDE)


def compare(bundle: Bundle, sample: Facts, outputs: Facts, entry: dict[str, Any]) -> list[str]:
    """Returns how a sample's outputs leave their tolerances; notes the largest difference."""
    problems, where = [], f"sample {sample['id']}: output"
    if not all(np.isfinite(output).all() for output in outputs.values()):
        return [f"{where} holds NaN or infinity"]
    for name, stored in sample.get("artifacts", {}).get(entry["id"], {}).items():
        if isinstance(stored, dict):
            stored = load_arrays(bundle.file(stored["npy"]))[stored["index"]]
        expected, output = np.asarray(stored, dtype=np.float64).ravel(), outputs[name].ravel()
        if expected.size != output.size:
            raise RunnerError(f"{where} {name} has {output.size} values, not {expected.size}")
        far, limit = float(np.abs(output - expected).max(initial=0)), entry["tolerance"][name]
        if far >= entry.get("max_abs_diff", 0.0):
            entry.update(max_abs_diff=far, worst_sample=sample["id"])
        if far > limit:
            problems.append(f"{where} {name} differs by {far:.3g}, allowed {limit:.3g}")
    return problems


def show(entry: Facts, args: Args) -> None:
    """Tells people how an artifact did, and for bench how fast it was."""
    worst = f"max diff {entry['max_abs_diff']:.3g}" if "max_abs_diff" in entry else ""
    note(f"{entry['id']:22} {entry['status']:9} {worst} {entry['reason']}".rstrip())
    if args.runs and entry["samples"]:
        memory = (entry["peak_memory_bytes"] or 0) / 1e6
        note(f"  load {entry['load_ms']:.1f} ms, peak memory {memory:.0f} MB")
        for name in TIMES:
            note(f"  {name:14} " + " ".join(f"{k} {v:.3f}" for k, v in entry[name].items()))


def report_on(bundle: Bundle, files: Facts, entries: list[Any]) -> dict[str, Any]:
    """Returns the document that `packager report --merge` reads; docs/edge.md describes it."""
    runtime = next((entry["runtime"] for entry in entries if entry["samples"]), None)
    report = {"schema": {"name": "packager.device", "version": 1}, "runner": "edge"}
    facts = {"runtime": runtime, "machine": machine(), "bundle": bundle.identity()}
    return {**report, **facts, "files": files, "artifacts": entries}


def machine() -> dict[str, Any]:
    """Describes this machine, for a report that is read elsewhere."""
    board = read_text("/proc/device-tree/model").strip("\0")
    cpu = re.search(r"model name\s*: (.*)", read_text("/proc/cpuinfo"))
    facts = {"system": platform.platform(), "machine": platform.machine(), "board": board}
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    return {**facts, "cpu": cpu[1] if cpu else "", "cpus": os.cpu_count(), **versions}


def read_text(name: str) -> str:
    """Returns what the kernel says in a file, or nothing where it has none."""
    return Path(name).read_text(errors="replace") if Path(name).is_file() else ""


def command_bench(args: Args) -> int:
    """Times each artifact and thread count in a process of its own; picks the fastest right one."""
    import subprocess

    bundle, entries, files = open_target(args.target, args.key), [], {"checked": 0, "problems": []}
    counts = [n for n in (1, 2, 4, 8) if n <= (os.cpu_count() or 1)]
    for name in [args.artifact] if args.artifact else [a["id"] for a in bundle.artifacts]:
        for threads in [args.threads] if args.threads else counts:
            # Memory is then one artifact's, and a crash ends one row.
            note(f"threads: {threads}")
            flags = ["--artifact", name, "--threads", str(threads), "--runs", str(args.runs or 100)]
            given = [flag for flag in args.given if flag != "--save"]
            command = [sys.executable, __file__, "verify", *given, *flags, "--json"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            entry = {"id": name, "status": "failed", "samples": 0}
            entry["reason"] = f"its process ended with {done.returncode}"
            with contextlib.suppress(ValueError):
                report = json.loads(done.stdout)
                (entry,), files = report["artifacts"], report["files"]
            entries.append({**entry, "threads": threads})
    report = report_on(bundle, files, entries)
    right = [entry for entry in entries if entry["status"] == "passed"]
    if right:
        best = min(right, key=lambda entry: entry["latency_ms"]["p50"])
        report["fastest"] = {"artifact": best["id"], "threads": best["threads"]}
        note(f"fastest: {best['id']}, threads: {best['threads']}")
        if args.save:
            kept = {**report["fastest"], **{key: report[key] for key in ("bundle", "machine")}}
            write_whole(bundle.root / CHOICE, json.dumps(kept).encode())
    if args.json:
        tell(report)
    return 0 if right and not files["problems"] else FAILED


# ==== serve ====


def command_serve(args: Args) -> int:
    """Answers on localhost: TensorFlow Serving's :predict, and pictures sent to /predict."""
    # Only here: the other commands start faster without it.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    model, lock = open_model(args), threading.Lock()
    path = f"/v1/models/{model.facts.get('name', 'model')}:predict"
    calls = {"/predict": answer_picture, path: answer_tensors}

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path not in calls:
                status, found = 404, {"error": f"{self.path} is not one of {', '.join(calls)}"}
            elif not length.isdecimal() or int(length) > LARGEST:
                status, found = 413, {"error": f"expected at most {LARGEST} bytes"}
            else:
                body = self.rfile.read(int(length))
                try:
                    with lock:
                        status, found = 200, calls[self.path](model, body, args.top)
                except (SampleError, RunnerError) as error:
                    status = 400 if isinstance(error, SampleError) else 500
                    found = {"error": str(error)}
            content = json.dumps(found, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", args.port), Handler) as server:
        note(" and ".join(f"http://127.0.0.1:{server.server_port}{path}" for path in calls))
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def answer_picture(model: Model, body: bytes, top: int) -> dict[str, Any]:
    """Returns the answer to an encoded picture."""
    facts = {"model": model.facts.get("name"), "version": model.facts.get("version")}
    return {**facts, **answer(model(model.read(io.BytesIO(body))), model.facts, top)}


def answer_tensors(model: Model, body: bytes, top: int) -> dict[str, Any]:
    """Answers {"instances": [a sample, ...]} or {"inputs": {name: [a value a sample, ...]}}."""
    try:
        request = json.loads(body)
        by_name = "inputs" in request
        rows = request["inputs"] if by_name else list(request["instances"])
        if by_name:
            columns = rows if isinstance(rows, dict) else dict.fromkeys(model.inputs, rows)
            if len({len(column) for column in columns.values()}) > 1:
                raise ValueError("the inputs differ in their number of samples")
            rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    except (ValueError, TypeError, KeyError) as error:
        raise SampleError(f"expected JSON with instances or inputs: {error}") from None
    found = [answer(model(model.read(row, files=False)), {}, top)["outputs"] for row in rows]
    if by_name:
        named = {name: [row[name] for row in found] for name in model.outputs}
        return {"outputs": named if len(named) > 1 else next(iter(named.values()))}
    return {"predictions": [next(iter(r.values())) if len(r) == 1 else r for r in found]}


# ==== The command line ====


def positive(text: str) -> int:
    """Reads a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a whole number from 1 on")
    return int(text)


FLAGS: dict[str, dict[str, Any]] = {
    "target": {"metavar": "BUNDLE|FILE"},
    "--artifact": {"metavar": "ID", "help": "for example tflite/int8"},
    "--runtime": {"choices": list(RUNTIMES), "help": "use this interpreter only"},
    "--threads": {"type": positive, "help": "default: 1, or what bench --save found"},
    "--kernels": {"choices": list(KERNELS), "default": "auto", "help": argparse.SUPPRESS},
    "--edgetpu": {"metavar": "any|usb:0|pci:0", "help": "use Coral's Edge TPU"},
    "--delegate": {"metavar": "LIBRARY[:KEY=VALUE]", "help": "use another delegate"},
    "--fallback-cpu": {"action": "store_true", "help": "without the Edge TPU, use the CPU"},
    "--stateful": {"action": "store_true", "help": "samples are the blocks of one stream"},
    "--key": {"metavar": "FILE", "help": "public key of who must have signed the bundle"},
    "--json": {"action": "store_true", "help": "answer in JSON"},
    "--debug": {"action": "store_true", "help": "show tracebacks"},
    "files": {"nargs": "+", "help": "image, .npy, .npz, folder, or - for standard input"},
    "--top": {"type": positive, "default": 3, "metavar": "K", "help": "classes to list (3)"},
    "--record": {"metavar": "FILE", "help": "write all values"},
    "--runs": {"type": positive, "default": 0, "help": "timed runs (verify 0, bench 100)"},
    "folder": {"nargs": "?", "help": "answer its new files"},
    "--camera": {"nargs": "?", "const": "auto", "help": "picamera2, 0 or FILE.mjpeg"},
    "--fps": {"type": positive, "default": 10, "help": "at most so many a second (10)"},
    "--threshold": {"type": float, "default": 0.0, "help": "tell only scores from here on"},
    "--save-hits": {"metavar": "DIR", "help": "keep the pictures that are told"},
    "--save": {"action": "store_true", "help": "use the fastest from now on"},
    "--port": {"type": int, "default": 8501, "help": "8501; 0 takes a free one"},
    "--inputs": {"metavar": "DIR", "required": True},
    "--outputs": {"metavar": "DIR", "required": True},
}
# Each command takes the flags up to --debug, and these.
COMMANDS: dict[Callable[[Args], int], str] = {
    command_info: "",
    command_predict: "files --top",
    command_verify: "--record --runs",
    command_watch: "folder --camera --fps --threshold --save-hits --top",
    command_bench: "--runs --save",
    command_serve: "--port --top",
    command_run: "--inputs --outputs",
}


def parse(arguments: Sequence[str]) -> Args:
    """Reads the command line; argparse leaves with exit code 2 when it is wrong."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__, formatter_class=style)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = [*FLAGS][: [*FLAGS].index("--debug") + 1]
    for function, own in COMMANDS.items():
        name = function.__name__[len("command_") :]
        command = commands.add_parser(name, help=function.__doc__, allow_abbrev=False)
        command.set_defaults(function=function, given=list(arguments[1:]))
        for flag in (*shared, *own.split()):
            command.add_argument(flag, **FLAGS[flag])
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and turns every error into a text and an exit code."""
    args = parse(sys.argv[1:] if arguments is None else arguments)
    # SIGINT, too: a shell starts what runs in its background with this signal ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return int(args.function(args))
    except (KeyboardInterrupt, BrokenPipeError) as error:
        return 130 if isinstance(error, KeyboardInterrupt) else FAILED
    except Exception as error:
        if args.debug:
            raise
        known = isinstance(error, (RunnerError, SampleError, OSError))
        kind = "the bundle lacks" if isinstance(error, KeyError) else type(error).__name__
        hint = getattr(error, "hint", "") if known else "Run with --debug for details."
        note(f"error: {'' if known else kind + ' '}{error}\n  {hint}".rstrip())
        return int(getattr(error, "exit_code", FAILED))


if __name__ == "__main__":
    status = main()
    if status:
        # All output has been flushed. Where it takes no more, Python's last flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(status)
