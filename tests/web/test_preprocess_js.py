"""web/preprocess.js against Pillow itself, and against TensorFlow for `tf:*`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packager import preprocess as reference

pytestmark = pytest.mark.node

HERE = Path(__file__).resolve().parent
IMAGES = HERE / ".." / ".." / ".." / "shared" / "data" / "images"
PILLOW = {
    "pillow:nearest": Image.Resampling.NEAREST,
    "pillow:bilinear": Image.Resampling.BILINEAR,
    "pillow:bicubic": Image.Resampling.BICUBIC,
    "pillow:lanczos": Image.Resampling.LANCZOS,
}
TARGETS = [(1, 1), (28, 28), (31, 17), (3, 64), (96, 80)]
SCALE, OFFSET = 0.00784313725490196, -1.0

Array = np.ndarray[Any, Any]
NodeJson = Callable[..., Any]


@dataclass
class Cases:
    """Collects cases, runs Node once and hands the results back."""

    folder: Path
    cases: list[dict[str, Any]] = field(default_factory=list)
    expected: list[Array] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, pixels: Array, image: dict[str, Any], dtype: str, expected: Array) -> None:
        number = len(self.cases)
        pixels = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
        height, width, channels = pixels.shape
        (self.folder / f"{number}.in").write_bytes(pixels.tobytes())
        self.cases.append(
            {
                "pixels": f"{number}.in",
                "output": f"{number}.out",
                "width": width,
                "height": height,
                "channels": channels,
                "input": {
                    "name": "x",
                    "dtype": dtype,
                    "shape": [None, *expected.shape],
                    "image": image,
                },
            }
        )
        self.expected.append(expected)
        self.names.append(f"{width}x{height}x{channels} {image}")

    def run(self, node_json: NodeJson) -> list[Array]:
        (self.folder / "cases.json").write_text(json.dumps(self.cases))
        answer = node_json(HERE / "preprocess_cases.mjs", self.folder)
        assert answer["count"] == len(self.cases) > 0
        return [
            np.fromfile(self.folder / case["output"], expected.dtype).reshape(expected.shape)
            for case, expected in zip(self.cases, self.expected, strict=True)
        ]


def declaration(size: tuple[int, int], **changes: Any) -> dict[str, Any]:
    base = {"channels": "rgb", "resize": "pillow:bilinear", "fit": "stretch", "pad_value": 0}
    return {
        **base,
        "width": size[0],
        "height": size[1],
        "scale": [1.0],
        "offset": [0.0],
        **changes,
    }


def sources() -> list[Array]:
    """60 RGB images of odd sizes: noise, gradients with hard edges, crops of photographs."""
    random = np.random.default_rng(7)
    photos = [np.asarray(Image.open(p).convert("RGB")) for p in sorted(IMAGES.glob("*.jpg"))]
    if not photos:
        pytest.skip("the photographs of ../shared/data/images are missing")
    images = []
    for i in range(60):
        height, width = random.integers(1, 130, size=2)
        if i % 3 == 0:
            image = random.integers(0, 256, (height, width, 3))
        elif i % 3 == 1:
            ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 5)
            image = np.stack([ramp, 255 - ramp % 256, (ramp // 64 % 2) * 255], -1) % 256
        else:
            photo = photos[i % len(photos)]
            top = random.integers(0, photo.shape[0] - height)
            left = random.integers(0, photo.shape[1] - width)
            image = photo[top : top + height, left : left + width]
        images.append(np.ascontiguousarray(image, np.uint8))
    return images


def resized_by_pillow(image: Image.Image, size: tuple[int, int], method: str) -> Image.Image:
    """Pillow's resize, horizontally and then vertically.

    Since Pillow 13 one call takes the vertical pass first where that is cheaper, and rounds
    differently; one call per axis gives the numbers of every version before.
    """
    filter_ = PILLOW[method]
    if filter_ == Image.Resampling.NEAREST:
        return image.resize(size, filter_)
    return image.resize((size[0], image.height), filter_).resize(size, filter_)


def fitted_by_pillow(image: Image.Image, spec: dict[str, Any]) -> Image.Image:
    """Steps 4 and 5 with Pillow's own operations and the contract's integer formulas."""
    w, h = image.size
    width, height = spec["width"], spec["height"]
    method = spec["resize"]
    if spec["fit"] == "stretch":
        return resized_by_pillow(image, (width, height), method)
    wide = w * height >= h * width
    if spec["fit"] == "crop":
        cw = max(1, (2 * h * width + height) // (2 * height)) if wide else w
        ch = h if wide else max(1, (2 * w * height + width) // (2 * width))
        left, top = (w - cw) // 2, (h - ch) // 2
        box = image.crop((left, top, left + cw, top + ch))
        return resized_by_pillow(box, (width, height), method)
    rw = width if wide else max(1, (2 * w * height + h) // (2 * h))
    rh = max(1, (2 * h * width + w) // (2 * w)) if wide else height
    canvas = Image.new(image.mode, (width, height), (spec["pad_value"],) * len(image.getbands()))
    resized = resized_by_pillow(image, (rw, rh), method)
    canvas.paste(resized, ((width - rw) // 2, (height - rh) // 2))
    return canvas


def test_pillow_methods_are_bit_exact(tmp_path: Path, node_json: NodeJson) -> None:
    cases = Cases(tmp_path)
    methods = itertools.product(PILLOW, ["stretch", "crop", "pad"], ["gray", "rgb", "bgr"])
    for number, (image, (method, fit, channels)) in enumerate(
        itertools.product(sources(), methods)
    ):
        spec = declaration(
            TARGETS[number % 5], resize=method, fit=fit, channels=channels, pad_value=number % 256
        )
        mode = "L" if channels == "gray" else "RGB"
        fitted = fitted_by_pillow(Image.fromarray(image).convert(mode), spec)
        expected = np.asarray(fitted)
        cases.add(image, spec, "uint8", expected[..., ::-1] if channels == "bgr" else expected)
    results = cases.run(node_json)
    differing = {
        name: int((result != expected).sum())
        for name, result, expected in zip(cases.names, results, cases.expected, strict=True)
        if not np.array_equal(result, expected)
    }
    assert len(results) == 60 * 36
    assert differing == {}
    assert sum(r.std() > 5 for r in results) > 1000


def test_alpha_gray_and_normalisation(tmp_path: Path, node_json: NodeJson) -> None:
    random = np.random.default_rng(3)
    cases = Cases(tmp_path)
    rgba = random.integers(0, 256, (37, 29, 4), dtype=np.uint8)
    black = Image.new("RGBA", (29, 37), (0, 0, 0, 255))
    flat = np.asarray(Image.alpha_composite(black, Image.fromarray(rgba)).convert("RGB"))
    size = (29, 37)
    cases.add(rgba, declaration(size), "uint8", flat)
    gray = np.asarray(Image.fromarray(flat).convert("L"))
    cases.add(rgba, declaration(size, channels="gray"), "uint8", gray)
    single = random.integers(0, 256, (37, 29), dtype=np.uint8)
    cases.add(single, declaration(size), "uint8", np.stack([single] * 3, -1))
    scale, offset = [SCALE, 0.017, 1 / 255], [OFFSET, 0.3, -0.5]
    wanted = (flat.astype(np.float64) * scale + offset).astype(np.float32)
    cases.add(rgba, declaration(size, scale=scale, offset=offset), "float32", wanted)
    exact = (np.arange(256)[np.newaxis] * (1 / 255)).astype(np.float32)
    ramp = np.arange(256, dtype=np.uint8)[np.newaxis]
    spec = declaration((256, 1), channels="gray", scale=[1 / 255])
    cases.add(ramp, spec, "float32", exact)
    value = np.arange(256) * 0.5 - 100.0
    away = (np.sign(value) * np.floor(np.abs(value) + 0.5)).clip(-128, 127).astype(np.int8)
    spec = declaration((256, 1), channels="gray", scale=[0.5], offset=[-100.0])
    cases.add(ramp, spec, "int8", away[np.newaxis])
    for name, result, expected in zip(
        cases.names, cases.run(node_json), cases.expected, strict=True
    ):
        np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_integers_are_rounded_as_in_python(tmp_path: Path, node_json: NodeJson, dtype: str) -> None:
    """Ties, the numbers beside them, and what is clipped, by packager/preprocess.py."""
    ramp = np.arange(256, dtype=np.uint8)[np.newaxis]
    below = 0.49999999999999994
    assert np.floor(below + 0.5) == 1.0
    cases = Cases(tmp_path)
    for scale, offset in [(below, 0.0), (-below, 0.0), (0.5, -64.25), (0.5, -64.0), (7e4, -1e7)]:
        spec = declaration((256, 1), channels="gray", scale=[scale], offset=[offset])
        expected = reference.normalise(ramp[..., np.newaxis], spec, dtype)[..., 0]
        cases.add(ramp, spec, dtype, expected)
    assert {int(e[0, 1]) for e in cases.expected[:2]} == {0}
    for name, result, expected in zip(
        cases.names, cases.run(node_json), cases.expected, strict=True
    ):
        np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.parametrize(
    "shape",
    [
        [None, 5],
        [2, None],
        [None, None, 10],
        [None],
        [2, 5, None],
        [None, None],
        [3, None],
        [2, 5],
        [7],
    ],
)
def test_free_dimensions_are_what_python_makes_of_them(
    tmp_path: Path, node_json: NodeJson, shape: list[int | None]
) -> None:
    pixels = np.arange(1, 11, dtype=np.uint8).reshape(2, 5)
    image = declaration((5, 2), channels="gray")
    spec = {"name": "x", "dtype": "float32", "shape": [None, *shape], "image": image}
    (answer,) = node_json(call_script(tmp_path, pixels[..., np.newaxis]), json.dumps([spec]))
    try:
        expected = reference.preprocess(pixels, spec)
    except reference.PreprocessError:
        assert answer["error"].startswith("PreprocessError: input x takes")
        return
    assert answer["shape"] == list(expected.shape)
    np.testing.assert_array_equal(answer["values"], expected.ravel())


def call_script(folder: Path, pixels: Array) -> Path:
    """A script that preprocesses these pixels for each input of a JSON list."""
    height, width, channels = pixels.shape
    module = (HERE / ".." / ".." / "web" / "preprocess.js").resolve().as_uri()
    script = folder / "call.mjs"
    script.write_text(
        f"import {{ preprocess }} from '{module}';\n"
        f"const data = Uint8Array.from({pixels.ravel().tolist()});\n"
        f"const pixels = {{ data, width: {width}, height: {height}, channels: {channels} }};\n"
        "console.log(JSON.stringify(JSON.parse(process.argv[2]).map((input) => {\n"
        "  try {\n"
        "    const { shape, data: values } = preprocess(pixels, input);\n"
        "    return { shape, values: [...values] };\n"
        "  } catch (error) { return { error: `${error.name}: ${error.message}` }; }\n"
        "})));\n"
    )
    return script


TF_REFERENCE = """
import sys
import numpy as np, tensorflow as tf
with np.load(sys.argv[1]) as stored:
    jobs = [(stored[f"x{i}"], *stored["sizes"][i]) for i in range(len(stored["sizes"]))]
