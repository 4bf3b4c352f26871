"""The page and the Markdown of a report, and results that are merged into it."""

import copy
import hashlib
import html.parser
import json
import random
import shutil
import subprocess
import sys

import pytest

from packager import report
from packager.console import human_size
from packager.report import page, results
from tests.conftest import ROOT, packager

pytestmark = pytest.mark.tf

HOSTILE = "<script>alert(1)</script>|`x`\"'&"


@pytest.fixture(scope="module")
def document(digits_bundle):
    return report.read(digits_bundle)


@pytest.fixture
def own(digits_bundle, tmp_path):
    folder = tmp_path / "digits" / "1"
    shutil.copytree(digits_bundle, folder)
    return folder


def device(folder, **more):
    """What a device's verify says, with times."""
    manifest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    entry = {
        "id": "tflite/int8", "status": "passed", "max_abs_diff": 0.25, "threads": 4,
        "latency_ms": {"min": 1.0, "p50": 3.25, "p90": 4.5, "p99": 8.75}, "load_ms": 12.5,
        "peak_memory_bytes": 45_000_000, "tolerance": {"digit": 0.5},
        "values": {"000": {"digit": [1] * 10}},
    }  # fmt: skip
    return {
        "schema": {"name": "packager.device", "version": 1},
        "runner": "edge",
        "runtime": {"name": "ai-edge-litert", "version": "2.3.0"},
        "machine": {"board": "Raspberry Pi 5", "cpu": "Cortex-A76"},
        "bundle": {"name": "digits", "version": 1, "manifest_sha256": manifest},
        "artifacts": [entry],
        **more,
    }


def merge(folder, tmp_path, result):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    return packager("report", folder, "--merge", file)


def test_the_report_holds_what_it_promises(document, digits_bundle):
    measured = document["measured"]
    assert set(measured) == {
        "samples", "differences", "source_accuracy", "confusion", "worst", "pictures",
        "operators", "calibration_ranges", "layers", "layer_names",
    }  # fmt: skip
    assert measured["samples"] == {"count": 1000, "synthetic": False}
    by_id = {a["id"]: a for a in document["artifacts"]}
    for name, entry in by_id.items():
        matrix = measured["confusion"][name]["matrix"]
        assert sum(map(sum, matrix)) == 1000
        right = sum(row[i] for i, row in enumerate(matrix)) / 1000
        assert right == pytest.approx(entry["metrics"]["accuracy"])
    assert measured["source_accuracy"] == pytest.approx(
        by_id["tflite/int8"]["metrics"]["accuracy"] + by_id["tflite/int8"]["metrics"]["drop"]
    )
    worst = measured["worst"]["tflite/int8"]
    assert max(s["largest_diff"] for s in worst) <= by_id["tflite/int8"]["metrics"]["max_abs_diff"]
    assert all(str(s["index"]) in measured["pictures"] for s in worst)
    layers = [entry["layer"] for entry in measured["layers"]["tflite/int8"]]
    assert layers[0] == "stem_conv"
    assert layers[-1] == "digit"
    assert all(0 < e["error"] < 0.2 for e in measured["layers"]["tflite/int8"])
    ranges = {r["layer"]: r for r in measured["calibration_ranges"]}
    assert (ranges["image"]["min"], ranges["image"]["max"]) == (0.0, 1.0)
    assert measured["operators"]["tflite/int8"]["CONV_2D"] == 5
    assert document["command"].startswith("packager build --config")
    assert "calibration.npz" in document["configuration"]
    assert len(document["files"]) > 20
    assert document["manifest_sha256"] == results.manifest_sha256(digits_bundle)


def test_the_file_is_small_and_needs_no_network(digits_bundle):
    text = (digits_bundle / "report/index.html").read_text(encoding="utf-8")
    assert len(text) < 2_000_000
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/", "")


def test_hostile_names_are_shown_as_text(document):
    hostile = copy.deepcopy(document)
    hostile["labels"] = [f"{HOSTILE}{i}" for i in range(10)]
    hostile["name"] = hostile["source"]["file"] = hostile["command"] = HOSTILE
    hostile["warnings"] = [HOSTILE]
    hostile["inputs"][0]["name"] = hostile["outputs"][0]["name"] = HOSTILE
    for entry in hostile["measured"]["layers"]["tflite/int8"]:
        entry["layer"] += HOSTILE
    for entry in hostile["measured"]["calibration_ranges"]:
        entry["layer"] += HOSTILE
    hostile["artifacts"][0]["id"] = HOSTILE
    machine = {"system": HOSTILE}
    entry = {"id": HOSTILE, "status": HOSTILE, "reason": HOSTILE, "p50_ms": 1.0}
    hostile["results"] = [{"runner": HOSTILE, "runtime": {"name": HOSTILE}, "machine": machine,
                           "artifacts": [entry]}]  # fmt: skip
    text = page.render(hostile)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    markdown = page.render_markdown(hostile)
    assert "<script" not in markdown
    assert "|`" not in markdown


