"""The command line: what it imports, its exit codes, and one clear error for each bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packager import config, run_commands, sandbox
from packager.children import Child
from packager.errors import ModelError
from packager.verify import runners
from tests.conftest import DIGITS, ROOT, packager

CHECK_IMPORTS = """
import sys
import packager, packager.cli
from click.testing import CliRunner
assert CliRunner().invoke(packager.cli.cli, ["--help"]).exit_code == 0
heavy = {"tensorflow", "keras", "numpy", "PIL", "ai_edge_litert", "rich", "yaml", "jinja2"}
print(sorted(heavy & set(sys.modules)))
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", CHECK_IMPORTS], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "build",
        "init",
        "inspect",
        "verify",
        "predict",
        "explain",
        "search",
        "report",
        "bench",
        "diff",
        "doctor",
    ],
)
def test_every_command_has_help(command):
    ran = packager(command, "--help")
    assert ran.code == 0
    assert "Usage:" in ran.out


def refused(ran, code, *texts):
    """One error with what, why and a fix; no traceback; the promised exit code."""
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err + ran.out
    assert ran.err.count("error: ") <= 1
    for text in texts:
        assert text in ran.err, ran.err
    if "Usage:" not in ran.err:
        assert "fix: " in ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["build"], "name a model"),
        (["build", "no.keras"], "does not exist"),
        (["build", "no.keras", "--only", "tflite/int9"], "did you mean 'tflite/int8'"),
        (["build", "no.keras", "--only", "tflite/int8"], "needs calibration samples"),
        (["build", "no.keras", "--version", "0"], "positive"),
        (["build", "no.keras", "--task", "clasification"], "classification"),
        (["build", "no.keras", "--threshold", "2"], "threshold"),
        (["build", "no.keras", "--input-shape", "a=b"], "expected [NAME=]1,60,36"),
        (["build", "no.keras", "--config", "no.yaml"], "no.yaml"),
        (["build", "no.keras", "--no-such-flag"], "--no-such-flag"),
        (["predict", "dist/no"], "at least one image"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_errors_exit_2(tmp_path, arguments, text):
    ran = packager(*arguments, cwd=tmp_path)
    assert ran.code == 2
    assert text in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_predict_runs_the_runner_confined(monkeypatch):
    started = {}

    def run(command, **options):
        started.update(options, command=command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setattr(subprocess, "run", run)
    assert run_commands.predict.main(["b", "a.png", "--top", "2"], standalone_mode=False) == 3
    assert started["command"] == sandbox.command(
        [*runners.edge().command, "predict", "b", "a.png", "--top", "2"]
    )
    assert "hush" not in started["env"].values()
    assert started["env"]["PATH"] == os.environ["PATH"]


@pytest.mark.tf
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("only.weights.h5", ["holds weights only"]),
        ("lambda.keras", ["Lambda", "--allow-unsafe-code"]),
    ],
)
def test_models_that_are_refused_before_tensorflow_starts(models, tmp_path, name, texts):
    refused(packager("build", models / name, "--output", tmp_path), 2, *texts)
    assert list(tmp_path.iterdir()) == []


UNCALLED = """
import keras
class Sub(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
    def call(self, x):
        return self.dense(x)
def make():
    return Sub()
def number():
    return 5
def empty():
    return keras.Sequential([])
"""


