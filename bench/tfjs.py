"""TF.js formats side by side in one browser page: layers, graph, the stock converter, LiteRT.js.

    python -m bench.tfjs [--rounds 30] [--reuse]

MobileNetV2 at 224 x 224 and examples/digits on the wasm back end, one thread. All models of a table
are loaded into one page of headless Chromium and run in turn, round by round, so that what else the
machine does meets all of them; the ratios count.

`--reuse` keeps the models of the last run, in bench/.work/tfjs. The stock converter has an
environment of its own, beside them.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import environments
from bench.build import MAKE, WORK, timed
from packager.bench.browser import PROGRAMS

ROOT = Path(__file__).parents[1]
LIMIT_MS = 600_000


@dataclass(frozen=True)
class Row:
    """One model of a table: its files, and how the page opens them."""

    name: str
    kind: str
    path: Path

    @property
    def size_bytes(self) -> int:
        """Of all files of the model."""
        folder = self.path.parent
        files = [self.path] if self.kind == "litert" else [*folder.glob("*.bin"), self.path]
        return sum(file.stat().st_size for file in files)


def build(model: Path, name: str, *flags: str) -> Path:
    """Builds a bundle of one artifact; returns its folder."""
    folder = WORK / "tfjs" / name
    if folder.exists():
        return next(folder.iterdir())
    command = [
        sys.executable, "-m", "packager", "build", str(model), "--name", name,
        "--output", str(WORK / "tfjs"), "--force", "--quiet", *flags,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # A gate that failed on random inputs leaves the files beside.
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return next(folder.iterdir())


def stock_graph(python: Path, saved_model: Path, folder: Path) -> Path:
    """Converts a SavedModel with the stock converter of another environment."""
    if folder.exists():
        return folder / "model.json"
    code = "from tensorflowjs.converters import converter; converter.pip_main()"
    flags = ["--input_format=tf_saved_model", "--output_format=tfjs_graph_model"]
    timed([python, "-c", code, *flags, str(saved_model), str(folder)])
    return folder / "model.json"


def rows(model: Path, name: str, stock: Path) -> Iterator[Row]:
    """Makes the models of one table."""
    known = subprocess.run(
        [sys.executable, "-m", "packager", "build", "--help"], capture_output=True, text=True
    ).stdout
    for ending, flags in {"": [], "_unfolded": ["--no-fold"], "_fused": ["--fused-layers"]}.items():
        if all(flag in known for flag in flags):
            folder = build(model, f"{name}_layers{ending}", "--only", "tfjs/layers", *flags)
            title = ", ".join(["layers", *flags])
            yield Row(title, "tfjs", folder / "tfjs" / "layers" / "model.json")
    folder = build(model, f"{name}_graph", "--only", "tfjs/graph", "--only", "saved_model")
    yield Row("graph", "tfjs", folder / "tfjs" / "graph" / "model.json")
    path = stock_graph(stock, folder, WORK / "tfjs" / f"{name}_stock")
    yield Row("graph of the stock converter", "tfjs", path)
    folder = build(model, f"{name}_litert", "--only", "tflite/float32")
    (path,) = (folder / "tflite").iterdir()
    yield Row("LiteRT.js", "litert", path)


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 - the base class has it so
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder on a free port of this machine."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def measure(found: list[Row], shape: list[int], card: dict[str, Any], rounds: int) -> Any:
    """Runs the rows in one page; returns what the page measured, by name."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)))
    models = [
        {
            "name": row.name,
            "kind": row.kind,
            "url": "/" + row.path.relative_to(ROOT).as_posix(),
            "card": card,
        }
        for row in found
    ]
    with served(ROOT) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: print(message.text, file=sys.stderr))
        page.goto(f"{address}/bench/tfjs_page.html")
        page.wait_for_function("window.isReady")
        answer = page.evaluate("arguments => window.measure(...arguments)", [models, shape, rounds])
        browser.close()
    return answer


def table(found: list[Row], answer: Any) -> Iterator[str]:
    """The table as Markdown; differences are those from our graph, as shares of its range."""
    base = answer["graph"]
    reach = max(base["output"]) - min(base["output"])
    yield "| | load ms | first ms | median ms | of our graph's | MB | largest difference |"
    yield "|---|---|---|---|---|---|---|"
    for row in found:
        one = answer[row.name]
        ratios = [a / b for a, b in zip(one["runs"], base["runs"], strict=True)]
        differences = [abs(a - b) for a, b in zip(one["output"], base["output"], strict=True)]
        yield (
            f"| {row.name} | {one['load']:.0f} | {one['first']:.1f} |"
            f" {statistics.median(one['runs']):.2f} | {statistics.median(ratios):.2f} |"
            f" {row.size_bytes / 1e6:.2f} | {max(differences) / reach:.1e} |"
        )


def main() -> None:
    """Prints one table per model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--reuse", action="store_true", help="Keep the models of the last run.")
    given = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if not given.reuse:
        shutil.rmtree(WORK / "tfjs", ignore_errors=True)
    if not (WORK / "mobilenet_v2.keras").exists():
        timed([sys.executable, "-c", MAKE, str(WORK)])
    stock = environments.interpreter("stock", environments.STOCK)
    models = {
        "mobilenet_v2": WORK / "mobilenet_v2.keras",
        "digits": ROOT / "examples" / "digits" / "model.keras",
    }
    for name, model in models.items():
        found = list(rows(model, name, stock))
        layers = next(row.path for row in found if row.name == "layers")
        card = json.loads(layers.read_text())["userDefinedMetadata"]["packager"]
        shape = [size or 1 for size in card["inputs"][0]["shape"]]
        answer = measure(found, shape, card, given.rounds)
        print(f"\n{name}\n", *table(found, answer), sep="\n", flush=True)


if __name__ == "__main__":
    main()
