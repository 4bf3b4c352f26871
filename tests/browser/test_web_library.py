"""packager.js in a real browser: the SavedModel's numbers, Pillow's pixels, no leaks."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from packager import bundle, preprocess
from packager.children import Child
from tests import real_models
from tests.browser.watched_page import Watched
from tests.conftest import DIGITS, loaded

pytestmark = [pytest.mark.browser, pytest.mark.tf, pytest.mark.node]

COUNT = 200
RUNTIMES = ["tfjs-wasm", "tfjs-cpu", "litert-wasm"]
# Chromium says so when a page asks for WebGPU where there is none.
NO_WEBGPU = "warning: No available adapters."

PREDICT = """async ([runtime, pngs]) => {
  const { loadBundle } = await import('/web/packager.js');
  const model = await loadBundle('/', { runtime });
  const rows = [];
  for (const png of pngs) {
    const blob = await (await fetch('data:image/png;base64,' + png)).blob();
    const { outputs, answers } = await model.predict(model.inputsOf(blob));
    rows.push({ values: [...Object.values(outputs)[0].data], label: answers[0].label });
  }
  const { id, backend, threads } = model.runtime;
  model.dispose();
  return { id, backend, threads, rows };
}"""


def png_text(pixels: np.ndarray[Any, Any]) -> str:
    """A PNG file of uint8 pixels, in base64."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[Child]:
    """One process for the SavedModels."""
    with Child("packager.loaders.worker") as child:
        yield child


def saved_model_outputs(
    tensorflow: Child, folder: Path, images: np.ndarray[Any, Any], work: Path
) -> np.ndarray[Any, Any]:
    """The SavedModel's answers to images, `[N, classes]`."""
    manifest = bundle.read_manifest(folder)
    spec = bundle.to_json(manifest.inputs[0])
    samples = np.stack([preprocess.preprocess(image, spec) for image in images])
    for name in ("in", "out"):
        (work / name).mkdir(parents=True)
    tensorflow.call("open", "opening", source=folder, format="saved_model", saved_by="packager")
    np.save(work / "in" / f"{spec['name']}.npy", samples)
    tensorflow.call("predict", "running", inputs=work / "in", outputs=work / "out")
    (path,) = (work / "out").iterdir()
    return np.load(path)


NAMES = ("digits", "mnist_cnn", "quickdraw")


