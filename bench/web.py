"""The web app beside a plain page with TF.js: start, and time per prediction.

    python -m bench.web [--runs 30] [--reuse]

MobileNetV2 at 224 x 224 and examples/digits. The plain page loads the unfolded model with
`tf.loadLayersModel` on the wasm back end; the app runs the bundle of `--with-web` in its worker,
with each runtime and with *auto*. Start: from navigation to the first answer, with an empty cache
and after a reload. `--reuse` keeps the models of the last run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.build import MAKE, WORK, timed
from bench.tfjs import LIMIT_MS, ROOT, build, served
from packager import web
from packager.bench.browser import FLAGS, PROGRAMS

RUNTIMES = ("tfjs-wasm", "litert-wasm:tflite/float32", "litert-wasm:tflite/int8_float_io")
LIBRARY = """async ([runtime, runs, size]) => {
  const { loadBundle } = await import('/web/packager.js');
  const model = await loadBundle('/', { runtime, tune: false });
  if (runtime === 'auto') await model.chooseFastest();
  const image = new ImageData(size, size);
  image.data.forEach((_, i) => { image.data[i] = 128 + 127 * Math.sin(i / 97); });
  const found = { ms: [], whole: [], id: model.runtime.id, threads: model.runtime.threads };
  for (let i = 0; i < runs + 3; i += 1) {
    const start = performance.now();
    const { ms } = await model.predict(model.inputsOf(image));
    if (i < 3) continue;
    found.ms.push(ms);
    found.whole.push(performance.now() - start);
  }
  model.dispose();
  return found;
}"""
ANSWERED = "() => performance.getEntriesByName('packager:first-answer').length > 0"
FIRST = "() => performance.getEntriesByName('packager:first-answer')[0].startTime"


@dataclass(frozen=True)
class Subject:
    """A model: the bundle of the app, the unfolded TF.js model, and the size of its images."""

    name: str
    bundle: Path
    unfolded: Path
    size: int
    shape: str


def subject(name: str, model: Path, size: int, channels: int, calibration: Path) -> Subject:
    """Builds both forms of a model."""
    plain = build(model, f"{name}_unfolded", "--only", "tfjs/layers", "--no-fold")
    flags = ["--preprocess", "0..1" if channels == 1 else "-1..1", "--with-web"]
    flags += ["--only", "tfjs/layers", "--only", "tflite/float32"]
    flags += ["--only", "tflite/int8_float_io", "--calibration", str(calibration)]
    folder = build(model, f"{name}_web", *flags)
    unfolded = plain / "tfjs" / "layers" / "model.json"
    return Subject(name, folder, unfolded, size, f"1,{size},{size},{channels}")


@contextmanager
def fresh_page(browser: Any) -> Iterator[Any]:
    """A page with empty caches."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    yield page
    context.close()


def plain_page(browser: Any, subject: Subject, runs: int) -> dict[str, Any]:
    """Measures the page without packager's code."""
    with served(ROOT) as address, fresh_page(browser) as page:
        path = "/" + subject.unfolded.relative_to(ROOT).as_posix()
        page.goto(f"{address}/bench/web_plain.html?shape={subject.shape}&model={path}")
        page.wait_for_function("window.measure")
        cold = page.evaluate("window.first")
        page.reload()
        page.wait_for_function("window.measure")
        warm = page.evaluate("window.first")
        found = page.evaluate("(runs) => window.measure(runs)", runs)
        return {"cold": cold, "warm": warm, "ms": found, "whole": found}


def app_page(browser: Any, subject: Subject, runtime: str, runs: int) -> dict[str, Any]:
    """Measures the app's start, and its library's predictions."""
    with web.serving(subject.bundle) as address, fresh_page(browser) as page:
        page.goto(f"{address}/web/?runtime={runtime}")
        page.wait_for_function(ANSWERED)
        cold = page.evaluate(FIRST)
        page.wait_for_function("document.documentElement.dataset.state === 'tuned'")
        page.reload()
        page.wait_for_function(ANSWERED)
        warm = page.evaluate(FIRST)
        page.goto(f"{address}/web/example.html")
        found = page.evaluate(LIBRARY, [runtime, runs, subject.size])
        return {"cold": cold, "warm": warm, **found}


def table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table as Markdown; the first row is the plain page."""
    yield "| | cold start ms | warm start ms | model ms | of plain | whole ms | per second |"
    yield "|---|---|---|---|---|---|---|"
    base = statistics.median(next(iter(found.values()))["ms"])
    for name, one in found.items():
        ms, whole = statistics.median(one["ms"]), statistics.median(one["whole"])
        yield (
            f"| {name} | {one['cold']:.0f} | {one['warm']:.0f} | {ms:.2f} | {ms / base:.2f} |"
            f" {whole:.2f} | {1000 / whole:.0f} |"
        )


def code_bytes() -> str:
    """The size of the app's code without runtimes, as it is and compressed."""
    code = {
        name: path.read_bytes()
        for name, path in web.files().items()
        if name.endswith((".js", ".css", ".html"))
        and not name.startswith(("vendor/", "example", "packager-layers"))
    }
    whole = sum(len(content) for content in code.values())
    packed = sum(len(gzip.compress(content)) for content in code.values())
    layers = (web.files()["packager-layers.js"]).read_bytes()
    return (
        f"app code: {whole / 1e3:.1f} kB, {packed / 1e3:.1f} kB compressed as served;"
        f" packager-layers.js, part of the TF.js runtime: {len(layers) / 1e3:.1f} kB,"
        f" {len(gzip.compress(layers)) / 1e3:.1f} kB compressed"
    )


def main() -> None:
    """Prints one table per model."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--reuse", action="store_true", help="Keep the models of the last run.")
    given = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if not given.reuse:
        for path in (WORK / "tfjs").glob("*_web"):
            shutil.rmtree(path)
    if not (WORK / "mobilenet_v2.keras").exists():
        timed([sys.executable, "-c", MAKE, str(WORK)])
    print(code_bytes())
    digits = ROOT / "examples" / "digits"
    subjects = [
        subject("digits", digits / "model.keras", 28, 1, digits / "data" / "calibration.npz"),
        subject("mobilenet_v2", WORK / "mobilenet_v2.keras", 224, 3, WORK / "calibration.npz"),
    ]
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        for one in subjects:
            found = {"plain page": plain_page(browser, one, given.runs)}
            known = json.loads((one.bundle / "manifest.json").read_text())["artifacts"]
            ids = {artifact["id"] for artifact in known}
            for runtime in ("auto", *RUNTIMES):
                if ":" not in runtime or runtime.partition(":")[2] in ids:
                    row = app_page(browser, one, runtime, given.runs)
                    chosen = f"auto: {row['id']}" if runtime == "auto" else runtime
                    found[f"{chosen}, {row.get('threads') or 1} threads"] = row
            print(f"\n{one.name}\n", *table(found), sep="\n", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
