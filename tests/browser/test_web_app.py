"""The web app's page, as a person uses it, in a real browser."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from packager import web
from tests import real_models
from tests.browser.conftest import filmed_digit
from tests.browser.watched_page import Watched
from tests.conftest import DIGITS, loaded, packager

pytestmark = [pytest.mark.browser, pytest.mark.tf, pytest.mark.node]

# Chromium says so when a page asks for WebGPU where there is none.
NO_WEBGPU = "warning: No available adapters."
STATE = "(state) => document.documentElement.dataset.state === state"
RUNTIMES = ["tfjs-wasm", "litert-wasm", "litert-wasm", "tfjs-webgl", "tfjs-cpu"]


def label(watched: Watched) -> str:
    return watched.page.locator("#label").inner_text()


def wait_for_label(watched: Watched, text: str) -> None:
    found = watched.page.locator("#label").get_by_text(text, exact=True)
    found.wait_for()


def real_problems(watched: Watched) -> list[str]:
    return [text for text in watched.problems if text != NO_WEBGPU]


@pytest.fixture
def open_app(
    web_app: Callable[[Path], str], open_page: Callable[..., Watched]
) -> Callable[..., Watched]:
    """Opens the app on a bundle, `runtime` in use, and waits until it has answered."""

    def open_(folder: Path, runtime: str = "tfjs-wasm", **options: Any) -> Watched:
        watched = open_page(f"{web_app(folder)}/web/?runtime={runtime}", **options)
        watched.page.wait_for_function(STATE, arg="tuned")
        return watched

    return open_


@pytest.fixture
def quickdraw_bundle(shared: Path, once: Any) -> Path:
    return real_models.build("quickdraw", shared, once).folder


def digit_file(number: int, size: int = 28) -> tuple[dict[str, Any], int]:
    """An evaluation image as a file to upload, and its label."""
    with loaded(DIGITS / "data/evaluation.npz") as stored:
        pixels, wanted = stored["x"][number].reshape(28, 28), int(stored["y"][number])
    picture = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    picture.save(file, "png")
    content = {"name": f"{number}.png", "mimeType": "image/png", "buffer": file.getvalue()}
    return content, wanted


def test_the_page_answers_by_itself_and_finds_the_fastest_runtime(
    digits_bundle: Path, open_app: Callable[..., Watched]
) -> None:
    watched = open_app(digits_bundle, "auto")
    page = watched.page
    golden = json.loads((digits_bundle / "golden/samples.json").read_text())["samples"]
    samples = page.locator("#samples button")
    assert samples.count() == len(golden)
    assert label(watched) == str(golden[0]["label"])
    for number in (3, 7):
        samples.nth(number).click()
        wait_for_label(watched, str(golden[number]["label"]))
        best = float(page.locator("#bars .score").first.inner_text().split()[0]) / 100
        stored = max(golden[number]["outputs"]["digit"])
        assert best == pytest.approx(stored, abs=6e-4)
    assert "the fastest of" in page.locator("#why").inner_text()
    kept = page.evaluate("() => ({ ...localStorage })")
    chosen = [value for key, value in kept.items() if key.startswith("packager:fastest:")]
    assert re.fullmatch(r"(tfjs|litert)-wasm:tf(js|lite)/\w+ [1-8]", chosen[0])
    started = [value for key, value in kept.items() if key.startswith("packager:start:")]
    assert started == [chosen[0].partition(":")[0]]
    assert page.evaluate("() => crossOriginIsolated") is True
    hosts = {urlsplit(address).netloc for address in watched.requests}
    assert len([host for host in hosts if host]) == 1
    assert real_problems(watched) == []


def test_the_self_test_and_its_results(
    digits_bundle: Path, open_app: Callable[..., Watched], tmp_path: Path
) -> None:
    watched = open_app(digits_bundle)
    page = watched.page
    page.locator("#benchmark").click()
    page.locator("#export").wait_for()
    with page.expect_download() as download:
        page.locator("#export").click()
    download.value.save_as(tmp_path / "browser.json")
    found = json.loads((tmp_path / "browser.json").read_text())
    assert found["schema"] == {"name": "packager-browser-results", "version": 1}
    assert len(found["bundle"]["manifest_sha256"]) == 64
    ran = [row for row in found["artifacts"] if row["status"] == "passed"]
    assert [row["runtime"] for row in ran] == RUNTIMES
    for row in ran:
        assert row["samples"] == 16
        assert row["p50_ms"] > 0
        assert row["first_ms"] > 0
        assert row["load_ms"] > 0
        assert row["memory_bytes"] > 1000
    others = {row["reason"] for row in found["artifacts"] if row["status"] == "skipped"}
    assert len(ran) + 3 == len(found["artifacts"])
    assert others <= {"this browser finds no WebGPU device", "this browser has no WebGPU"}
    assert page.locator("#runtimes td.passed").count() == len(ran)
    copy = Path(shutil.copytree(digits_bundle, tmp_path / "bundle"))
    merged = packager("report", copy, "--merge", tmp_path / "browser.json")
    assert merged.code == 0, merged.err
    assert "litert-wasm" in (copy / "report/report.json").read_text()


def test_several_files_make_a_table(digits_bundle: Path, open_app: Callable[..., Watched]) -> None:
    watched = open_app(digits_bundle)
    files = [digit_file(number, size) for number, size in ((3, 28), (14, 300), (26, 64))]
    text = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"not an image"}
    watched.page.set_input_files("#file", [*(file for file, _ in files), text])
    rows = watched.page.locator("#rows tr")
    rows.nth(3).wait_for()
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [row[:2] for row in cells[:3]] == [[f["name"], str(wanted)] for f, wanted in files]
    assert cells[3][1].startswith("notes.txt is not an image")
    assert "is not an image" in watched.page.locator("#notice").inner_text()
    watched.page.locator("#samples button").first.click()
    watched.page.locator("#notice").wait_for(state="hidden")
    assert real_problems(watched) == []


def test_a_drawn_lollipop_is_recognised(
    quickdraw_bundle: Path, open_app: Callable[..., Watched]
) -> None:
    watched = open_app(quickdraw_bundle)
    page = watched.page
    page.get_by_text("Draw", exact=True).click()
    box = page.locator("#pad").bounding_box()
    assert box is not None

    def at(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    page.mouse.move(*at(0.5, 0.52))
    page.mouse.down()
    for step in range(1, 33):
        angle = 2 * math.pi * step / 32
        page.mouse.move(*at(0.5 + 0.24 * math.sin(angle), 0.28 + 0.24 * math.cos(angle)))
    page.mouse.move(*at(0.5, 0.97), steps=8)
    page.mouse.up()
    wait_for_label(watched, "lollipop")
    assert page.locator("#bars li").count() == 5
    assert real_problems(watched) == []


def test_the_camera_is_followed(digits_bundle: Path, open_app: Callable[..., Watched]) -> None:
    watched = open_app(digits_bundle, permissions=["camera"])
    page = watched.page
    page.get_by_text("Camera", exact=True).click()
    wait_for_label(watched, str(filmed_digit()[1]))
    page.wait_for_function("() => Number(document.getElementById('rate').textContent) > 2")
    page.evaluate(
        "() => { window.long = []; new PerformanceObserver((list) => window.long.push("
        "...list.getEntries().map((e) => e.duration))).observe({ type: 'longtask' }); }"
    )
    page.wait_for_timeout(1500)
    page.locator("#camera-toggle").click()
    assert page.locator("#camera").evaluate("(video) => video.srcObject") is None
    # The machine that tests is busy: a stray long task may be its own, a stream of them is ours.
    assert len(page.evaluate("() => window.long")) < 6
    assert real_problems(watched) == []


def test_without_a_camera_the_page_says_so_and_goes_on(
    digits_bundle: Path, open_app: Callable[..., Watched]
) -> None:
    watched = open_app(digits_bundle)
    page = watched.page
    notice = page.locator("#notice")
    page.get_by_text("Camera", exact=True).click()
    notice.wait_for()
    assert "may not use the camera" in notice.inner_text()
    page.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = () =>"
        " Promise.reject(new DOMException('none', 'NotFoundError')); }"
    )
    page.locator("#camera-toggle").click()
    page.wait_for_function(
        "() => document.getElementById('notice').innerText.includes('no camera here')"
    )
    page.locator("#samples button").nth(1).click()
    notice.wait_for(state="hidden")
    assert real_problems(watched) == []


@pytest.fixture
def exported(digits_bundle: Path, tmp_path: Path) -> Path:
    """What a static host gets."""
    web.export(digits_bundle, tmp_path / "site")
    return tmp_path / "site"


def test_a_plain_static_host_gets_threads_and_works_offline(
    exported: Path,
    serve: Callable[[dict[str, Path]], str],
    open_page: Callable[..., Watched],
) -> None:
    """The service worker sends the headers that the host cannot, and keeps what was loaded."""
    address = f"{serve({'site': exported})}/site/"
    watched = open_page(address)
    page = watched.page
    page.wait_for_url("**/web/")
    page.wait_for_function(STATE, arg="tuned")
    assert page.evaluate("() => crossOriginIsolated") is True
    page.locator("#runtime").select_option("litert-wasm:tflite/float32")
    page.get_by_text("LiteRT.js, WebAssembly, 2 threads").wait_for()
    wanted = label(watched)
    page.context.set_offline(True)
    del watched.requests[:]
    page.reload()
    page.wait_for_function(STATE, arg="tuned")
    assert label(watched) == wanted
    page.locator("#samples button").nth(2).click()
    wait_for_label(watched, str(sample_label(exported, 2)))
    page.context.set_offline(False)
    offline = ("Failed to load resource", "The FetchEvent", "An unknown error occurred")
    assert [text for text in real_problems(watched) if not any(o in text for o in offline)] == []


def sample_label(folder: Path, number: int) -> int:
    samples = json.loads((folder / "golden/samples.json").read_text())["samples"]
    return int(samples[number]["label"])


def test_a_reload_takes_the_model_from_the_cache(
    digits_bundle: Path, open_app: Callable[..., Watched]
) -> None:
    watched = open_app(digits_bundle)
    model = re.compile(r"/(tfjs|tflite|golden)/")
    assert any(model.search(urlsplit(url).path) for url in watched.requests)
    del watched.requests[:]
    watched.page.reload()
    watched.page.wait_for_function(STATE, arg="tuned")
    assert [url for url in watched.requests if model.search(urlsplit(url).path)] == []
    assert any(url.endswith("/manifest.json") for url in watched.requests)


def test_axe_finds_nothing(digits_bundle: Path, open_app: Callable[..., Watched]) -> None:
    sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_app(digits_bundle).page
    page.set_input_files("#file", [digit_file(number)[0] for number in (3, 4)])
    page.locator("#rows tr").nth(1).wait_for()
    for scheme, source in (("light", "Image"), ("dark", "Draw")):
        page.emulate_media(color_scheme=scheme)
        page.get_by_text(source, exact=True).click()
        found = sync_playwright.Axe().run(page).response
        assert len(found["passes"]) > 20
        broken = [(rule["id"], [n["html"] for n in rule["nodes"]]) for rule in found["violations"]]
        assert broken == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_does_not_move(
    width: int, digits_bundle: Path, open_page: Callable[..., Watched], web_app: Any
) -> None:
    address = f"{web_app(digits_bundle)}/web/?runtime=tfjs-wasm"
    watched = open_page("about:blank", viewport={"width": width, "height": 844})
    watched.page.add_init_script(
        "window.shift = 0; new PerformanceObserver((list) => { for (const e of list.getEntries())"
        " window.shift += e.value; }).observe({ type: 'layout-shift', buffered: true });"
    )
    watched.page.goto(address)
    watched.page.wait_for_function(STATE, arg="tuned")
    # "Good" by Core Web Vitals is 0.1.
    assert watched.page.evaluate("() => window.shift") < 0.1
    for tried in (width, 320):
        watched.page.set_viewport_size({"width": tried, "height": 844})
        assert watched.page.evaluate("() => document.documentElement.scrollWidth") <= tried


def changed_copy(folder: Path, target: Path, change: Callable[[Path], None]) -> Path:
    copy = Path(shutil.copytree(folder, target))
    change(copy)
    return copy


def flip_a_byte(folder: Path) -> None:
    shard = next((folder / "tfjs/layers").glob("weights-*"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)


def only_saved_model(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["artifacts"] = [a for a in manifest["artifacts"] if a["id"] == "saved_model"]
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip_a_byte, ["weights-", "is changed or damaged"]),
        (lambda folder: (folder / "manifest.json").unlink(), ["annot load manifest.json", "404"]),
        (only_saved_model, ["no file that a browser can run", "packager build"]),
    ],
    ids=["changed", "no manifest", "nothing for browsers"],
)
def test_a_bundle_that_cannot_be_opened_is_explained(
    change: Callable[[Path], None],
    words: list[str],
    digits_bundle: Path,
    tmp_path: Path,
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
) -> None:
    folder = changed_copy(digits_bundle, tmp_path / "bundle", change)
    watched = open_page(f"{web_app(folder)}/web/?runtime=tfjs-wasm")
    watched.page.wait_for_function(STATE, arg="failed")
    notice = watched.page.locator("#notice").inner_text()
    assert all(word in notice for word in words), notice
    assert not [text for text in watched.problems if text.startswith("exception")]


def test_another_origin_must_allow_the_page(
    digits_bundle: Path,
    serve: Callable[..., str],
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
) -> None:
    foreign = f"{serve({'digits': digits_bundle})}/digits/"
    watched = open_page(f"{web_app(digits_bundle)}/web/?bundle={foreign}")
    watched.page.wait_for_function(STATE, arg="failed")
    notice = watched.page.locator("#notice").inner_text()
    assert "Access-Control-Allow-Origin" in notice
    assert "CORS" in notice


def test_a_bundle_of_another_origin_that_allows_the_page(
    digits_bundle: Path,
    serve: Callable[..., str],
    web_app: Callable[[Path], str],
    open_page: Callable[..., Watched],
) -> None:
    foreign = f"{serve({'digits': digits_bundle}, to_all=True)}/digits/"
    watched = open_page(f"{web_app(digits_bundle)}/web/?bundle={foreign}&runtime=tfjs-wasm")
    watched.page.wait_for_function(STATE, arg="tuned")
    wait_for_label(watched, str(sample_label(digits_bundle, 0)))
    hosts = {urlsplit(address).netloc for address in watched.requests if "/golden/" in address}
    assert hosts == {urlsplit(foreign).netloc}


def retold(**changes: Any) -> Callable[[Path], None]:
    """Changes what the manifest says of the model; the artifacts stay as they are."""

    def change(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def test_several_labels_at_once(
    digits_bundle: Path, tmp_path: Path, open_app: Callable[..., Watched]
) -> None:
    samples = json.loads((digits_bundle / "golden/samples.json").read_text())["samples"]
    unsure = max(range(len(samples)), key=lambda i: sorted(samples[i]["outputs"]["digit"])[-2])
    scores = samples[unsure]["outputs"]["digit"]
    ranked = sorted(range(10), key=lambda digit: -scores[digit])
    threshold = 0.9 * scores[ranked[1]]
    present = [str(digit) for digit in ranked if scores[digit] >= threshold]
    assert len(present) >= 2
    change = retold(task="multilabel", threshold=threshold)
    watched = open_app(changed_copy(digits_bundle, tmp_path / "bundle", change))
    watched.page.locator("#samples button").nth(unsure).click()
    wait_for_label(watched, ", ".join(present))
    assert watched.page.locator("#bars .first").count() == len(present)


def test_a_regression_shows_its_values(
    digits_bundle: Path, tmp_path: Path, open_app: Callable[..., Watched]
) -> None:
    folder = changed_copy(digits_bundle, tmp_path / "bundle", retold(task="regression", labels=[]))
    watched = open_app(folder)
    wait_for_label(watched, "10 values")
    (line,) = watched.page.locator("#bars .score").all_inner_texts()
    stored = json.loads((folder / "golden/samples.json").read_text())["samples"][0]["outputs"]
    shown = [float(text) for text in line.removesuffix(", …").split(", ")]
    assert shown == pytest.approx(stored["digit"][:6], rel=1e-4, abs=2e-6)
    assert real_problems(watched) == []


def test_a_photo_of_50_megapixels(digits_bundle: Path, open_app: Callable[..., Watched]) -> None:
    watched = open_app(digits_bundle)
    with loaded(DIGITS / "data/evaluation.npz") as stored:
        pixels, wanted = stored["x"][5].reshape(28, 28), int(stored["y"][5])
    large = np.kron(pixels, np.ones((253, 253), np.uint8))
    assert large.size > 50e6
    file = io.BytesIO()
    Image.fromarray(large).save(file, "png", compress_level=1)
    photo = {"name": "large.png", "mimeType": "image/png", "buffer": file.getvalue()}
    watched.page.set_input_files("#file", [photo])
    wait_for_label(watched, str(wanted))
    assert watched.page.locator("#notice").is_hidden()


def test_a_lost_graphics_device_is_replaced(
    digits_bundle: Path, open_app: Callable[..., Watched]
) -> None:
    watched = open_app(digits_bundle, "tfjs-webgl")
    page = watched.page
    (worker,) = page.workers
    worker.evaluate(
        "() => self.tf.backend().getGPGPUContext().gl.getExtension('WEBGL_lose_context')"
        ".loseContext()"
    )
    page.locator("#notice").wait_for()
    assert "graphics device" in page.locator("#notice").inner_text()
    page.get_by_text("TF.js, WebAssembly", exact=False).first.wait_for()
    page.locator("#samples button").nth(4).click()
    wait_for_label(watched, str(sample_label(digits_bundle, 4)))