def test_thousands_of_labels(document):
    many = copy.deepcopy(document)
    many["labels"] = [f"label {i}" for i in range(5000)]
    most = [{"target": 4000, "answer": 17, "count": 3}]
    many["measured"]["confusion"] = {
        name: {"classes": 5000, "most": most} for name in many["measured"]["confusion"]
    }
    text = page.render(many)
    assert len(text) < 2_000_000
    assert "label 4000" in text
    assert "5000 labels" in text
    assert "label 4999" not in text


def test_a_regression_or_nothing_measured_has_a_page(document):
    bare = {**copy.deepcopy(document), "measured": {}, "labels": [], "warnings": ["w"]}
    for artifact in bare["artifacts"]:
        artifact["metrics"] = {}
        artifact["gate"] = {"status": "skipped", "reason": "not verified", "checks": []}
    text = page.render(bare)
    assert "8 of 8 gates were not measured" in text
    assert "<svg" not in text


def test_markdown_for_a_pull_request(digits_bundle):
    ran = packager("report", digits_bundle, "--format", "md")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "### digits 1: all gates passed"
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 1 + 8
    int8 = next(line for line in rows if line.startswith("| tflite/int8 |"))
    assert "98.80 %" in int8
    assert int8.endswith("passed |")
    assert packager("report", digits_bundle, "--format", "json").json["schema"] == report.SCHEMA


def test_a_device_s_times_are_shown(own, tmp_path):
    ran = merge(own, tmp_path, device(own))
    assert ran.code == 0, ran.err
    document = report.read(own)
    assert "values" not in document["results"][0]["artifacts"][0]
    text = (own / "report/index.html").read_text(encoding="utf-8")
    for shown in (
        "Raspberry Pi 5, Cortex-A76",
        "3.25",
        "4.5",
        "8.75",
        "12.5",
        "45.0 MB",
        "4 threads",
    ):
        assert shown in text
    assert "| 3.25 |" in packager("report", own, "--format", "md").out
    assert packager("verify", own).code == 0
    browser = device(
        own, runner="browser", schema={"name": "packager-browser-results", "version": 1}
    )
    browser["artifacts"] = [{"id": "tfjs/layers", "status": "passed", "p50_ms": 7.5, "runs": 20}]
    assert merge(own, tmp_path, browser).code == 0
    assert len(report.read(own)["results"]) == 2
    assert "7.5" in (own / "report/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ("docs/edge.md", ("Raspberry Pi 4 Model B", "ai-edge-litert 2.3.0", "61.0 MB")),
        ("docs/web.md", ("LiteRT.js, WebAssembly", "16.8 MB", "310")),
    ],
)
def test_what_the_runners_documentation_shows_can_be_merged(own, tmp_path, document, shown):
    example = json.loads((ROOT / document).read_text().split("```json\n")[1].split("```")[0])
    example["bundle"]["manifest_sha256"] = results.manifest_sha256(own)
    ran = merge(own, tmp_path, example)
    assert ran.code == 0, ran.err
    text = (own / "report/index.html").read_text(encoding="utf-8")
    for part in shown:
        assert part in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": {"name": "packager.device", "version": 2}}, "reads up to 1"),
        ({"schema": {"name": "something", "version": 1}}, "unknown schema"),
        ({"schema": 3}, "unknown schema"),
        ({"bundle": {"name": "cats", "version": 4, "manifest_sha256": "0"}}, "bundle cats/4"),
        ({"bundle": {"name": "digits", "version": 1, "manifest_sha256": "0"}}, "of another build"),
        ({"artifacts": [{"id": "tflite/other", "status": "passed"}]}, "other artifacts"),
        ({"artifacts": 3}, "not the JSON answer"),
        ({"machine": None}, "not the JSON answer"),
    ],
)  # fmt: skip
def test_results_that_are_refused(own, tmp_path, change, said):
    before = (own / "report/report.json").read_bytes()
    ran = merge(own, tmp_path, device(own, **change))
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert "fix: " in ran.err
    assert (own / "report/report.json").read_bytes() == before


