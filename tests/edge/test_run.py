"""The edge runner: info, predict, verify and run on real .tflite files."""

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packager import preprocess as reference
from packager import signing

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "edge" / "run.py"
MODES = ["float32", "int8", "int16x8", "uint8"]
BEGIN, END = "# ---- preprocessing: begin", "# ---- preprocessing: end"

pytestmark = pytest.mark.tf


def photo(path, size=(30, 20), seed=0, **options):
    shape = (size[1] // 4 + 1, size[0] // 4 + 1, 3)
    coarse = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, **options)
    return path


def samples_of(bundle):
    return json.loads((bundle / "golden/samples.json").read_text())


def with_runtime(content, runtime):
    """Writes `runtime` into the card of a .tflite file, in the place of its labels and tools."""
    start = content.index(b'{"schema"')
    length = int.from_bytes(content[start - 4 : start], "little")
    card = json.loads(content[start : start + length])
    card = {k: v for k, v in card.items() if k not in ("labels", "tools", "threshold")}
    text = json.dumps({**card, "runtime": runtime}).encode()
    assert len(text) <= length
    return content[:start] + text.ljust(length) + content[start + length :]


class TestText:
    def test_the_preprocessing_is_the_reference_text(self):
        texts = []
        for path in (RUNNER, Path(reference.__file__)):
            text = path.read_text()
            texts.append(text[text.index(BEGIN) : text.index(END)])
        assert texts[0] == texts[1]

    def test_python_3_9_reads_it_and_it_needs_no_package_of_ours(self):
        tree = ast.parse(RUNNER.read_text(), feature_version=(3, 9))
        names = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        foreign = {name.split(".")[0] for name in names} - sys.stdlib_module_names
        # cryptography only for --key.
        assert foreign == {"numpy", "PIL", "cryptography"}

    def test_the_oldest_interpreter_is_one_number(self):
        """ai-edge-litert 1.2.0 loads float16 files and computes something else."""
        extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (wanted,) = extra["optional-dependencies"]["edge"]
        assert wanted == "ai-edge-litert>=2.0.3"
        assert f'# dependencies = ["{wanted}",' in RUNNER.read_text()
        assert f"\n{wanted};" in (ROOT / "edge/requirements.txt").read_text()

    def test_its_length_is_limited(self):
        """One file that is read from top to bottom: under 1,000 lines of code."""
        text = RUNNER.read_text()
        told = (ast.Module, ast.FunctionDef, ast.ClassDef)
        documented = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, told) and ast.get_docstring(node)
            for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
        }
        blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        code = {
            line
            for token in tokens
            if token.type not in (*blank, tokenize.ENDMARKER)
            for line in range(token.start[0], token.end[0] + 1)
        }
        assert 900 < len(code - documented) < 1000