# Plain JavaScript takes a second for some images: it gets all of them in the soak.
@pytest.mark.parametrize(
    ("name", "on_cpu"),
    [(name, 20) for name in NAMES]
    + [pytest.param(name, COUNT, marks=pytest.mark.soak) for name in NAMES],
)
def test_200_images_have_the_saved_models_answers(
    name: str,
    on_cpu: int,
    once: Any,
    tensorflow: Child,
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if name == "digits":
        folder, source = request.getfixturevalue("digits_bundle"), DIGITS / "data/evaluation.npz"
    else:
        shared = request.getfixturevalue("shared")
        folder = real_models.build(name, shared, once).folder
        source = shared / real_models.REAL[name].source
    with loaded(source) as stored:
        chosen = np.random.default_rng(5).permutation(len(stored["x"]))[:COUNT]
        images = stored["x"][chosen].reshape(COUNT, 28, 28)
    expected = saved_model_outputs(tensorflow, folder, images, tmp_path)
    assert len(set(expected.argmax(-1))) > 2
    pngs = [png_text(image) for image in images]
    watched = open_page(f"{web_app(folder)}/web/example.html")
    labels = bundle.read_manifest(folder).labels or [str(i) for i in range(expected.shape[1])]
    for runtime in RUNTIMES:
        count = on_cpu if runtime == "tfjs-cpu" else COUNT
        found = watched.page.evaluate(PREDICT, [runtime, pngs[:count]])
        assert found["id"].startswith(f"{runtime}:")
        values = np.array([row["values"] for row in found["rows"]])
        assert values.shape == (count, len(labels))
        right = expected[:count]
        np.testing.assert_array_equal(values.argmax(-1), right.argmax(-1), err_msg=runtime)
        assert np.abs(values - right).max() < 1e-4, runtime
        shown = [row["label"] for row in found["rows"]]
        assert shown == [labels[best] for best in right.argmax(-1)]
    assert [text for text in watched.problems if text != NO_WEBGPU] == []


@pytest.mark.soak  # WebGL in software is slow
def test_webgl_agrees_on_a_few(
    digits_bundle: Path, web_app: Callable[[Path], str], open_page: Callable[..., Watched]
) -> None:
    """In software here; WebGPU there is none, and the library says so."""
    with loaded(DIGITS / "data/evaluation.npz") as stored:
        images, labels = stored["x"][:4].reshape(-1, 28, 28), stored["y"][:4]
    pngs = [png_text(image) for image in images]
    page = open_page(f"{web_app(digits_bundle)}/web/example.html").page
    found = page.evaluate(PREDICT, ["tfjs-webgl", pngs])
    assert [int(row["label"]) for row in found["rows"]] == labels.tolist()
    for runtime in ("tfjs-webgpu", "litert-webgpu"):
        message = page.evaluate(f"(a) => ({PREDICT})(a).catch((e) => e.message)", [runtime, pngs])
        assert message.endswith("WebGPU device") or "no WebGPU" in message


def with_random_alpha(picture: Image.Image) -> Image.Image:
    """The same with an alpha channel of noise."""
    alpha = np.random.default_rng(0).integers(0, 256, picture.size[::-1], dtype=np.uint8)
    return Image.fromarray(np.dstack([np.asarray(picture), alpha]))


def deep_png(kind: int, channels: int) -> bytes:
    """A PNG of 16 bits per channel, noise; Pillow writes only gray ones."""
    height, width = 50, 61
    values = np.random.default_rng(kind).integers(0, 65536, (height, width * channels))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + name + data + check

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    parts = {b"IHDR": size + bytes([16, kind, 0, 0, 0]), b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts.items())


def image_files(photo: Image.Image) -> dict[str, bytes]:
    """The kinds of files that people have, by name."""
    files: dict[str, bytes] = {}

    def add(name: str, picture: Image.Image, **options: Any) -> None:
        file = io.BytesIO()
        picture.save(file, name.rpartition(".")[2].replace("jpg", "jpeg"), **options)
        files[name] = file.getvalue()

    add("baseline.jpg", photo, quality=90)
    add("progressive.jpg", photo, quality=85, progressive=True)
    add("subsampled, odd size.jpg", photo.resize((201, 133)), quality=75, subsampling=2)
    add("4:2:2.jpg", photo, quality=95, subsampling=1)
    add("gray.jpg", photo.convert("L"))
    add("cmyk.jpg", photo.convert("CMYK"))
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        add(f"orientation {orientation}.jpg", photo, exif=exif.tobytes())
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    add("colour profile.png", photo, icc_profile=profile)
    add("palette.png", photo.quantize(64))
    add("palette with alpha.png", photo.quantize(60), transparency=bytes(range(0, 240, 4)))
    add("alpha.png", with_random_alpha(photo))
    add("gray alpha.png", with_random_alpha(photo.convert("L")))
    add("one bit.png", photo.convert("1"))
    ramp = np.add.outer(np.arange(97) * 300, np.arange(121) * 231) % 65536
    add("16 bits gray.png", Image.fromarray(ramp.astype(np.uint16)))
    files["16 bits.png"] = deep_png(2, 3)
    files["16 bits alpha.png"] = deep_png(6, 4)
    add("lossy.webp", photo, quality=80)
    add("lossless alpha.webp", with_random_alpha(photo), lossless=True, exact=True)
    add("animation.gif", photo.quantize(64))
    return files


DECODE = """async (files) => {
  const { decode } = await import('/web/decode.js');
  const { toChannels } = await import('/web/preprocess.js');
  const answers = [];
  for (const text of files) {
    const blob = await (await fetch('data:application/octet-stream;base64,' + text)).blob();
    const { width, height, data } = toChannels(await decode(blob), 'rgb');
    let chars = '';
    for (let i = 0; i < data.length; i += 8192) {
      chars += String.fromCharCode(...data.subarray(i, i + 8192));
    }
    answers.push({ width, height, pixels: btoa(chars) });
  }
  return answers;
}"""


def test_files_are_decoded_as_in_python(
    digits_bundle: Path,
    shared: Path,
    tmp_path: Path,
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
) -> None:
    """0 differing pixels for every kind of file, through EXIF, 16 bits, alpha and colour."""
    with Image.open(shared / "data/images/cat.jpg") as picture:
        photo = picture.convert("RGB").resize((256, 171))
    files = image_files(photo)
    page = open_page(f"{web_app(digits_bundle)}/web/example.html").page
    texts = [base64.b64encode(content).decode() for content in files.values()]
    for answer, (name, content) in zip(page.evaluate(DECODE, texts), files.items(), strict=True):
        path = tmp_path / f"file.{name.rpartition('.')[2]}"
        path.write_bytes(content)
        expected = preprocess.to_channels(preprocess.load_image(path), "rgb")
        assert (answer["height"], answer["width"], 3) == expected.shape, name
        found = np.frombuffer(base64.b64decode(answer["pixels"]), np.uint8)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected, err_msg=name)


START = """async (runtime) => {
  const { loadBundle } = await import('/web/packager.js');
  window.model = await loadBundle('/', { runtime });
  window.image = new ImageData(28, 28);
}"""
RUN = """async (times) => {
  for (let i = 0; i < times; i += 1) {
    window.image.data.fill(i % 256);
    await window.model.classify(window.image);
  }
  return window.model.memory();
}"""


@pytest.mark.parametrize(
    ("runtime", "predictions"),
    [
        ("tfjs-wasm", 500),
        pytest.param("tfjs-wasm", 2000, marks=pytest.mark.soak),
        pytest.param("litert-wasm", 2000, marks=pytest.mark.soak),
    ],
)
def test_predictions_leave_nothing_behind(
    runtime: str,
    predictions: int,
    digits_bundle: Path,
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
) -> None:
    page = open_page(f"{web_app(digits_bundle)}/web/example.html").page
    page.evaluate(START, runtime)
    debugger = page.context.new_cdp_session(page)

    def run(times: int) -> tuple[dict[str, int], int]:
        held = page.evaluate(RUN, times)
        debugger.send("HeapProfiler.collectGarbage")
        return held, debugger.send("Runtime.getHeapUsage")["usedSize"]

    before, heap_before = run(100)
    after, heap_after = run(predictions)
    assert before == after
    assert after["bytes"] > 1e6
    if runtime == "tfjs-wasm":
        assert after["tensors"] > 0
    # One forgotten result of 100 bytes per prediction would be 200 kB in the soak.
    assert heap_after - heap_before < 150e3
