"""Reports of devices, benchmarks and what they choose; streams; lines of JSON."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packager.report import results
from tests.conftest import ROOT

pytestmark = pytest.mark.tf
RUNNER = ROOT / "edge" / "run.py"
TIMES = {"min", "p50", "p90", "p99"}


def check_schema(report, bundle):
    """What docs/edge.md promises of a report."""
    assert report["schema"] == {"name": "packager.device", "version": 1}
    machine = report["machine"]
    for key in ("system", "machine", "board", "cpu", "cpus", "python", "numpy"):
        assert key in machine
    digest = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    assert report["bundle"] == {"name": "digits", "version": 2, "manifest_sha256": digest}
    for entry in report["artifacts"]:
        assert entry["tolerance"]["digit"] > entry["max_abs_diff"] >= 0
        assert entry["load_ms"] > 0
        assert 10_000_000 < entry["peak_memory_bytes"] < 4_000_000_000
        for key in ("latency_ms", "preprocess_ms", "postprocess_ms"):
            times = entry[key]
            assert set(times) == TIMES
            assert 0 < times["min"] <= times["p50"] <= times["p90"] <= times["p99"]


def test_a_report_of_verify(command, bundle):
    report = command("verify", bundle, "--json").json
    check_schema(report, bundle)
    assert [entry["timed"] for entry in report["artifacts"]] == [4] * 4
    results._check_shape(report, Path("device.json"))
    results._check_schema(report, Path("device.json"))


class TestBench:
    def test_rows_and_the_choice(self, program, command, bundle):
        flags = ("--runs", "20", "--threads", "1", "--save")
        answer = program("bench", bundle, *flags, "--json")
        assert answer.code == 0, answer.err
        report = answer.json
        check_schema(report, bundle)
        rows = report["artifacts"]
        assert [row["id"] for row in rows] == [
            f"tflite/{mode}" for mode in ("float32", "int8", "int16x8", "uint8")
        ]
        assert {row["timed"] for row in rows} == {20}
        best = min(rows, key=lambda row: row["latency_ms"]["p50"])
        assert report["fastest"] == {"artifact": best["id"], "threads": 1}
        assert f"fastest: {best['id']}" in answer.err
        info = command("info", bundle, "--json").json
        assert (info["default"], info["threads"], info["why"]) == (best["id"], 1, "saved by bench")
        # The choice is outside of what the hashes cover.
        assert command("verify", bundle).json["files"]["problems"] == []

    def test_a_choice_for_another_machine_or_bundle(self, runner, command, bundle):
        opened = runner.open_target(str(bundle))
        kept = {"artifact": "tflite/uint8", "threads": 2}
        good = {**kept, "bundle": opened.identity(), "machine": runner.machine()}
        path = bundle / runner.CHOICE
        path.parent.mkdir()
        other = {**good, "machine": {**runner.machine(), "board": "another"}}
        for text, default, threads in (
            (json.dumps(good), "tflite/uint8", 2),
            (json.dumps(other), "tflite/int8", 1),
            (json.dumps({**good, "bundle": {}}), "tflite/int8", 1),
            ("{", "tflite/int8", 1),
            ("[]", "tflite/int8", 1),
        ):
            path.write_text(text)
            info = command("info", bundle, "--json").json
            assert (info["default"], info["threads"]) == (default, threads), text
        path.write_text(json.dumps(good))
        assert command("info", bundle, "--threads", "3", "--json").json["threads"] == 3
        flags = ("--artifact", "tflite/float32", "--json")
        assert command("info", bundle, *flags).json["default"] == "tflite/float32"

    def test_a_wrong_artifact_is_not_chosen(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.pop("files"))
        path = bundle / "golden/samples.json"
        stored = json.loads(path.read_text())
        stored["samples"][0]["artifacts"]["tflite/float32"]["digit"][0] += 1
        path.write_text(json.dumps(stored))
        flags = ("--runs", "2", "--threads", "1", "--artifact", "tflite/float32")
        answer = command("bench", bundle, *flags, "--save", "--json")
        assert answer.code == 1
        assert "fastest" not in answer.json
        assert answer.json["artifacts"][0]["status"] == "failed"
        assert not (bundle / "report").exists()

    def test_a_process_that_dies_is_one_row(self, command, bundle, monkeypatch):
        real = subprocess.run

        def run(argv, **options):
            code = "import os; os.abort()"
            broken = "tflite/int8" in argv
            return real([sys.executable, "-c", code] if broken else argv, **options)

        monkeypatch.setattr(subprocess, "run", run)
        answer = command("bench", bundle, "--threads", "1", "--json")
        by_id = {entry["id"]: entry for entry in answer.json["artifacts"]}
        assert by_id["tflite/int8"]["status"] == "failed"
        assert "-6" in by_id["tflite/int8"]["reason"]
        assert by_id["tflite/uint8"]["status"] == "passed"
        assert by_id["tflite/uint8"]["timed"] == 100


class TestStreams:
    def test_blocks_of_a_stream_keep_the_state(self, command, built, tmp_path):
        """Two blocks of a stream give what one sequence of both gives; reset ones do not."""
        with np.load(built / "loose/lstm.npz") as stored:
            x = stored["x"]
        files = []
        for number in range(2):
            files.append(tmp_path / f"{number}.npy")
            np.save(files[-1], x[0])
        once = command("predict", built / "loose/lstm.tflite", *files, "--json").lines
        assert once[0]["outputs"] == once[1]["outputs"]
        stream = command(
            "predict", built / "loose/lstm.tflite", *files, "--stateful", "--json"
        ).lines
        assert stream[0]["outputs"] == once[0]["outputs"]
        difference = np.subtract(stream[1]["outputs"]["state"], once[1]["outputs"]["state"])
        assert np.abs(difference).max() > 1e-3


class TestLines:
    def test_json_on_standard_input(self, program, built, tmp_path):
        np.save(tmp_path / "b.npy", np.array([1, 1, 1, 1], np.float32))
        lines = [
            {"a": [1, 2, 3, 4], "b": [10, 20, 30, 40]},
            {"a": [1, 2, 3, 4], "b": str(tmp_path / "b.npy")},
            {"a": [1, 2, 3, 4]},
            [1, 2],
            {"a": [1, [2]], "b": [1, 1, 1, 1]},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines) + "{not json\n"
        answer = program("predict", built / "loose/two.tflite", "-", "--json", stdin=text)
        assert answer.code == 1
        found = answer.lines
        assert found[0]["outputs"] == {"total": 290.0, "double": [2.0, 4.0, 6.0, 8.0]}
        assert found[1]["outputs"]["total"] == 2.0
        assert [line["file"] for line in found] == [f"line {n}" for n in range(1, 7)]
        for line, text in zip(
            found[2:],
            ["input 'b' is missing", "the model takes a, b", "no array of numbers", "not JSON"],
            strict=True,
        ):
            assert text in line["error"]
        assert "Traceback" not in answer.err

    def test_the_only_input_needs_no_name(self, program, bundle):
        rows = np.zeros((12, 12, 1)).tolist()
        answer = program("predict", bundle, "-", "--json", stdin=json.dumps(rows) + "\n")
        assert answer.code == 0, answer.err
        assert len(answer.lines[0]["top"]) == 3
