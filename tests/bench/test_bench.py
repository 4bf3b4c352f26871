"""`packager bench` on the digits bundle; times are measured, never judged."""

import shutil

import pytest

from packager import report
from tests.conftest import ROOT, packager

pytestmark = [pytest.mark.tf, pytest.mark.node]

LEGACY = ROOT / ".venv-edge-legacy" / "bin" / "python"
QUICK = ("--runs", "5", "--warm-up", "1", "--seconds", "5")


@pytest.fixture
def own(digits_bundle, tmp_path):
    folder = tmp_path / "digits" / "1"
    shutil.copytree(digits_bundle, folder)
    return folder


def by_runtime(rows):
    return {(row["id"], row["runtime"]["name"]): row for row in rows}


def check_times(row):
    times = row["latency_ms"]
    assert 0 < times["min"] <= times["p50"] <= times["p90"] <= times["p99"]
    assert row["load_ms"] > 0
    assert row["timed"] == 5


@pytest.mark.browser
def test_every_artifact_on_every_runtime(own):
    if not (ROOT / "web/vendor/VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")
    only = ("tflite/float32", "tflite/int8", "saved_model", "tfjs/layers")
    chosen = [flag for name in only for flag in ("--only", name)]
    ran = packager("bench", own, *QUICK, *chosen, "--json")
    assert ran.code == 0, ran.err
    document = ran.json
    rows = by_runtime(document["artifacts"])
    tfjs = [f"tfjs {b} ({p})" for b in ("wasm", "cpu") for p in ("Node", "Chromium")]
    assert set(rows) == {
        ("saved_model", "tensorflow"),
        *((name, "ai-edge-litert") for name in only[:2]),
        *(("tfjs/layers", name) for name in tfjs),
        ("tflite/float32", "LiteRT.js wasm (Chromium)"),
    }
    for (_, runtime), row in rows.items():
        assert row["status"] == "measured", row
        check_times(row)
        assert row["runtime"]["version"]
        memory = "memory_bytes" if "Chromium" in runtime else "peak_memory_bytes"
        least = 1e4 if runtime == "tfjs cpu (Chromium)" else 10e6
        assert least < row[memory] < 10e9
    stored = report.read(own)["results"]
    assert stored == [document]
    page = (own / "report/index.html").read_text(encoding="utf-8")
    int8 = rows["tflite/int8", "ai-edge-litert"]["latency_ms"]
    assert f"{int8['p50']:.3g}" in page
    assert packager("verify", own).code == 0


@pytest.mark.legacy
def test_another_python_and_threads(own):
    if not LEGACY.exists():
        pytest.skip("tflite-runtime has no wheel for Python 3.12 and later")
    before = (own / "report/report.json").read_bytes()
    flags = ("--threads", "1", "--threads", "2", "--only", "tflite/int8", "--no-report", "--json")
    ran = packager("bench", own, *QUICK, *flags, "--python", LEGACY, "--python", "/nowhere/python")
    assert ran.code == 0, ran.err
    assert (own / "report/report.json").read_bytes() == before
    int8 = [row for row in ran.json["artifacts"] if row["id"] == "tflite/int8"]
    measured = [(r["runtime"]["name"], r["threads"]) for r in int8 if r["status"] == "measured"]
    assert measured == [(n, t) for n in ("ai-edge-litert", "tflite-runtime") for t in (1, 2)]
    failed = [r for r in int8 if r["status"] == "failed"]
    assert len(failed) == 2
    assert all("/nowhere/python cannot be started" in r["reason"] for r in failed)
    table = packager("bench", own, *QUICK, "--only", "tflite/int8", "--no-report", "--quiet")
    assert "ai-edge-litert 2.3.0" in table.out
    assert all(len(line) < 200 for line in table.out.splitlines())


def test_a_changed_file_is_not_measured(own):
    path = own / "tflite" / "digits.int8.tflite"
    path.write_bytes(path.read_bytes() + b"x")
    ran = packager("bench", own)
    assert (ran.code, "digits.int8.tflite is changed" in ran.err) == (1, True)


def test_an_artifact_that_is_not_there(own):
    ran = packager("bench", own, "--only", "tflite/int9")
    assert (ran.code, "has no artifact 'tflite/int9'" in ran.err) == (1, True)


def test_a_runtime_that_is_too_old_is_not_measured():
    from packager.bench import timing

    allowed = {"ai-edge-litert": "2.0.3"}
    assert timing.why_not("ai-edge-litert", "2.3.0", allowed) == ""
    assert "older than 2.0.3" in timing.why_not("ai-edge-litert", "1.4.0", allowed)
    assert "not among" in timing.why_not("tflite-runtime", "2.14.0", allowed)


def test_repeats_are_counted_and_limited():
    from packager.bench import timing

    calls = []
    settings = {"warm_up": 2, "runs": 7, "seconds": 60.0}
    assert len(timing.repeat(calls.append, settings)) == 7
    assert calls == [0, 1, *range(7)]
    assert len(timing.repeat(calls.append, {**settings, "seconds": 0.0})) == timing.LEAST_RUNS
