"""The preprocessing reference against Pillow, TensorFlow, keras.applications and the contract."""

import io
import os
import struct
import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from packager.preprocess import (
    RESIZE_METHODS,
    PreprocessError,
    dequantize,
    fit_boxes,
    load_image,
    normalise,
    prepare_pixels,
    preprocess,
    quantize,
    resize,
    to_channels,
)
from packager.presets import PRESETS, preset

ROOT = Path(__file__).resolve().parents[1]
SHARED_IMAGES = ROOT / ".." / "shared" / "data" / "images"
RAMP16 = np.array([[0x12FF, 0x8000, 0x00FF, 0xFFFE]], ">u2")


def by_rows(picture, size, kernel):
    """Pillow's resize along rows, then along columns, whatever order its version prefers."""
    return picture.resize((size[0], picture.height), kernel).resize(size, kernel)


def pixels_of(w, h, channels=3, seed=0):
    shape = (h, w) if channels == 1 else (h, w, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


def png16(rows, colour_type, transparent=None):
    """A 16-bit PNG, which Pillow reads but does not write."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width = rows.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    extra = b"" if transparent is None else chunk(b"tRNS", transparent)
    return io.BytesIO(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def spec(**changes):
    image = {
        "width": 8,
        "height": 6,
        "channels": "rgb",
        "resize": "pillow:bilinear",
        "fit": "stretch",
        "pad_value": 0,
        "scale": [1 / 255],
        "offset": [0.0],
    }
    top = {"name": "image", "shape": [None, 6, 8, 3], "dtype": "float32"}
    top.update({key: changes.pop(key) for key in ("shape", "dtype") if key in changes})
    return {**top, "image": {**image, **changes}}


class TestLoading:
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_exif_orientation(self, orientation):
        stored = pixels_of(5, 3)
        # What each orientation says about where the stored rows and columns belong.
        upright = {
            1: stored,
            2: stored[:, ::-1],
            3: stored[::-1, ::-1],
            4: stored[::-1],
            5: stored.transpose(1, 0, 2),
            6: np.rot90(stored, -1),
            7: np.rot90(stored, 2).transpose(1, 0, 2),
            8: np.rot90(stored, 1),
        }[orientation]
        exif = Image.Exif()
        exif[0x0112] = orientation
        loaded = load_image(encoded(Image.fromarray(stored), exif=exif))
        np.testing.assert_array_equal(loaded, upright)

    @pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"\xff" * 40])
    def test_damaged_exif_is_ignored(self, exif):
        stored = pixels_of(5, 3)
        loaded = load_image(encoded(Image.fromarray(stored), exif=exif))
        np.testing.assert_array_equal(loaded, stored)

    def test_16_bit_gray_takes_the_high_byte(self):
        np.testing.assert_array_equal(load_image(png16(RAMP16, 0))[0, :, 0], [0x12, 0x80, 0, 0xFF])

    def test_16_bit_gray_tiff_takes_the_high_byte(self):
        file = encoded(Image.fromarray(RAMP16.astype("<u2")), "TIFF")
        np.testing.assert_array_equal(load_image(file)[0, :, 0], [0x12, 0x80, 0, 0xFF])

    def test_16_bit_pgm_takes_the_high_byte(self):
        file = io.BytesIO(b"P5 4 1 65535\n" + RAMP16.tobytes())
        np.testing.assert_array_equal(load_image(file)[0, :, 0], [0x12, 0x80, 0, 0xFF])

    def test_16_bit_rgb_takes_the_high_byte(self):
        rows = np.stack([RAMP16, RAMP16[:, ::-1], RAMP16], -1)
        np.testing.assert_array_equal(load_image(png16(rows, 2)), rows >> 8)

    def test_16_bit_gray_with_a_transparent_value(self):
        loaded = load_image(png16(RAMP16, 0, struct.pack(">H", 0x8000)))
        np.testing.assert_array_equal(loaded[0, :, 0], [0x12, 0, 0, 0xFF])

    def test_16_bit_rgb_with_a_transparent_colour_is_refused(self):
        rows = np.repeat(RAMP16[:, :, None], 3, -1)
        with pytest.raises(PreprocessError, match="16-bit RGB with a transparent colour"):
            load_image(png16(rows, 2, struct.pack(">HHH", 0x8000, 0x8000, 0x8000)))

    @pytest.mark.parametrize("kind", ["EPS", "TGA"])
    def test_formats_that_no_browser_shows_are_refused_before_they_are_decoded(self, kind):
        """Pillow gives EPS, which is a program, to Ghostscript."""
        content = io.BytesIO()
        Image.new("RGB", (4, 4)).save(content, kind)
        content.seek(0)
        with (
            mock.patch.object(Image.Image, "load", side_effect=AssertionError("decoded")),
            pytest.raises(PreprocessError, match=f"{kind} is none of AVIF, .*WEBP"),
        ):
            load_image(content)

    def test_float_pixels_are_refused(self):
        file = encoded(
            Image.fromarray(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)), "TIFF"
        )
        with pytest.raises(PreprocessError, match="no 8-bit meaning"):
            load_image(file)

    def test_alpha_over_black_for_every_value(self):
        p, a = np.meshgrid(np.arange(256), np.arange(256))
        rgba = np.stack([p, 255 - p, p // 2, a], -1).astype(np.uint8)
        colours = rgba[..., :3].astype(int)
        expected = (2 * colours * a[..., None] + 255) // 510
        np.testing.assert_array_equal(load_image(encoded(Image.fromarray(rgba))), expected)
        np.testing.assert_array_equal(load_image(rgba), expected)

    def test_gray_with_alpha(self):
        gray_alpha = np.array([[[200, 255], [200, 128], [7, 0]]], np.uint8)
        loaded = load_image(encoded(Image.fromarray(gray_alpha, "LA")))
        np.testing.assert_array_equal(to_channels(loaded, "gray")[0, :, 0], [200, 100, 0])

    def test_palette_with_and_without_transparency(self):
        picture = Image.new("P", (3, 1))
        picture.putpalette([10, 20, 30, 200, 100, 50, 255, 255, 255])
        picture.putdata([0, 1, 2])
        np.testing.assert_array_equal(
            load_image(encoded(picture)), [[[10, 20, 30], [200, 100, 50], [255, 255, 255]]]
        )
        loaded = load_image(encoded(picture, transparency=bytes([255, 128, 0])))
        np.testing.assert_array_equal(loaded, [[[10, 20, 30], [100, 50, 25], [0, 0, 0]]])

    def test_one_bit(self):
        bits = np.array([[True, False, True]])
        loaded = load_image(encoded(Image.fromarray(bits)))
        np.testing.assert_array_equal(loaded, [[[255], [0], [255]]])

    def test_cmyk_jpeg(self):
        cmyk = Image.fromarray(pixels_of(16, 16, 4), "CMYK")
        file = encoded(cmyk, "JPEG", quality=95)
        expected = np.asarray(Image.open(file).convert("RGB"))
        file.seek(0)
        loaded = load_image(file)
        np.testing.assert_array_equal(loaded, expected)
        assert loaded.shape == (16, 16, 3)

    def test_animation_gives_its_first_frame(self):
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
        file = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
        np.testing.assert_array_equal(load_image(file)[0, 0], [255, 0, 0])

    @pytest.mark.parametrize("kind", ["MPO", "PNG", "WEBP", "TIFF"])
    def test_frames_in_full_colour(self, tmp_path, kind):
        frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
        path = tmp_path / f"frames.{kind.lower()}"
        frames[0].save(path, kind, save_all=True, append_images=frames[1:])
        found = prepare_pixels(path, spec()["image"])
        assert found[..., 0].min() > 250 and found[..., 2].max() < 5

    def test_path_file_and_image_are_the_same(self, tmp_path):
        stored = pixels_of(9, 7)
        path = tmp_path / "a.png"
        Image.fromarray(stored).save(path)
        for source in (path, str(path), io.BytesIO(path.read_bytes()), Image.open(path)):
            np.testing.assert_array_equal(load_image(source), stored)

    @pytest.mark.parametrize("content", [b"", b"no image at all", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
    def test_unreadable_file_is_named(self, tmp_path, content):
        path = tmp_path / "bad.png"
        path.write_bytes(content)
        with pytest.raises(PreprocessError, match=r"bad\.png: cannot be read"):
            load_image(path)

    def test_truncated_and_missing_files_are_named(self, tmp_path):
        path = tmp_path / "half.png"
        path.write_bytes(encoded(Image.fromarray(pixels_of(40, 40))).getvalue()[:2000])
        with pytest.raises(PreprocessError, match=r"half\.png: .*truncated"):
            load_image(path)
        with pytest.raises(PreprocessError, match=r"gone\.png: .*No such file"):
            load_image(tmp_path / "gone.png")

    def test_image_bomb_is_an_error(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(PreprocessError, match="100"):
            load_image(encoded(Image.fromarray(pixels_of(11, 10))))
        assert load_image(encoded(Image.fromarray(pixels_of(10, 10)))).shape == (10, 10, 3)

    @pytest.mark.parametrize(
        "bad",
        [
            np.zeros((4, 4, 3), np.float32),
            np.zeros((4, 4, 2), np.uint8),
            np.zeros((0, 4, 3), np.uint8),
            np.zeros((2, 4, 4, 3), np.uint8),
        ],
    )
    def test_arrays_that_are_no_pixels(self, bad):
        with pytest.raises(PreprocessError, match="expected uint8 pixels"):
            load_image(bad)


class TestChannels:
    def test_gray_is_the_integer_formula(self):
        pixels = pixels_of(64, 64)
        r, g, b = np.moveaxis(pixels.astype(int), -1, 0)
        expected = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16
        np.testing.assert_array_equal(to_channels(pixels, "gray")[..., 0], expected)

    def test_rgb_and_bgr(self):
        pixels = pixels_of(4, 4)
        np.testing.assert_array_equal(to_channels(pixels, "rgb"), pixels)
        np.testing.assert_array_equal(to_channels(pixels, "bgr"), pixels[..., ::-1])

    def test_gray_array_to_rgb(self):
        gray = pixels_of(4, 4, 1)
        np.testing.assert_array_equal(to_channels(gray, "rgb"), np.repeat(gray[..., None], 3, -1))

    def test_unknown_name(self):
        with pytest.raises(PreprocessError, match="channels 'rgba' is not known"):
            to_channels(pixels_of(4, 4), "rgba")


class TestFit:
    def test_by_exact_fractions(self):
        """The formulas are "round to the nearest, halves up" of the exact ratio."""
        rng = np.random.default_rng(1)
        for w, h, W, H in rng.integers(1, 400, (500, 4)).tolist():
            (left, top, cw, ch), size, place = fit_boxes(w, h, W, H, "crop")
            wider = Fraction(w, h) >= Fraction(W, H)
            exact = Fraction(h * W, H) if wider else Fraction(w * H, W)
            rounded = max(1, int(exact + Fraction(1, 2)))
            assert (cw, ch) == ((rounded, h) if wider else (w, rounded))
            assert (left, top) == ((w - cw) // 2, (h - ch) // 2)
            assert (size, place) == ((W, H), (0, 0))
            box, (rw, rh), place = fit_boxes(w, h, W, H, "pad")
            exact = Fraction(h * W, w) if wider else Fraction(w * H, h)
            rounded = max(1, int(exact + Fraction(1, 2)))
            assert (rw, rh) == ((W, rounded) if wider else (rounded, H))
            assert rw <= W and rh <= H and cw <= w and ch <= h
            assert place == ((W - rw) // 2, (H - rh) // 2)
            assert box == (0, 0, w, h)

    @pytest.mark.parametrize(
        ("size", "box"),
        [((21, 10), (4, 0, 13, 10)), ((10, 21), (0, 6, 10, 8)), ((8, 6), (0, 0, 8, 6))],
    )
    def test_crop_of_odd_sizes(self, size, box):
        pixels = pixels_of(*size)
        left, top, cw, ch = box
        cut = pixels[top : top + ch, left : left + cw]
        expected = np.asarray(by_rows(Image.fromarray(cut), (8, 6), Image.Resampling.BILINEAR))
        found = prepare_pixels(pixels, spec(fit="crop")["image"])
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("size", "inner", "at"), [((21, 10), (8, 4), (0, 1)), ((5, 21), (1, 6), (3, 0))]
    )
    def test_pad_of_odd_sizes(self, size, inner, at):
        pixels = pixels_of(*size)
        expected = np.full((6, 8, 3), 77, np.uint8)
        resized = np.asarray(by_rows(Image.fromarray(pixels), inner, Image.Resampling.LANCZOS))
        expected[at[1] : at[1] + inner[1], at[0] : at[0] + inner[0]] = resized
        declared = spec(fit="pad", pad_value=77, resize="pillow:lanczos")["image"]
        np.testing.assert_array_equal(prepare_pixels(pixels, declared), expected)

    @pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
    @pytest.mark.parametrize("size", [(1, 1), (10000, 10), (10, 10000)])
    def test_extreme_sizes(self, fit, size):
        found = preprocess(pixels_of(*size), spec(fit=fit, pad_value=9))
        assert found.shape == (6, 8, 3)
        assert found.max() > 0

    def test_unknown_fit(self):
        with pytest.raises(PreprocessError, match="fit 'cover' is not known; expected stretch"):
            fit_boxes(4, 4, 4, 4, "cover")


class TestResize:
    @pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_pillow(self, name, channels):
        pixels = pixels_of(37, 23, channels)
        filter_ = Image.Resampling[name.upper()]
        expected = np.asarray(by_rows(Image.fromarray(pixels), (11, 29), filter_))
        found = resize(pixels, 11, 29, f"pillow:{name}")
        np.testing.assert_array_equal(found, expected.reshape(29, 11, channels))
        assert found.dtype == np.uint8

    @pytest.mark.parametrize("method", RESIZE_METHODS)
    def test_the_wanted_size_is_not_resampled(self, method):
        pixels = pixels_of(8, 6)
        np.testing.assert_array_equal(resize(pixels, 8, 6, method), pixels)

    def test_unknown_method(self):
        with pytest.raises(PreprocessError, match=r"resize 'bilinear' is not known.*tf:nearest"):
            resize(pixels_of(4, 4), 2, 2, "bilinear")


class TestNormalise:
    def test_every_byte_equals_division(self):
        pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
        declared = {"channels": "gray", "scale": [1 / 255], "offset": [0.0]}
        expected = pixels.astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(normalise(pixels, declared, "float32"), expected)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_float64_arithmetic_rounded_once(self, dtype):
        pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
        scale, offset = [1 / 58.395, 1 / 57.12, 1 / 57.375], [-2.1179, -2.0357, -1.8044]
        expected = (pixels.astype(np.float64) * scale + offset).astype(dtype)
        declared = {"channels": "rgb", "scale": scale, "offset": offset}
        found = normalise(pixels, declared, dtype)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == dtype

    def test_integers_are_rounded_half_away_from_zero_and_clipped(self):
        pixels = np.array([[0], [1], [2], [3], [5], [255]], np.uint8)
        declared = {"channels": "gray", "scale": [0.5], "offset": [-1.0]}
        # -1, -0.5, 0, 0.5, 1.5, 126.5
        found = normalise(pixels, declared, "int8")[:, 0]
        np.testing.assert_array_equal(found, [-1, -1, 0, 1, 2, 127])
        declared = {"channels": "gray", "scale": [-2.0], "offset": [300.0]}
        found = normalise(pixels, declared, "uint8")[:, 0]
        np.testing.assert_array_equal(found, [255, 255, 255, 255, 255, 0])

    def test_float_pixels(self):
        pixels = np.array([[[0.25, 10.5, 200.75]]], np.float32)
        declared = {"channels": "rgb", "scale": [0.5, 0.25, 2.0], "offset": [1.0, 0.0, -1.0]}
        np.testing.assert_array_equal(
            normalise(pixels, declared, "float32"), [[[1.125, 2.625, 400.5]]]
        )

    def test_wrong_number_of_entries(self):
        declared = {"channels": "rgb", "scale": [1.0, 2.0], "offset": [0.0]}
        with pytest.raises(PreprocessError, match="scale needs 1 or 3 entries"):
            normalise(pixels_of(2, 2), declared, "float32")

    def test_wrong_number_of_channels(self):
        declared = {"channels": "gray", "scale": [1.0], "offset": [0.0]}
        with pytest.raises(PreprocessError, match="expected 1 channels, received 3"):
            normalise(pixels_of(2, 2), declared, "float32")


class TestPreprocess:
    @pytest.mark.parametrize(
        ("channels", "shape"),
        [
            ("gray", [None, 6, 8, 1]),
            ("gray", [None, 6, 8]),
            ("gray", [None, 48]),
            ("gray", [None, None, 8, 1]),
        ],
    )
    def test_declared_shape(self, channels, shape):
        found = preprocess(pixels_of(8, 6, 1), spec(channels=channels, shape=shape))
        assert found.size == 48
        assert found.shape == tuple(6 if size is None else size for size in shape[1:])

    def test_shape_that_does_not_fit(self):
        with pytest.raises(PreprocessError, match=r"input 'image': pixels \[6, 8, 3\] do not fit"):
            preprocess(pixels_of(8, 6), spec(shape=[None, 6, 8, 1]))

    def test_input_without_declaration(self):
        with pytest.raises(PreprocessError, match="'x' declares no preprocessing") as caught:
            preprocess(pixels_of(8, 6), {"name": "x", "shape": [None, 4], "dtype": "float32"})
        assert ".npy" in caught.value.hint

    def test_all_steps_together(self, tmp_path):
        stored = pixels_of(13, 9, 4, seed=3)
        exif = Image.Exif()
        exif[0x0112] = 6
        path = tmp_path / "turned.png"
        Image.fromarray(stored).save(path, exif=exif)
        opaque = (2 * stored[..., :3].astype(int) * stored[..., 3:] + 255) // 510
        turned = np.rot90(opaque, -1).astype(np.uint8)
        small = np.asarray(by_rows(Image.fromarray(turned), (4, 6), Image.Resampling.BICUBIC))
        canvas = np.full((6, 8, 3), 5, np.uint8)
        canvas[:, 2:6] = small
        expected = (canvas[..., ::-1] * np.array([0.5, 1.0, 2.0]) + [1.0, 2.0, 3.0]).astype("f4")
        declared = spec(
            channels="bgr",
            fit="pad",
            pad_value=5,
            resize="pillow:bicubic",
            scale=[0.5, 1.0, 2.0],
            offset=[1.0, 2.0, 3.0],
        )
        np.testing.assert_array_equal(preprocess(path, declared), expected)

    def test_real_photos_in_every_method(self):
        if not SHARED_IMAGES.is_dir():
            pytest.skip("../shared/data/images is missing")
        photos = sorted(SHARED_IMAGES.glob("*.jpg"))
        assert photos
        for photo in photos:
            means = [
                float(preprocess(photo, spec(resize=method)).mean()) for method in RESIZE_METHODS
            ]
            assert min(means) > 0.05 and max(means) < 0.95
            assert max(means) - min(means) < 0.1


class TestQuantization:
    def test_half_away_and_clipping(self):
        x = np.array([-1.0, -0.75, -0.25, 0.0, 0.25, 0.75, 1.25, 90.0], np.float32)
        np.testing.assert_array_equal(quantize(x, 0.5, 3, "int8"), [1, 1, 2, 3, 4, 5, 6, 127])
        np.testing.assert_array_equal(quantize(x, 0.5, 3, "uint8"), [1, 1, 2, 3, 4, 5, 6, 183])

    def test_the_largest_float_below_a_half_is_rounded_down(self):
        x = np.array([np.nextafter(0.5, 0), 0.5])
        np.testing.assert_array_equal(quantize(x, 1.0, 0, "int16"), [0, 1])

    def test_infinity_is_clipped_and_nan_refused(self):
        x = np.array([np.inf, -np.inf])
        np.testing.assert_array_equal(quantize(x, 0.1, 0, "int8"), [127, -128])
        with pytest.raises(PreprocessError, match="NaN"):
            quantize(np.array([np.nan]), 0.1, 0, "int8")

    def test_dequantize_per_tensor_and_per_axis(self):
        q = np.array([[1, 2, 3], [-4, -5, -6]], np.int8)
        np.testing.assert_array_equal(dequantize(q, 0.5, 1), (q.astype(np.float32) - 1) / 2)
        found = dequantize(q, [0.5, 2.0], [0, 1], axis=0)
        np.testing.assert_array_equal(found, [[0.5, 1.0, 1.5], [-10.0, -12.0, -14.0]])
        found = dequantize(q, [1.0, 2.0, 4.0], [0, 0, 0], axis=1)
        np.testing.assert_array_equal(found, [[1.0, 4.0, 12.0], [-4.0, -10.0, -24.0]])

    def test_round_trip_is_within_half_a_step(self):
        x = np.random.default_rng(2).uniform(-3, 3, 500).astype(np.float32)
        back = dequantize(quantize(x, 6 / 255, -1, "int8"), 6 / 255, -1)
        assert 0 < np.abs(back - x).max() <= 6 / 255


class TestPresets:
    def test_names_do_not_depend_on_spelling(self):
        assert preset("keras:EfficientNetV2") == preset("keras:efficientnet_v2")
        assert preset("keras:resnet50v2") == preset("keras:resnet_v2") != preset("keras:resnet50")

    @pytest.mark.parametrize(
        ("name", "suggestion"), [("keras:densenet121", "keras:densenet"), ("0...1", "0..1")]
    )
    def test_unknown_name(self, name, suggestion):
        with pytest.raises(PreprocessError, match=f"did you mean {suggestion!r}") as caught:
            preset(name)
        assert all(known in caught.value.hint for known in PRESETS)

    def test_a_preset_cannot_be_changed_by_its_user(self):
        preset("0..1")["scale"].append(3.0)
        assert preset("0..1")["scale"] == [1 / 255]


CHILD = """
import importlib, json, sys
import numpy as np
import tensorflow as tf
import keras
folder, families = sys.argv[1], sys.argv[2:]
data = np.load(folder + "/in.npz")
out = {}
for key in data.files:
    if key.startswith("resize"):
        _, _, w, h = key.split("_")
        for method in ("bilinear", "nearest"):
            size = (int(h), int(w))
            out[f"{key}:{method}"] = tf.image.resize(data[key], size, method=method).numpy()
for family in families:
    module = importlib.import_module(f"keras.applications.{family}")
    out[family] = module.preprocess_input(data["pixels"].astype("float32"))
np.savez(folder + "/out.npz", **out)
"""
# keras.applications has these under the name of a module.
MODULES = {
    name.removeprefix("keras:"): module
    for name in PRESETS
    if name.startswith("keras:")
    for module in [
        {
            "keras:resnet101": "resnet",
            "keras:resnet152": "resnet",
            "keras:resnet50_v2": "resnet_v2",
            "keras:resnet101_v2": "resnet_v2",
            "keras:resnet152_v2": "resnet_v2",
        }.get(name, name.removeprefix("keras:"))
    ]
}
SIZES = [(40, 30, 24, 24), (7, 9, 20, 33), (1, 1, 4, 4), (100, 3, 16, 16), (24, 24, 24, 24)]


@pytest.fixture(scope="module")
def tensorflow_values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorflow")
    arrays = {
        f"resize_{number}_{W}_{H}": pixels_of(w, h, 3, seed=number)
        for number, (w, h, W, H) in enumerate(SIZES)
    }
    ramp = np.arange(256, dtype=np.uint8)
    arrays["pixels"] = np.stack([ramp, ramp[::-1], np.roll(ramp, 90)], -1)[None, :, None]
    np.savez(folder / "in.npz", **arrays)
    families = sorted(set(MODULES.values()))
    command = [sys.executable, "-c", CHILD, str(folder), *families]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as found:
        return arrays, dict(found)


@pytest.mark.tf
class TestAgainstTensorFlow:
    @pytest.mark.parametrize("number", range(len(SIZES)))
    def test_resize(self, tensorflow_values, number):
        arrays, found = tensorflow_values
        _, _, W, H = SIZES[number]
        key = f"resize_{number}_{W}_{H}"
        bilinear = resize(arrays[key], W, H, "tf:bilinear")
        expected = found[f"{key}:bilinear"]
        assert bilinear.dtype == expected.dtype == np.float32
        assert np.all(np.abs(bilinear - expected) <= np.spacing(expected))
        nearest = resize(arrays[key], W, H, "tf:nearest")
        np.testing.assert_array_equal(nearest, found[f"{key}:nearest"])

    @pytest.mark.parametrize("family", MODULES)
    def test_preset_is_what_keras_does(self, tensorflow_values, family):
        arrays, found = tensorflow_values
        declared = preset(f"keras:{family}")
        pixels = to_channels(arrays["pixels"][0], declared["channels"])
        ours = normalise(pixels, declared, "float32")
        # Keras computes step by step in float32; values reach 255.
        np.testing.assert_allclose(ours, found[MODULES[family]][0], rtol=1e-6, atol=4e-6)