class TestVerify:
    def test_every_artifact_gives_what_a_bare_script_gives(self, program, bundle):
        answer = program("verify", bundle.parent)
        assert answer.code == 0, answer.err
        report = answer.json
        assert report["runner"] == "edge"
        assert report["runtime"]["name"] == "ai-edge-litert"
        assert report["machine"]["cpus"] == os.cpu_count()
        assert report["files"] == {"checked": 10, "problems": []}
        assert [entry["id"] for entry in report["artifacts"]] == [f"tflite/{m}" for m in MODES]
        for entry in report["artifacts"]:
            assert (entry["status"], entry["samples"], entry["reason"]) == ("passed", 4, "")
            assert entry["max_abs_diff"] <= 1e-6

    def test_recorded_values_are_close_to_the_source_model(self, command, bundle, tmp_path):
        answer = command("verify", bundle, "--record", tmp_path / "record.json")
        assert answer.code == 0
        record = json.loads((tmp_path / "record.json").read_text())
        allowed = {"float32": 1e-5, "int16x8": 0.01, "int8": 0.05, "uint8": 0.05}
        for sample in samples_of(bundle)["samples"]:
            source = np.array(sample["outputs"]["digit"])
            assert source.max() > 0.3
            for mode, limit in allowed.items():
                values = record[f"tflite/{mode}"][sample["id"]]["digit"]
                assert np.abs(np.array(values) - source).max() < limit

    def test_only_the_wanted_artifact(self, command, bundle):
        answer = command("verify", bundle, "--artifact", "tflite/int8", "--json")
        assert [entry["id"] for entry in answer.json["artifacts"]] == ["tflite/int8"]
        answer = command("verify", bundle, "--artifact", "tflite/int4")
        assert answer.code == 2
        assert "tflite/int16x8" in answer.err

    @pytest.mark.parametrize("changed", ["tflite/digits.int8.tflite", "golden/001.image.png"])
    def test_one_changed_byte_is_named(self, command, bundle, changed):
        content = bytearray((bundle / changed).read_bytes())
        content[len(content) // 2] ^= 1
        (bundle / changed).write_bytes(content)
        answer = command("verify", bundle)
        assert answer.code == 1
        assert answer.json["files"]["problems"] == [{"path": changed, "problem": "changed"}]
        by_id = {entry["id"]: entry for entry in answer.json["artifacts"]}
        if changed.endswith(".tflite"):
            assert by_id["tflite/int8"]["status"] == "failed"
            assert "was not run" in by_id["tflite/int8"]["reason"]
            assert by_id["tflite/float32"]["status"] == "passed"

    def test_a_missing_file_is_named(self, command, bundle):
        (bundle / "tflite/digits.uint8.tflite").unlink()
        answer = command("verify", bundle)
        assert answer.code == 1
        problem = {"path": "tflite/digits.uint8.tflite", "problem": "missing"}
        assert answer.json["files"]["problems"] == [problem]

    def test_a_sample_outside_its_tolerance(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.pop("files"))
        stored = samples_of(bundle)
        stored["samples"][2]["artifacts"]["tflite/float32"]["digit"][3] += 0.25
        (bundle / "golden/samples.json").write_text(json.dumps(stored))
        answer = command("verify", bundle)
        assert answer.code == 3
        entry = answer.json["artifacts"][0]
        assert (entry["status"], entry["worst_sample"]) == ("failed", "002")
        assert entry["max_abs_diff"] == pytest.approx(0.25, abs=1e-5)
        assert "sample 002: output digit differs by 0.25, allowed 1e-06" in entry["reason"]
        assert answer.json["artifacts"][1]["status"] == "passed"

    def test_a_bundle_that_is_being_built(self, command, bundle, change_manifest, tmp_path):
        change_manifest(lambda manifest: manifest.pop("files"))
        stored = samples_of(bundle)
        for sample in stored["samples"]:
            sample["artifacts"] = {}
        stored.pop("tolerances")
        (bundle / "golden/samples.json").write_text(json.dumps(stored))
        answer = command("verify", bundle, "--record", tmp_path / "values.json")
        assert answer.code == 0
        assert answer.json["files"]["checked"] == 0
        assert {entry["status"] for entry in answer.json["artifacts"]} == {"recorded"}
        record = json.loads((tmp_path / "values.json").read_text())
        assert len(record["tflite/int8"]["003"]["digit"]) == 5

    def test_a_sample_that_cannot_be_run_is_no_answer_about_tolerances(
        self, command, bundle, change_manifest
    ):
        change_manifest(lambda manifest: manifest.pop("files"))
        (bundle / "golden/003.image.png").write_bytes(b"no picture")
        answer = command("verify", bundle, "--artifact", "tflite/int8")
        assert answer.code == 1
        (entry,) = answer.json["artifacts"]
        assert (entry["status"], entry["samples"]) == ("failed", 0)
        assert "003.image.png" in entry["reason"]

    def test_npy_samples_are_the_models_input(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.pop("files"))
        declared = json.loads((bundle / "manifest.json").read_text())["inputs"][0]
        stored = samples_of(bundle)
        for sample in stored["samples"]:
            picture = bundle / sample["inputs"]["image"]
            np.save(picture.with_suffix(".npy"), reference.preprocess(picture, declared))
            sample["inputs"]["image"] = sample["inputs"]["image"].replace(".png", ".npy")
        (bundle / "golden/samples.json").write_text(json.dumps(stored))
        answer = command("verify", bundle)
        assert answer.code == 0
        assert {entry["status"] for entry in answer.json["artifacts"]} == {"passed"}

    def test_a_truncated_model_without_hashes(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.pop("files"))
        path = bundle / "tflite/digits.float32.tflite"
        path.write_bytes(path.read_bytes()[:3000])
        answer = command("verify", bundle)
        assert answer.code == 1
        entry = answer.json["artifacts"][0]
        assert entry["status"] == "failed"
        assert "ai-edge-litert" in entry["reason"] and "cannot load it" in entry["reason"]
        assert answer.json["artifacts"][1]["status"] == "passed"

    def test_a_package_that_is_not_listed_is_not_used(self, command, bundle, change_manifest):
        def edit(manifest):
            manifest["artifacts"][0]["runtime"]["min_version"] = {"tflite-runtime": "2.14.0"}

        change_manifest(edit)
        answer = command("verify", bundle, "--runtime", "ai-edge-litert")
        assert answer.code == 0
        first, second = answer.json["artifacts"][:2]
        assert first["status"] == "skipped"
        assert "was not seen to give right numbers" in first["reason"]
        assert 'pip install "tflite-runtime>=2.14.0" "numpy<2"' in first["reason"]
        assert second["status"] == "passed"


class TestConfinement:
    """A manifest that names files outside its bundle gets nothing read or run."""

    @pytest.fixture
    def escape(self, bundle, change_manifest, request):
        """Moves a file of the bundle out of it and returns a name that leads to it."""
        change_manifest(lambda manifest: manifest.pop("files"))

        def move(name):
            outside = bundle.parent.parent / Path(name).name
            (bundle / name).rename(outside)
            (bundle / "link").mkdir()
            (bundle / "link" / outside.name).symlink_to(outside)
            ways = {
                "absolute": str(outside),
                "dots": f"../../{outside.name}",
                "link": f"link/{outside.name}",
            }
            assert (bundle / ways[request.param]).is_file()
            return ways[request.param]

        return move

    def edit_samples(self, bundle, edit):
        stored = samples_of(bundle)
        edit(stored)
        (bundle / "golden/samples.json").write_text(json.dumps(stored))

    ways = pytest.mark.parametrize("escape", ["absolute", "dots", "link"], indirect=True)

    @ways
    def test_an_artifact(self, command, bundle, change_manifest, escape):
        name = escape("tflite/digits.float32.tflite")
        change_manifest(lambda manifest: manifest["artifacts"][0].update(path=name))
        picture = bundle / "golden/000.image.png"
        chosen = ("--artifact", "tflite/float32")
        for answer in (
            command("predict", bundle, picture, *chosen),
            command("run", bundle, "--inputs", bundle, "--outputs", bundle, *chosen),
            command("info", bundle, *chosen),
        ):
            assert (answer.code, answer.out) == (1, "")
            assert "leads out of the bundle" in answer.err
        answer = command("verify", bundle)
        assert answer.code == 1
        first, second = answer.json["artifacts"][:2]
        assert (first["status"], first["samples"]) == ("failed", 0)
        assert "leads out of the bundle" in first["reason"]
        assert second["status"] == "passed"

    @ways
    @pytest.mark.parametrize("suffix", [".png", ".npy"])
    def test_a_golden_input(self, command, bundle, escape, suffix):
        declared = json.loads((bundle / "manifest.json").read_text())["inputs"][0]
        picture = bundle / "golden/001.image.png"
        np.save(picture.with_suffix(".npy"), reference.preprocess(picture, declared))
        name = escape(f"golden/001.image{suffix}")
        self.edit_samples(bundle, lambda s: s["samples"][1]["inputs"].update(image=name))
        answer = command("verify", bundle)
        assert answer.code == 1
        for entry in answer.json["artifacts"]:
            assert (entry["status"], entry["samples"]) == ("failed", 0)
            assert "leads out of the bundle" in entry["reason"]

    @ways
    def test_stored_values(self, command, bundle, escape):
        name = escape("golden/outputs/int8.digit.npy")
        stored = {"digit": {"npy": name, "index": 0}}
        self.edit_samples(
            bundle, lambda s: s["samples"][0]["artifacts"].update({"tflite/int8": stored})
        )
        answer = command("verify", bundle, "--artifact", "tflite/int8")
        assert answer.code == 1
        assert "leads out of the bundle" in answer.json["artifacts"][0]["reason"]

    @ways
    def test_the_list_of_samples(self, command, bundle, change_manifest, escape):
        name = escape("golden/samples.json")
        change_manifest(lambda manifest: manifest["golden"].update(path=name))
        answer = command("verify", bundle)
        assert (answer.code, answer.out) == (1, "")
        assert "leads out of the bundle" in answer.err

    @ways
    def test_a_listed_file(self, command, bundle, change_manifest, escape):
        name = escape("tflite/digits.uint8.tflite")
        listed = {name: {"bytes": 1, "sha256": "0" * 64}}
        change_manifest(lambda manifest: manifest.update(files=listed))
        answer = command("verify", bundle, "--artifact", "tflite/int8")
        assert answer.code == 1
        (problem,) = answer.json["files"]["problems"]
        assert problem["path"] == name
        assert "leads out of the bundle" in problem["problem"]

    def test_a_bundle_behind_a_link_is_one(self, command, bundle):
        (bundle.parent / "newest").symlink_to(bundle)
        assert command("verify", bundle.parent / "newest").code == 0

    def test_names_of_tensors_do_not_become_paths(self, command, bundle, change_manifest, tmp_path):
        change_manifest(lambda manifest: manifest["outputs"][0].update(name="../stolen"))
        np.save(tmp_path / "image.npy", np.zeros((1, 12, 12, 1), np.float32))
        answer = command("run", bundle, "--inputs", tmp_path, "--outputs", tmp_path / "out")
        assert answer.code == 1
        assert "'../stolen' is the name of a tensor" in answer.err
        assert not list(tmp_path.rglob("*stolen*"))


class TestRuntimeChoice:
    def test_too_old_a_version_is_refused_before_loading(self, command, bundle, change_manifest):
        def edit(manifest):
            for artifact in manifest["artifacts"][:4]:
                artifact["runtime"]["min_version"] = {"ai-edge-litert": "99.1"}
                (bundle / artifact["path"]).write_bytes(b"TFL3 would crash an interpreter")

        change_manifest(edit)
        picture = photo(bundle / "a.png")
        answer = command("predict", bundle, picture, "--runtime", "ai-edge-litert")
        assert answer.code == 4
        assert "is older than 99.1" in answer.err
        assert 'python -m pip install "ai-edge-litert>=99.1"' in answer.err
        assert command("verify", bundle).code == 1
        change_manifest(lambda manifest: manifest.pop("files"))
        assert command("verify", bundle).code == 4

    def test_a_package_that_is_missing(self, command, bundle):
        answer = command("predict", bundle, "x.png", "--runtime", "tflite-runtime")
        assert answer.code == 4
        assert "tflite-runtime is not installed" in answer.err

    def test_a_package_for_numpy_1_beside_numpy_2(self, runner, monkeypatch):
        monkeypatch.setattr(runner.np, "__version__", "2.1.0")
        allowed = {"tflite-runtime": "2.14.0", "ai-edge-litert": "1.0.1"}
        assert "needs numpy<2" in runner.why_not("tflite-runtime", "2.14.0", allowed)
        assert "needs numpy<2" in runner.why_not("ai-edge-litert", "1.0.1", allowed)
        assert runner.why_not("ai-edge-litert", "1.4.0", allowed) == ""
        monkeypatch.setattr(runner.np, "__version__", "1.26.4")
        assert runner.why_not("tflite-runtime", "2.14.0", allowed) == ""

    def test_versions_are_numbers(self, runner):
        assert runner.release("2.10.0") > runner.release("2.9.1")
        assert runner.release("2.20.0.dev20250409") == (2, 20, 0)
        assert runner.release("") < runner.release("0.1")

    def test_the_next_package_is_used_and_said(self, runner, monkeypatch, capsys):
        versions = {"ai-edge-litert": "1.0.0", "tensorflow": "2.21.0"}
        monkeypatch.setattr(runner, "installed_version", versions.get)
        artifact = {
            "id": "tflite/int8",
            "runtime": {"min_version": {"ai-edge-litert": "1.4.0", "tensorflow": "2.16"}},
        }
        chosen = runner.choose_runtime(artifact, None)
        assert chosen == {"name": "tensorflow", "version": "2.21.0"}
        assert "ai-edge-litert 1.0.0 is older than 1.4.0" in capsys.readouterr().err

    def test_xnnpack_failures_are_retried_without_it(self, runner, built, monkeypatch, capsys):
        module = runner.importlib.import_module(runner.RUNTIMES["ai-edge-litert"])

        class Failing(module.Interpreter):
            def __init__(self, **options):
                if options["experimental_op_resolver_type"] == module.OpResolverType.AUTO:
                    raise RuntimeError("failed to create XNNPACK runtime")
                super().__init__(**options)

        monkeypatch.setattr(module, "Interpreter", Failing)
        runtime = {"name": "ai-edge-litert", "version": "2"}
        path = built / "digits/2/tflite/digits.int8.tflite"
        args = runner.parse(["info", str(path)])
        assert runner.load_interpreter(runtime, path, args).get_signature_list()
        assert "trying the plain kernels" in capsys.readouterr().err

    def test_without_any_interpreter(self, program, bundle):
        code = (
            "import sys, runpy\n"
            "for name in ('ai_edge_litert', 'tflite_runtime', 'tensorflow'):\n"
            "    sys.modules[name] = None\n"
            "import importlib.util as u\n"
            "find = u.find_spec\n"
            "u.find_spec = lambda name: None if name in sys.modules and "
            "sys.modules[name] is None else find(name)\n"
            "sys.argv = sys.argv[1:]\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        answer = program("verify", bundle, prefix=("-c", code))
        assert answer.code == 4
        assert answer.json["runtime"] is None
        assert "none of ai-edge-litert, tflite-runtime, tensorflow is installed" in answer.err

    def test_without_pillow(self, runner, command, bundle, monkeypatch):
        monkeypatch.setattr(runner, "Image", None)
        answer = command("predict", bundle, bundle / "golden")
        assert answer.code == 4
        assert "python -m pip install pillow" in answer.err
        answer = command("verify", bundle)
        assert answer.code == 4
        assert {entry["status"] for entry in answer.json["artifacts"]} == {"skipped"}


class TestInfo:
    def test_bundle(self, command, bundle):
        report = command("info", bundle.parent, "--json").json
        assert (report["name"], report["version"]) == ("digits", 2)
        assert report["default"] == "tflite/int8"
        assert report["labels"][4] == "four"
        sizes = [entry["size_bytes"] for entry in report["artifacts"]]
        assert sizes == [(bundle / f"tflite/digits.{m}.tflite").stat().st_size for m in MODES]
        assert report["artifacts"][0]["runtime"]["name"] == "ai-edge-litert"

    def test_for_people(self, command, bundle):
        answer = command("info", bundle)
        assert answer.code == 0
        assert "pillow:bilinear" in answer.out and "tflite/int16x8" in answer.out

    def test_the_newest_version_is_the_highest_number(self, command, bundle):
        for version in ("10", "9", "latest", ".11-temporary"):
            shutil.copytree(bundle, bundle.parent / version)
        manifest = json.loads((bundle / "manifest.json").read_text())
        manifest["version"] = 10
        (bundle.parent / "10/manifest.json").write_text(json.dumps(manifest))
        assert command("info", bundle.parent, "--json").json["version"] == 10

    def test_a_failed_gate_takes_float32(self, command, bundle, change_manifest):
        def edit(manifest):
            manifest["artifacts"][1]["gate"] = {"status": "failed"}

        change_manifest(edit)
        assert command("info", bundle, "--json").json["default"] == "tflite/float32"

    def test_the_card_of_a_lone_file(self, command, bundle, tmp_path):
        lone = shutil.copy(bundle / "tflite/digits.int8.tflite", tmp_path / "lone.tflite")
        report = command("info", lone, "--json").json
        assert report["inputs"][0]["image"]["fit"] == "crop"
        assert report["labels"][0] == "zero"
        assert report["artifacts"][0]["id"] == "lone.tflite"

    def test_a_lone_file_is_run_by_what_its_card_lists(self, command, bundle, tmp_path):
        """The card of a lone file is the only place that can refuse an old interpreter."""
        content = (bundle / "tflite/digits.int8.tflite").read_bytes()
        lone = tmp_path / "lone.tflite"
        picture = bundle / "golden/000.image.png"
        for oldest, code in (("2.0.3", 0), ("99.1", 4)):
            runtime = {"kind": "tflite", "min_version": {"ai-edge-litert": oldest}}
            lone.write_bytes(with_runtime(content, runtime))
            answer = command("predict", lone, picture, "--json")
            assert answer.code == code
            assert ("is older than 99.1" in answer.err) == (code == 4)
            found = command("info", lone, "--json").json["artifacts"][0]["runtime"]
            assert ("problem" in found) == (code == 4)

    def test_a_link_to_a_lone_file(self, command, bundle, tmp_path):
        content = (bundle / "tflite/digits.int8.tflite").read_bytes()
        (tmp_path / "store").mkdir()
        (tmp_path / "store/a1b2").write_bytes(content)
        (tmp_path / "model.tflite").symlink_to(tmp_path / "store/a1b2")
        report = command("info", tmp_path / "model.tflite", "--json").json
        assert report["artifacts"][0]["id"] == "model.tflite"
        assert report["artifacts"][0]["size_bytes"] == len(content)

    def test_a_file_without_a_card(self, command, built):
        answer = command("info", built / "loose/two.tflite")
        assert answer.code == 0
        assert "no card in this file" in answer.err


class TestPredict:
    def test_label_and_scores(self, command, bundle):
        stored = samples_of(bundle)["samples"]
        for mode in MODES:
            answer = command(
                "predict", bundle, bundle / "golden", "--artifact", f"tflite/{mode}", "--json"
            )
            assert answer.code == 0
            for line, sample in zip(answer.lines, stored, strict=True):
                assert line["file"].endswith(sample["inputs"]["image"])
                source = np.array(sample["outputs"]["digit"])
                scores = [entry["score"] for entry in line["top"]]
                assert len(scores) == 3 and scores == sorted(scores, reverse=True)
                best = int(source.argmax())
                assert (line["class"], line["label"]) == (best, line["top"][0]["label"])
                assert line["score"] == pytest.approx(source[best], abs=0.05)

    def test_a_lone_file_answers_as_the_bundle(self, command, bundle, tmp_path):
        lone = shutil.copy(bundle / "tflite/digits.uint8.tflite", tmp_path / "lone.tflite")
        picture = bundle / "golden/002.image.png"
        answers = [
            command("predict", *target, picture, "--json").lines
            for target in ([lone], [bundle, "--artifact", "tflite/uint8"])
        ]
        assert answers[0] == answers[1]
        assert answers[0][0]["label"] == "three"

    def test_for_people_and_top(self, command, bundle):
        answer = command("predict", bundle, bundle / "golden/000.image.png", "--top", "2")
        path, _, rest = answer.out.strip().partition(": ")
        assert path.endswith("000.image.png")
        assert [part.split()[0] for part in rest.split(", ")] == ["three", "two"]

    def test_an_unreadable_file_among_good_ones(self, command, bundle, tmp_path):
        good, bad = photo(tmp_path / "good.jpg"), tmp_path / "bad.jpg"
        bad.write_text("no picture")
        other = photo(tmp_path / "other.png", seed=1)
        answer = command("predict", bundle, good, bad, tmp_path / "none.png", other, "--json")
        assert answer.code == 1
        assert [Path(line["file"]).name for line in answer.lines if "label" in line] == [
            "good.jpg",
            "other.png",
        ]
        assert "bad.jpg: cannot be read" in answer.lines[1]["error"]
        assert "none.png" in answer.lines[2]["error"]
        assert "Traceback" not in answer.err

    def test_a_rotated_photo_answers_as_the_upright_one(self, command, bundle, tmp_path):
        upright = photo(tmp_path / "upright.png", size=(30, 20), seed=4)
        exif = Image.Exif()
        exif[0x0112] = 6
        with Image.open(upright) as picture:
            turned = picture.transpose(Image.Transpose.ROTATE_90)
        turned.save(tmp_path / "turned.png", exif=exif)
        turned.save(tmp_path / "sideways.png")
        names = ["upright.png", "turned.png", "sideways.png"]
        lines = command("predict", bundle, *[tmp_path / n for n in names], "--json").lines
        scores = [[entry["score"] for entry in line["top"]] for line in lines]
        assert scores[0] == scores[1] != scores[2]

    def test_paths_on_standard_input(self, program, bundle, tmp_path):
        names = [photo(tmp_path / f"{i} x.png", seed=i) for i in range(3)]
        text = f"{names[2]}\r\n\n{names[0]}\n"
        answer = program("predict", bundle, "-", "--json", stdin=text)
        assert answer.code == 0, answer.err
        assert [line["file"] for line in answer.lines] == [str(names[2]), str(names[0])]

    def test_arrays(self, command, bundle, tmp_path):
        """uint8 arrays are pixels, float arrays are the model's input."""
        picture = bundle / "golden/000.image.png"
        declared = json.loads((bundle / "manifest.json").read_text())["inputs"][0]
        np.save(tmp_path / "pixels.npy", np.asarray(Image.open(picture)))
        np.save(tmp_path / "tensor.npy", reference.preprocess(picture, declared))
        np.save(tmp_path / "double.npy", reference.preprocess(picture, declared).astype(float))
        np.save(tmp_path / "wrong.npy", np.zeros((3, 3), np.float32))
        np.save(tmp_path / "ints.npy", np.zeros((12, 12, 1), np.int64))
        names = ["pixels.npy", "tensor.npy", "double.npy", "wrong.npy", "ints.npy"]
        answer = command("predict", bundle, picture, *[tmp_path / n for n in names], "--json")
        assert answer.code == 1
        first = answer.lines[0]["top"]
        assert [line["top"] for line in answer.lines[1:4]] == [first] * 3
        assert "expected int8 [12, 12, 1], received float32 [3, 3]" in answer.lines[4]["error"]
        assert "received int64" in answer.lines[5]["error"]

    def test_inputs_and_outputs_are_bound_by_name(self, command, built, tmp_path):
        a = np.array([1, 2, 3, 4], np.float32)
        b = np.array([10, 20, 30, 40], np.float32)
        np.savez(tmp_path / "both.npz", b=b, a=a)
        np.savez(tmp_path / "half.npz", a=a)
        np.save(tmp_path / "one.npy", a)
        names = [tmp_path / name for name in ("both.npz", "half.npz", "one.npy")]
        answer = command("predict", built / "loose/two.tflite", *names, "--json")
        assert answer.code == 1
        assert answer.lines[0]["outputs"] == {"total": 290.0, "double": [2.0, 4.0, 6.0, 8.0]}
        assert "input 'b' is missing" in answer.lines[1]["error"]
        assert "the model takes a, b" in answer.lines[2]["error"]

    def test_an_empty_folder_is_reported(self, command, bundle, tmp_path):
        (tmp_path / "empty").mkdir()
        answer = command("predict", bundle, tmp_path / "empty")
        assert answer.code == 1
        assert "empty" in answer.err


class TestAnswers:
    def answer(self, runner, values, top=3, **facts):
        facts = {"task": "classification", "labels": [], "threshold": None, **facts}
        facts["outputs"] = [{"name": "y", "activation": facts.pop("activation", "none")}]
        return runner.answer({"y": np.array(values, np.float32)}, facts, top)

    def test_logits_become_a_softmax(self, runner):
        found = self.answer(runner, [1.0, 3.0, 2.0], activation="logits", labels=["a", "b", "c"])
        powers = np.exp([1.0, 3.0, 2.0])
        assert found["label"] == "b"
        assert found["score"] == pytest.approx(powers[1] / powers.sum())
        assert [entry["class"] for entry in found["top"]] == [1, 2, 0]

    def test_large_logits_do_not_overflow(self, runner):
        assert self.answer(runner, [800.0, 900.0], activation="logits")["score"] == 1.0
        found = self.answer(runner, [-900.0], task="binary", activation="logits")
        assert (found["score"], found["class"]) == (0.0, 0)

    def test_binary(self, runner):
        facts = {"task": "binary", "threshold": 0.7}
        two = self.answer(runner, [0.7], labels=["bad", "good"], **{**facts, "threshold": 0.5})
        assert (two["class"], two["label"]) == (1, "good")
        one = self.answer(runner, [0.6], labels=["good"], **facts)
        assert (one["class"], one["label"]) == (0, "not good")
        assert self.answer(runner, [0.9], **facts)["label"] == "1"
        found = self.answer(runner, [1.0], activation="logits", **facts)
        assert found["score"] == pytest.approx(1 / (1 + np.exp(-1.0)))

    def test_multilabel(self, runner):
        found = self.answer(
            runner, [0.9, 0.1, 0.6], task="multilabel", labels=["a", "b", "c"], top=2
        )
        assert found["labels"] == ["a", "c"]
        assert [entry["label"] for entry in found["top"]] == ["a", "c"]

    def test_regression_gives_the_values(self, runner):
        assert self.answer(runner, [1.5, -2.0], task="regression") == {
            "outputs": {"y": [1.5, -2.0]}
        }

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_numbers_that_are_not_finite(self, runner, bad):
        with pytest.raises(runner.SampleError, match="NaN or infinity"):
            self.answer(runner, [0.5, bad])


class TestTensors:
    def tensor(self, runner, dtype, scales, zeros, axis=0, shape=(1, 2, 3)):
        quantization = {"scales": scales, "zero_points": zeros, "quantized_dimension": axis}
        detail = {"index": 0, "shape": shape, "dtype": dtype}
        return runner.Tensor("x", {**detail, "quantization_parameters": quantization})

    def test_per_axis_output(self, runner):
        tensor = self.tensor(runner, np.int8, [0.5, 2.0], [0, 1], axis=1)
        found = tensor.decode(np.array([[[1, 2, 3], [4, 5, 6]]], np.int8))
        np.testing.assert_array_equal(found, [[0.5, 1.0, 1.5], [6.0, 8.0, 10.0]])
        assert found.dtype == np.float32

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
    def test_quantized_inputs_are_those_of_the_reference(self, runner, dtype):
        value = np.random.default_rng(1).uniform(-1, 1, (2, 3)).astype(np.float32)
        tensor = self.tensor(runner, dtype, [0.0078125], [3])
        found = tensor.encode(value)
        expected = np.floor(np.abs(value) / 0.0078125 + 0.5) * np.sign(value) + 3
        limits = np.iinfo(dtype)
        np.testing.assert_array_equal(found[0], np.clip(expected, limits.min, limits.max))
        assert found.dtype == dtype

    def test_integers_are_taken_as_they_are(self, runner):
        value = np.array([[1, -2, 3], [4, 5, -6]], np.int8)
        tensor = self.tensor(runner, np.int8, [0.1], [7])
        np.testing.assert_array_equal(tensor.encode(value)[0], value)

    def test_wider_integers_are_taken_when_they_fit_and_mean_no_quantized_value(self, runner):
        plain = self.tensor(runner, np.int32, [], [])
        value = np.array([[1, -2, 3], [4, 5, 70000]], np.int64)
        np.testing.assert_array_equal(plain.encode(value)[0], value)
        for tensor, bad in (
            (plain, value * 100000),
            (self.tensor(runner, np.int8, [0.1], [7]), value),
            (self.tensor(runner, np.float32, [], []), value),
            (plain, value.astype(np.float32)),
            (plain, value.astype(str)),
        ):
            with pytest.raises(runner.SampleError, match=f"received {bad.dtype}"):
                tensor.encode(bad)

    def test_lists_of_numbers(self, runner):
        for dtype in (np.int32, np.uint8, np.float32):
            found = self.tensor(runner, dtype, [], []).encode([[1, 2, 3], [4, 5, 6]])
            assert found.dtype == dtype
            np.testing.assert_array_equal(found[0], [[1, 2, 3], [4, 5, 6]])
        quantized = self.tensor(runner, np.int8, [0.5], [3])
        found = quantized.encode([[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(found[0], [[5, 7, 9], [11, 13, 15]])
        whole = self.tensor(runner, np.int32, [], [])
        for bad in ([[1.5, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 2**40]], [["a"] * 3] * 2):
            with pytest.raises(runner.SampleError, match="input 'x'"):
                whole.encode(bad)

    def test_tables_equal_the_arithmetic_per_pixel(self, runner, bundle):
        opened = runner.open_target(str(bundle))
        picture = bundle / "golden/002.image.png"
        for mode in ("int8", "int16x8", "uint8"):
            args = runner.parse(["info", str(bundle)])
            model = runner.Model(opened, opened.artifact(f"tflite/{mode}"), args)
            tensor = model.inputs["image"]
            slow = tensor.encode(reference.preprocess(picture, model.specs["image"]))
            fast = model.read(picture)["image"]
            assert fast.dtype == slow.dtype
            np.testing.assert_array_equal(fast, slow)
            assert len(np.unique(slow)) > 30


class TestRun:
    def run(self, command, file, arrays, tmp_path):
        (tmp_path / "in").mkdir(parents=True)
        for name, array in arrays.items():
            np.save(tmp_path / "in" / f"{name}.npy", array)
        folders = ["--inputs", tmp_path / "in", "--outputs", tmp_path / "out"]
        answer = command("run", file, *folders)
        return answer, {p.stem: np.load(p) for p in (tmp_path / "out").glob("*.npy")}

    @pytest.mark.parametrize("mode", MODES)
    def test_many_samples(self, command, bundle, tmp_path, mode):
        declared = json.loads((bundle / "manifest.json").read_text())["inputs"][0]
        stored = samples_of(bundle)["samples"]
        x = np.stack(
            [reference.preprocess(bundle / s["inputs"]["image"], declared) for s in stored]
        )
        file = bundle / f"tflite/digits.{mode}.tflite"
        answer, outputs = self.run(command, file, {"image": x}, tmp_path)
        assert answer.code == 0
        assert answer.json["count"] == 4
        assert answer.json["seconds"] > 0
        assert answer.json["runtime"]["name"] == "ai-edge-litert"
        expected = np.load(bundle / "golden/outputs/int8.digit.npy")
        if mode != "int8":
            expected = [s["artifacts"][f"tflite/{mode}"]["digit"] for s in stored]
        np.testing.assert_allclose(outputs["digit"], expected, atol=1e-6)
        assert outputs["digit"].dtype == np.float32

    def test_state_is_reset_before_every_sample(self, command, built, tmp_path):
        with np.load(built / "loose/lstm.npz") as stored:
            x, y = stored["x"], stored["y"]
        answer, outputs = self.run(command, built / "loose/lstm.tflite", {"steps": x}, tmp_path)
        assert answer.code == 0
        np.testing.assert_allclose(outputs["state"], y, atol=1e-6)
        assert np.abs(y).min() > 1e-4
        _, backwards = self.run(
            command, built / "loose/lstm.tflite", {"steps": x[::-1]}, tmp_path / "backwards"
        )
        np.testing.assert_array_equal(backwards["state"][::-1], outputs["state"])

    def test_several_inputs_and_outputs(self, command, built, tmp_path):
        rng = np.random.default_rng(3)
        a, b = rng.normal(size=(2, 7, 4)).astype(np.float32)
        file = built / "loose/two.tflite"
        _, outputs = self.run(command, file, {"a": a, "b": b}, tmp_path)
        np.testing.assert_array_equal(outputs["double"], a * 2)
        np.testing.assert_allclose(outputs["total"], 3 * b.sum(1) - a.sum(1), atol=1e-5)

    def test_numbers_of_samples_that_differ(self, command, built, tmp_path):
        arrays = {"a": np.ones((2, 4), np.float32), "b": np.ones((3, 4), np.float32)}
        answer, _ = self.run(command, built / "loose/two.tflite", arrays, tmp_path)
        assert answer.code == 1
        assert "expected the same N > 0 samples" in answer.err

    def test_a_missing_input_file(self, command, built, tmp_path):
        arrays = {"a": np.ones((2, 4), np.float32)}
        answer, _ = self.run(command, built / "loose/two.tflite", arrays, tmp_path)
        assert answer.code == 1
        assert "b.npy" in answer.err

    def test_a_full_disk(self, program, built, tmp_path):
        if not Path("/dev/full").exists():
            pytest.skip("/dev/full is missing, which stands in for a full disk")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/state.npy").symlink_to("/dev/full")
        np.save(tmp_path / "steps.npy", np.ones((2000, 6, 2), np.float32))
        answer = program(
            "run", built / "loose/lstm.tflite", "--inputs", tmp_path, "--outputs", tmp_path / "out"
        )
        assert answer.code == 1
        assert "No space left" in answer.err and "Traceback" not in answer.err


class TestFullDisk:
    """/dev/full stands in for a full disk: whatever is written to it does not fit."""

    def test_answers(self, bundle):
        for arguments in (["predict", bundle, bundle / "golden", "--json"], ["verify", bundle],
                          ["info", bundle]):  # fmt: skip
            with Path("/dev/full").open("w") as full:
                done = subprocess.run(
                    [sys.executable, RUNNER, *arguments],
                    stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                    # A user's Python buffers, whatever this machine has set.
                    env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
                )  # fmt: skip
            assert done.returncode == 1
            assert "error: [Errno 28] No space left on device" in done.stderr
            assert "Traceback" not in done.stderr and "Exception" not in done.stderr

    def test_recorded_values_and_pipes(self, program, bundle, tmp_path):
        (tmp_path / "record").symlink_to("/dev/full")
        answer = program("verify", bundle, "--record", tmp_path / "record")
        assert answer.code == 1
        assert "No space left" in answer.err and "Traceback" not in answer.err
        assert Path("/dev/full").is_char_device()
        os.mkfifo(tmp_path / "pipe")
        # Opened for both ends, so that nobody waits; it holds more than these values.
        with os.fdopen(os.open(tmp_path / "pipe", os.O_RDWR), "rb", buffering=0) as pipe:
            flags = ("--artifact", "tflite/int8", "--record", tmp_path / "pipe")
            assert program("verify", bundle, *flags).code == 0
            assert list(json.loads(pipe.read(1 << 16))) == ["tflite/int8"]

    def test_a_file_that_is_replaced_keeps_its_content(self, runner, tmp_path, monkeypatch):
        kept = tmp_path / "kept.json"
        kept.write_bytes(b"before")

        def full(path, content):
            path.touch()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(runner.Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            runner.write_whole(kept, b"after")
        assert kept.read_bytes() == b"before"
        assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


class TestErrors:
    def test_a_target_that_is_missing(self, command, tmp_path):
        answer = command("info", tmp_path / "none")
        assert answer.code == 2
        assert "no such bundle or file" in answer.err

    def test_a_folder_without_a_bundle(self, command, tmp_path):
        answer = command("verify", tmp_path)
        assert answer.code == 2
        assert "NAME/VERSION" in answer.err

    def test_a_file_that_is_no_model(self, command, tmp_path):
        for content in (b"", b"text that is long enough"):
            (tmp_path / "a.tflite").write_bytes(content)
            answer = command("predict", tmp_path / "a.tflite", "x.png")
            assert answer.code == 2
            assert "not a TFLite file" in answer.err

    @pytest.mark.parametrize("content", ["", "{", '{"schema": 1', "[1]", "\xff"])
    def test_a_manifest_that_is_damaged(self, command, bundle, content):
        (bundle / "manifest.json").write_text(content, encoding="latin-1")
        answer = command("verify", bundle)
        assert answer.code == 1
        assert "manifest.json" in answer.err and "Traceback" not in answer.err

    def test_a_manifest_that_lacks_a_part(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.pop("artifacts"))
        answer = command("info", bundle)
        assert answer.code == 1
        assert "the bundle lacks 'artifacts'" in answer.err

    def test_a_newer_schema(self, command, bundle, change_manifest):
        change_manifest(lambda manifest: manifest.update(schema=2))
        answer = command("info", bundle)
        assert answer.code == 1
        assert "expected schema 1, received 2" in answer.err

    def test_a_truncated_artifact_is_found_by_its_size(self, command, bundle):
        path = bundle / "tflite/digits.int8.tflite"
        path.write_bytes(path.read_bytes()[:-100])
        answer = command("predict", bundle, bundle / "golden")
        assert answer.code == 1
        assert "bytes, expected" in answer.err

    def test_another_architecture_than_the_manifest_describes(
        self, command, bundle, change_manifest, tmp_path
    ):
        change_manifest(lambda manifest: manifest["inputs"][0]["image"].update(width=10))
        answer = command("predict", bundle, bundle / "golden", "--json")
        assert answer.code == 1
        for line in answer.lines:
            assert "expected int8 [12, 12, 1], received int8 [12, 10, 1]" in line["error"]
        np.savez(tmp_path / "damaged.npz", image=np.zeros((12, 12, 1), np.float32))
        content = (tmp_path / "damaged.npz").read_bytes()
        (tmp_path / "damaged.npz").write_bytes(content[: len(content) // 2])
        answer = command("predict", bundle, tmp_path / "damaged.npz", "--json")
        assert answer.code == 1
        assert "damaged.npz: cannot be read as NumPy data" in answer.lines[0]["error"]

    def test_a_truncated_file_of_a_bundle_is_found_by_its_size(self, command, bundle):
        path = bundle / "tflite/digits.int8.tflite"
        path.write_bytes(path.read_bytes()[:-100])
        answer = command("predict", path, bundle / "golden")
        assert answer.code == 1
        assert "bytes, expected" in answer.err

    def test_names_that_do_not_match(self, command, bundle, change_manifest, built):
        def edit(manifest):
            manifest["inputs"].append({**manifest["inputs"][0], "name": "other"})

        change_manifest(edit)
        answer = command("predict", bundle, bundle / "golden")
        assert answer.code == 1
        assert "expected image, other, but the file has image" in answer.err

    @pytest.mark.parametrize("arguments", [[], ["predict"], ["info", "x", "--threads", "0"]])
    def test_usage(self, command, arguments):
        assert command(*arguments).code == 2

    def test_a_reader_that_leaves(self, bundle):
        script = f'"{sys.executable}" "{RUNNER}" predict "{bundle}" - --json | head -n 1'
        lines = "\n".join([str(bundle / "golden/000.image.png")] * 200)
        done = subprocess.run(
            script, shell=True, input=lines, capture_output=True, text=True, check=False
        )
        assert json.loads(done.stdout)["label"] == "three"
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The files of two pairs of keys: mine.pub belongs to mine.pem."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        signing.new_key(folder / f"{name}.pem")
    return folder


class TestSignature:
    def test_what_is_signed_runs(self, command, bundle, keys, tmp_path):
        signing.sign(bundle, keys / "mine.pem")
        key = ("--key", keys / "mine.pub")
        assert command("verify", bundle, *key).code == 0
        picture = photo(tmp_path / "a.png")
        answer = command("predict", bundle.parent, picture, "--json", *key)
        assert (answer.code, len(answer.lines)) == (0, 1)
        one = next((bundle / "tflite").glob("*.float32.tflite"))
        assert command("predict", one, picture, *key).code == 0

    @pytest.mark.parametrize("arguments", [("info",), ("verify",), ("bench",), ("predict", "a.png"),
                                           ("serve",), ("watch", "."),
                                           ("run", "--inputs", ".", "--outputs", ".")])  # fmt: skip
    @pytest.mark.parametrize("damage", ["unsigned", "other", "changed", "no signature", "no key"])
    def test_nothing_else_is_loaded(
        self, runner, command, bundle, keys, damage, arguments, monkeypatch
    ):
        def loaded(*given):
            raise AssertionError("a file was loaded")

        monkeypatch.setattr(runner, "load_interpreter", loaded)
        monkeypatch.setattr(runner.json, "loads", loaded)
        if damage != "unsigned":
            signing.sign(bundle, keys / ("other.pem" if damage == "other" else "mine.pem"))
        if damage == "changed":
            manifest = bundle / "manifest.json"
            manifest.write_bytes(manifest.read_bytes().replace(b"digit", b"digut", 1))
        if damage == "no signature":
            (bundle / "manifest.sig").write_text("not base64!")
        key = keys / ("mine.pem" if damage == "no key" else "mine.pub")
        name, *more = arguments
        answer = command(name, bundle, *more, "--key", key)
        assert answer.code == 1
        assert "manifest.json has no signature by the owner of" in answer.err
        assert "Take the bundle from where it was signed." in answer.err

    def test_a_file_that_is_not_the_signed_one(self, command, bundle, keys, tmp_path):
        signing.sign(bundle, keys / "mine.pem")
        for path in (bundle / "tflite").iterdir():
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        key, picture = ("--key", keys / "mine.pub"), photo(tmp_path / "a.png")
        answer = command("predict", bundle, picture, *key)
        assert (answer.code, "is not the file that was signed" in answer.err) == (1, True)
        copy = shutil.copy(path, tmp_path / "lone.tflite")
        answer = command("predict", copy, picture, *key)
        assert (answer.code, "no file of a signed bundle" in answer.err) == (1, True)

    def test_without_cryptography(self, command, bundle, keys, monkeypatch):
        monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
        answer = command("verify", bundle, "--key", keys / "mine.pub")
        assert answer.code == 4
        assert "pip install cryptography" in answer.err
        assert command("verify", bundle).code == 0