answers = {}
for i, (image, width, height) in enumerate(jobs):
    for method in ("bilinear", "nearest"):
        answers[f"{i}.{method}"] = tf.image.resize(image, (height, width), method).numpy()
np.savez(sys.argv[2], **answers)
"""


@pytest.mark.tf
def test_tf_methods_are_within_one_ulp(tmp_path: Path, node_json: NodeJson) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is missing: it is the reference")
    images = sources()
    sizes = [TARGETS[i % 5] for i in range(len(images))]
    arrays = {f"x{i}": image for i, image in enumerate(images)}
    np.savez(tmp_path / "in.npz", sizes=np.array(sizes), **arrays)
    command = [sys.executable, "-c", TF_REFERENCE, tmp_path / "in.npz", tmp_path / "ref.npz"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    cases = Cases(tmp_path)
    with np.load(tmp_path / "ref.npz") as reference:
        for i, (image, size) in enumerate(zip(images, sizes, strict=True)):
            bilinear = reference[f"{i}.bilinear"].astype(np.float32)
            cases.add(image, declaration(size, resize="tf:bilinear"), "float32", bilinear)
            nearest = reference[f"{i}.nearest"]
            cases.add(image, declaration(size, resize="tf:nearest"), "uint8", nearest)
    for name, result, expected in zip(
        cases.names, cases.run(node_json), cases.expected, strict=True
    ):
        if expected.dtype == np.uint8:
            np.testing.assert_array_equal(result, expected, err_msg=name)
        else:
            np.testing.assert_array_max_ulp(result, expected, maxulp=1)


def test_bad_declarations_are_named(tmp_path: Path, node_json: NodeJson) -> None:
    script = call_script(tmp_path, np.zeros((2, 2, 3), np.uint8))
    good = {"name": "photo", "dtype": "float32", "shape": [None, 2, 2, 3]}
    inputs = [
        {**good, "image": declaration((2, 2), resize="bilinear")},
        {**good, "image": declaration((2, 2), channels="cmyk")},
        {**good, "image": declaration((3, 2))},
        {**good, "dtype": "string", "image": declaration((2, 2))},
        {**good, "image": declaration((2, 2), scale=[1.0, 2.0])},
        {**good, "image": declaration((2, 2), offset=[])},
        good,
    ]
    answers = node_json(script, json.dumps(inputs))
    for answer, words in zip(
        answers,
        [
            "pillow:bilinear",
            "cmyk",
            "2 x 2 x 3",
            "string",
            "scale needs",
            "offset needs",
            "no image",
        ],
        strict=True,
    ):
        assert answer["error"].startswith("PreprocessError: input photo")
        assert words in answer["error"]