def test_a_bundle_without_report(own):
    (own / "report/report.json").write_text('{"schema": 99}')
    ran = packager("report", own)
    assert (ran.code, "has schema 99" in ran.err) == (1, True)
    shutil.rmtree(own / "report")
    for command in (["report", own], ["report", own, "--format", "md"], ["bench", own]):
        ran = packager(*command)
        assert (ran.code, "has no report" in ran.err) == (1, True)


def test_without_the_drawing_package(document):
    code = (
        "import sys; sys.modules['vl_convert'] = None\n"
        "import json; from packager.report import page\n"
        "from packager.errors import EnvironmentLacks\n"
        "try:\n page.render(json.load(sys.stdin))\n"
        "except EnvironmentLacks as error: print(error.exit_code, error.message, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(document),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("4 the report's plots need vl-convert-python pip install")


class Cells(html.parser.HTMLParser):
    """The rows of every table of a page by the table's name: the texts of the cells."""

    def __init__(self):
        super().__init__()
        self.tables, self.open = {}, []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get("role") == "region":
            self.rows = self.tables[given.get("aria-label") or given["aria-labelledby"]] = []
        elif tag == "tr" and hasattr(self, "rows"):
            self.rows.append([])
        elif tag in ("td", "th") and hasattr(self, "rows"):
            self.rows[-1].append("")
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.open:
            self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.rows[-1][-1] += data


def spread(value, random):
    """The same document with numbers that occur nowhere else."""
    if isinstance(value, dict):
        return {key: spread(each, random) for key, each in value.items()}
    if isinstance(value, list):
        return [spread(each, random) for each in value]
    return value * random.uniform(0.2, 0.8) if isinstance(value, float) else value


def test_every_number_on_the_page_is_the_report_s(own, tmp_path):
    assert merge(own, tmp_path, device(own)).code == 0
    told = spread(report.read(own), random.Random(7))
    parser = Cells()
    parser.feed(page.render(told))
    tables = {name: [row for row in rows if row][1:] for name, rows in parser.tables.items()}
    measured, artifacts = told["measured"], told["artifacts"]
    percent, number, size = page.percent, page.number, human_size
    base = next(a["size_bytes"] for a in artifacts if a["id"] == "tflite/float32")
    keys = ("accuracy", "drop", "agreement")
    assert [row[:-1] for row in tables.pop("artifacts")] == [
        [
            a["id"], size(a["size_bytes"]), f"{a['size_bytes'] / base:.2f}",
            *(percent(a["metrics"][key]) for key in keys),
            number(a["metrics"]["max_abs_diff"]), number(a["metrics"]["mean_abs_diff"]),
            number(told["results"][0]["artifacts"][0]["latency_ms"]["p50"])
            if a["id"] == "tflite/int8" else "",
        ]
        for a in artifacts
    ]  # fmt: skip
    for name, entries in measured["layers"].items():
        rows = tables.pop(f"Errors by layer of {name}")
        assert rows == [[e["layer"], percent(e["error"])] for e in entries]
    assert tables.pop("Calibrated ranges") == [
        [r["layer"], number(r["min"]), number(r["max"])] for r in measured["calibration_ranges"]
    ]
    of = "Most frequent confusions of "
    shown = [name for name in tables if name.startswith(of)]
    assert len(shown) == 2
    for name in shown:
        assert tables.pop(name) == [
            [told["labels"][m["target"]], told["labels"][m["answer"]], str(m["count"])]
            for m in measured["confusion"][name.removeprefix(of)]["most"]
        ]
    times = "\N{MULTIPLICATION SIGN}"
    assert tables.pop("operators") == [
        [
            a["id"], percent(a["quantization"]["integer_op_share"]),
            ", ".join(a["quantization"]["float_ops"]) or "none",
            ", ".join(f"{n} {times} {op}" for op, n in measured["operators"][a["id"]].items()),
        ]
        for a in artifacts if a["id"] in measured["operators"]
    ]  # fmt: skip
    (entry,) = told["results"][0]["artifacts"]
    times = [number(entry["latency_ms"][key]) for key in ("p50", "p90", "p99")]
    assert tables.pop("machines")[-1][3:] == [
        number(entry["max_abs_diff"]), *times, number(entry["load_ms"]), "45.0 MB",
    ]  # fmt: skip
    assert tables.pop("Checksums") == [
        [path, size(f["bytes"]), f["sha256"]] for path, f in told["files"].items()
    ]
    assert tables.pop("Stages") == [
        [s["name"], str(s["seconds"]), s["detail"]] for s in told["stages"]
    ]
    assert set(tables) == {"ends", "provenance"}