@pytest.mark.tf
def test_a_model_that_cannot_be_used(models, tmp_path):
    ran = packager("build", models / "nan.keras", "--output", tmp_path / "out")
    refused(ran, 2, "the weight out/kernel holds 8 values that are NaN")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def opening(tmp_path_factory):
    """One TensorFlow child that has `uncalled.py` on its path."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "uncalled.py").write_text(UNCALLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
        with Child("packager.loaders.worker") as child:
            yield child


@pytest.mark.tf
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("custom.keras", "'Doubling'"),
        ("uncalled:make", "has never been called"),
        ("uncalled:number", "returned int"),
        ("uncalled:empty", "never been called"),
        ("uncalled:missing", "missing"),
        ("no.such.module:make", "cannot be imported"),
    ],
)
def test_models_that_cannot_be_opened(models, opening, source, text):
    is_code = ":" in source
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        opening.call(
            "open",
            "opening the model",
            source=source if is_code else models / source,
            format="callable" if is_code else "keras3",
            saved_by="keras 3",
        )
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert ("--custom-objects" in caught.value.hint) == (source == "custom.keras")


@pytest.mark.tf
def test_a_truncated_saved_model(models, tmp_path):
    import shutil

    broken = shutil.copytree(models / "exported", tmp_path / "broken")
    data = next((broken / "variables").glob("*.data*"))
    data.write_bytes(data.read_bytes()[:20])
    refused(packager("build", broken, "--output", tmp_path / "out"), 2, "cannot open it")


def texts_file(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.tf
@pytest.mark.parametrize(
    ("content", "encoding", "code"),
    [
        ("고양이\r\n개\r\n새\r\n해바라기", "utf-8-sig", 0),
        ("a\nb\nc\n", "utf-8", 2),
        ("a\nb\nc\nd\ne\n", "utf-8", 2),
        ("a\nb\nb\nd\n", "utf-8", 2),
    ],
)
def test_labels(models, tmp_path, content, encoding, code):
    labels = texts_file(tmp_path / "labels.txt", content, encoding)
    ran = packager(
        "build", models / "cnn.keras", "--labels", labels, "--output", tmp_path / "out",
        "--only", "tflite/float32", "--json",
    )  # fmt: skip
    if code == 0:
        assert ran.code == 0, ran.err
        written = Path(ran.json["bundle"]) / "labels.txt"
        assert written.read_text(encoding="utf-8").split() == content.split()
    else:
        refused(ran, code, "labels")


@pytest.fixture
def images(tmp_path):
    """Two classes of three pictures each."""
    generator = np.random.default_rng(0)
    for label in ("one", "two"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(3):
            pixels = generator.integers(0, 256, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{number}.png")
    return tmp_path / "images"


def make_empty(folder):
    for path in folder.rglob("*.png"):
        path.unlink()


def break_one(folder):
    (folder / "two" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")


def make_constant(folder):
    for path in folder.rglob("*.png"):
        Image.new("RGB", (10, 12), (7, 7, 7)).save(path)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("damage", "flags", "text"),
    [
        (make_empty, ["--preprocess", "0..1"], "no "),
        (break_one, ["--preprocess", "0..1"], "1.png"),
        (make_constant, ["--preprocess", "0..1"], "every value"),
        (lambda folder: None, [], "--preprocess"),
        (lambda folder: None, ["--preprocess", "keras:resnet5"], "resnet50"),
    ],
)
def test_calibration_that_cannot_be_used(models, tmp_path, images, damage, flags, text):
    damage(images)
    ran = packager(
        "build", models / "cnn.keras", "--calibration", images, *flags, "--output",
        tmp_path / "out", "--only", "tflite/int8",
    )  # fmt: skip
    refused(ran, 2, text)
    assert not (tmp_path / "out").exists()


@pytest.mark.tf
def test_calibration_samples_are_never_evaluation_samples(models, tmp_path):
    data = models / "pixels.npz"
    ran = packager(
        "build", models / "cnn.keras", "--calibration", data, "--evaluation", data,
        "--preprocess", "0..1", "--output", tmp_path / "out",
    )  # fmt: skip
    refused(ran, 2, "evaluation")


@pytest.mark.tf
def test_evaluation_data_in_another_range_are_refused(models, tmp_path):
    with np.load(models / "pixels.npz") as stored:
        np.savez(
            tmp_path / "floats.npz", x=stored["x"].astype(np.float32)[..., None], y=stored["y"]
        )
    ran = packager(
        "build", models / "cnn.keras", "--evaluation", tmp_path / "floats.npz",
        "--preprocess", "0..1", "--output", tmp_path / "out",
    )  # fmt: skip
    refused(ran, 2, "holds 0 to 255")


@pytest.mark.tf
@pytest.mark.parametrize(("options", "text"), [("size=16k", "No space left"), ("ro", "Read-only")])
def test_a_full_or_read_only_disk(models, tmp_path, options, text):
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", full], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        # What needs no TensorFlow is enough here; tests/test_faults.py has the other moments.
        without = ("--only", "tfjs/layers", "--no-verify")
        ran = packager("build", models / "cnn.keras", *without, "--output", full / "dist")
        refused(ran, 1, text)
        assert list(full.iterdir()) == []
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.tf
def test_a_file_where_the_output_folder_should_be(models, tmp_path):
    (tmp_path / "dist").touch()
    ran = packager("build", models / "cnn.keras", "--output", tmp_path / "dist")
    refused(ran, 1, "cannot write below")


@pytest.mark.tf
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["recognise the model", "run the source model"])
def test_an_interrupted_build_leaves_nothing(models, tmp_path, number, stage):
    """While TensorFlow starts, and while the runners are at work: the stages after these."""
    process = subprocess.Popen(
        [sys.executable, "-m", "packager", "build", models / "cnn.keras", "--output",
         tmp_path / "out"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    seen = next((line for line in process.stderr if stage in line), None)
    assert seen is not None, "the build ended before that stage"
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.tf
def test_inspect_says_what_it_is_before_any_conversion(models):
    ran = packager("inspect", models / "cnn.keras", "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["format"] == "keras3"
    assert found["saved_by"].startswith("keras 3")
    assert [e["name"] for e in found["inputs"]] == ["image"]
    assert found["outputs"][0]["activation"] == "softmax"
    assert {"name": "conv", "class": "Conv2D"} in found["layers"]
    verdicts = {v["target"]: v["verdict"] for v in found["targets"]}
    assert verdicts["tfjs/layers"] == "yes"
    assert verdicts["tflite/int8"] == "needs"


@pytest.mark.tf
def test_inspect_names_the_layer_that_a_target_cannot_hold(models):
    ran = packager("inspect", models / "custom.keras", "--allow-unsafe-code", "--json")
    assert ran.code == 2
    ran = packager("inspect", models / "fft.keras", "--json")
    assert ran.code == 0, ran.err
    reason = next(v for v in ran.json["targets"] if v["target"] == "tfjs/layers")
    assert reason["verdict"] == "no"
    assert "FFT2" in reason["reason"]
    reason = next(v for v in ran.json["targets"] if v["target"] == "tfjs/graph")
    assert reason["verdict"] == "no"
    assert "operator FFT2D" in reason["reason"]


@pytest.mark.tf
def test_init_writes_a_file_that_reproduces_the_build(models, tmp_path):
    flags = ["--preprocess", "0..1", "--calibration", models / "pixels.npz", "--max-drop", "0.5"]
    yaml_file = tmp_path / "package.yaml"
    ran = packager("init", models / "cnn.keras", *flags, "--to", yaml_file)
    assert ran.code == 0, ran.err
    loaded = config.load(yaml_file)
    assert loaded.preprocess == "0..1"
    assert loaded.gates.max_drop == 0.5
    assert Path(loaded.calibration.source) == models / "pixels.npz"
    assert "# " in yaml_file.read_text()
    assert "Conv2D" not in yaml_file.read_text()
    refused(packager("init", models / "cnn.keras", "--to", yaml_file), 2, "exists already")
    ran = packager("build", "--config", yaml_file, "--only", "tflite/int8", "--json")
    assert ran.code == 0, ran.err
    stored = config.load(Path(ran.json["bundle"]) / "package.yaml")
    assert stored.targets == ("tflite/int8",)
    assert stored.preprocess == "0..1"


def test_a_dry_run_makes_nothing(tmp_path):
    ran = packager("build", "--config", DIGITS / "package.yaml", "--output", tmp_path, "--dry-run")
    assert ran.code == 0, ran.err
    assert "tflite/int8" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_what_is_here():
    ran = packager("doctor", "--json")
    assert ran.code == 0, ran.err
    found = {f["name"]: f for f in ran.json}
    assert found["tensorflow"]["found"].startswith("2.21")
    assert found["python"]["found"]
    missing = [f for f in ran.json if not f["found"]]
    assert all(f["remedy"] for f in missing)


@pytest.mark.tf
@pytest.mark.node
def test_a_device_s_result_is_merged_into_the_report(digits_bundle, tmp_path):
    import shutil

    copy = tmp_path / "digits" / "1"
    shutil.copytree(digits_bundle, copy)
    done = subprocess.run(
        [sys.executable, copy / "edge" / "run.py", "verify", copy, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    device = tmp_path / "device.json"
    answer = json.loads(done.stdout)
    answer["machine"] = {"system": "Linux", "machine": "armv7l", "node": "<b>pi</b>"}
    device.write_text(json.dumps(answer))
    for _ in range(2):  # the same machine again replaces its entry
        ran = packager("report", copy, "--merge", device)
        assert ran.code == 0, ran.err
    document = json.loads((copy / "report/report.json").read_text())
    assert len(document["results"]) == 1
    page = (copy / "report/index.html").read_text()
    assert "armv7l" in page
    assert "<b>pi</b>" not in page
    assert packager("verify", copy).code == 0
    answer["artifacts"][0]["id"] = "tflite/other"
    device.write_text(json.dumps(answer))
    refused(packager("report", copy, "--merge", device), 2, "tflite/other")
    device.write_text("{}")
    refused(packager("report", copy, "--merge", device), 2, "not the JSON answer")


def test_a_folder_that_is_no_bundle(tmp_path):
    refused(packager("verify", tmp_path), 1, "is not a bundle")
    refused(packager("report", tmp_path), 1, "is not a bundle")


def test_no_command_declares_a_flag_twice():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHECK_FLAGS],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


CHECK_FLAGS = """
import packager.cli
from click.testing import CliRunner
for name in packager.cli.cli.commands:
    result = CliRunner().invoke(packager.cli.cli, [name, "--help"], catch_exceptions=False)
    assert result.exit_code == 0, name
"""
