"""Whole builds: the digits example, and small odd models."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import packager as packaging
from packager import bundle, declare, describe, hashes
from packager.children import Child
from packager.loaders.model_file import identify
from tests.conftest import DIGITS, ROOT, packager

pytestmark = [pytest.mark.tf, pytest.mark.node]

EVERYTHING = [
    "saved_model", "tflite/float32", "tflite/float16", "tflite/dynamic_int8", "tflite/int8",
    "tflite/int8_float_io", "tflite/int16x8", "tfjs/layers",
]  # fmt: skip


def test_digits_has_every_artifact_and_passes_every_gate(digits_bundle):
    manifest = bundle.read_manifest(digits_bundle)
    assert [a.id for a in manifest.artifacts] == EVERYTHING
    assert {a.gate.status for a in manifest.artifacts} == {"passed"}
    for artifact in manifest.artifacts:
        assert artifact.metrics["accuracy"] >= 0.97
        assert artifact.metrics["agreement"] >= 0.98
    by_id = {a.id: a for a in manifest.artifacts}
    assert by_id["tflite/int8"].quantization.integer_op_share == 1.0
    assert by_id["tflite/float16"].size_bytes < 0.65 * by_id["tflite/float32"].size_bytes
    assert hashes.check_files(digits_bundle, manifest) == []


def test_the_bundle_has_the_documented_files(digits_bundle):
    for name in (
        "saved_model.pb", "variables", "assets.extra/tf_serving_warmup_requests",
        "manifest.json", "labels.txt", "package.yaml", "golden/samples.json", "edge/run.py",
        "tfjs/layers/model.json", "report/index.html", "report/report.json",
        "tflite/digits.int8.tflite",
    ):  # fmt: skip
        assert (digits_bundle / name).exists(), name
    assert [p.name for p in digits_bundle.parent.iterdir()] == ["1"]


def test_weights_are_stored_once(digits_bundle):
    from zipfile import ZipFile

    with ZipFile(DIGITS / "model.keras") as archive:
        stored = archive.getinfo("model.weights.h5").file_size
    variables = sum(p.stat().st_size for p in (digits_bundle / "variables").iterdir())
    assert variables < 1.3 * stored


def test_saved_model_cli_reads_the_bundle(digits_bundle):
    program = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
    done = subprocess.run(
        [*program, "show", "--dir", digits_bundle, "--tag_set", "serve",
         "--signature_def", "serving_default"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "inputs['image'] tensor_info" in done.stdout
    assert "shape: (-1, 28, 28, 1)" in done.stdout
    assert "outputs['digit'] tensor_info" in done.stdout


def test_saved_model_cli_runs_the_bundle(digits_bundle, tmp_path):
    samples = json.loads((digits_bundle / "golden/samples.json").read_text())["samples"]
    from packager.preprocess import preprocess

    spec = bundle.to_json(bundle.read_manifest(digits_bundle).inputs[0])
    np.save(
        tmp_path / "x.npy", preprocess(digits_bundle / samples[0]["inputs"]["image"], spec)[None]
    )
    program = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
    subprocess.run(
        [*program, "run", "--dir", digits_bundle, "--tag_set", "serve", "--signature_def",
         "serving_default", "--inputs", f"image={tmp_path / 'x.npy'}", "--outdir", tmp_path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    got = np.load(tmp_path / "digit.npy")[0]
    np.testing.assert_allclose(got, samples[0]["outputs"]["digit"], atol=1e-5)


def test_warmup_requests_are_the_golden_samples(digits_bundle):
    from packager.targets import warmup

    records = list(warmup.read_records(digits_bundle / warmup.PATH))
    samples = json.loads((digits_bundle / "golden/samples.json").read_text())["samples"]
    assert len(records) == len(samples)
    assert all(b"serving_default" in record and b"image" in record for record in records)


def test_verify_passes_and_every_changed_byte_is_named(digits_bundle, tmp_path):
    copy = tmp_path / "digits" / "1"
    shutil.copytree(digits_bundle, copy)
    ran = packager("verify", copy, "--json")
    assert ran.code == 0, ran.err
    assert {a["id"] for a in ran.json["artifacts"]} == set(EVERYTHING)
    assert {a["status"] for a in ran.json["artifacts"]} == {"passed"}
    for name in bundle.read_manifest(copy).files:
        path = copy / name
        content = bytearray(path.read_bytes())
        if not content:
            continue
        content[len(content) // 2] ^= 1
        original = path.read_bytes()
        path.write_bytes(content)
        problems = hashes.check_files(copy, bundle.read_manifest(copy))
        assert problems == [(name, "changed")]
        path.write_bytes(original)
    (copy / "labels.txt").write_text("tampered")
    ran = packager("verify", copy)
    assert ran.code == 1
    assert "changed: labels.txt" in ran.err


def test_predict_answers_label_and_score(digits_bundle):
    samples = json.loads((digits_bundle / "golden/samples.json").read_text())["samples"]
    images = [digits_bundle / s["inputs"]["image"] for s in samples[:5]]
    ran = packager("predict", digits_bundle, *images, "--json")
    assert ran.code == 0, ran.err
    answers = [json.loads(line) for line in ran.out.splitlines()]
    assert len(answers) == 5
    wanted = [str(np.argmax(s["outputs"]["digit"])) for s in samples[:5]]
    assert [a["label"] for a in answers] == wanted
    assert all(0.5 < a["score"] <= 1 for a in answers)


def build(tmp_path, model, *flags):
    return packager("build", model, "--output", tmp_path, "--json", *flags)


def manifest_of(ran):
    from pathlib import Path

    return bundle.read_manifest(Path(ran.json["bundle"]))


@pytest.fixture(scope="module")
def opening():
    with Child("packager.loaders.worker") as child:
        yield child


def test_two_inputs_and_outputs_with_odd_names(models, tmp_path):
    ran = build(tmp_path, models / "two_ends.keras")
    assert ran.code == 0, ran.err
    manifest = manifest_of(ran)
    assert [i.name for i in manifest.inputs] == ["left_side", "right_side"]
    assert [i.source_name for i in manifest.inputs] == ["left side", "right-side ü"]
    assert [o.name for o in manifest.outputs] == ["first", "output_1st_hidden"]
    assert manifest.golden.synthetic
    float32 = manifest.artifact("tflite/float32")
    assert float32.gate.status == "passed"
    assert manifest.artifact("tflite/dynamic_int8").gate.status == "skipped"
    assert "accuracy" not in float32.metrics


@pytest.mark.parametrize(
    ("name", "task", "activation"),
    [("cnn.keras", "classification", "softmax"), ("binary.keras", "binary", "sigmoid"),
     ("linear.keras", "none", "none")],
)  # fmt: skip
def test_the_task_is_recognised(models, opening, name, task, activation):
    source = models / name
    opened = opening.call("open", "opening", source=source, format="keras3", saved_by="keras 3")
    from_file = describe.from_file(identify(str(source)))
    # What the file says is what TensorFlow says.
    for found in (opened, from_file[1]):
        declared = declare.declare(found, task=None, threshold=None, labels=(), preprocess=None)
        assert declared.task == task
        assert declared.outputs[0].activation == activation
        assert (
            declared.inputs
            == declare.declare(opened, task=None, threshold=None, labels=(), preprocess=None).inputs
        )


def test_a_saved_model_of_keras_gets_real_names_and_its_activation(models, tmp_path):
    ran = build(tmp_path, models / "exported", "--only", "saved_model", "--only", "tflite/float32")
    assert ran.code == 0, ran.err
    manifest = manifest_of(ran)
    assert [i.name for i in manifest.inputs] == ["image"]
    assert [o.name for o in manifest.outputs] == ["answer"]
    assert manifest.task == "classification"


def test_a_signature_of_a_tf_function(models, tmp_path):
    ran = build(tmp_path, models / "half_plus_two")
    assert ran.code == 2
    assert "which signature" in ran.err
    assert "double, half" in ran.err
    ran = build(tmp_path, models / "half_plus_two", "--signature", "half")
    assert ran.code == 0, ran.err
    manifest = manifest_of(ran)
    samples = json.loads((tmp_path / "half_plus_two/1/golden/samples.json").read_text())["samples"]
    raw = np.load(tmp_path / "half_plus_two/1" / samples[0]["inputs"]["x"])
    np.testing.assert_allclose(samples[0]["outputs"]["y"], raw * 0.5 + 2.0, rtol=1e-6)
    refused = {r.id: r.reason for r in manifest.refused}
    assert set(refused) == {"tflite/float16", "tflite/dynamic_int8"}
    # Without Keras layers the graph format is the way, not a way out.
    assert manifest.artifact("tfjs/graph").gate.status == "passed"
    assert "the model has none" in ran.err


def test_a_callable_and_custom_objects(models, tmp_path):
    (tmp_path / "mymodels.py").write_text(
        "import keras\n"
        "@keras.saving.register_keras_serializable('tests')\n"
        "class Doubling(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        return 2.0 * x\n"
        "def make():\n"
        "    x = keras.Input((4,), name='x')\n"
        "    return keras.Model(x, Doubling(name='doubled')(x))\n"
    )
    only = ("--only", "tflite/float32")
    ran = packager("build", "mymodels:make", *only, "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    ran = packager(
        "build", models / "custom.keras", *only, "--custom-objects", "mymodels", cwd=tmp_path
    )
    assert ran.code == 0, ran.err


def test_a_lambda_layer_opens_only_with_the_flag(models, tmp_path):
    assert build(tmp_path, models / "lambda.keras").code == 2
    ran = build(
        tmp_path, models / "lambda.keras", "--allow-unsafe-code", "--only", "tflite/float32"
    )
    assert ran.code == 0, ran.err


def test_a_free_axis_needs_an_input_shape(models, tmp_path):
    ran = build(tmp_path, models / "free_axis.keras", "--only", "tflite/float32")
    assert ran.code == 1
    assert "--input-shape series=1,N,4" in ran.err
    assert not list(tmp_path.iterdir())
    ran = build(tmp_path, models / "free_axis.keras", "--input-shape", "1,7,4", "--only", "tflite")
    assert ran.code == 0, ran.err
    assert manifest_of(ran).artifact("tflite/float32").io[0].shape == (1, 7, 4)


def test_an_operator_without_builtin_form_is_named_and_the_rest_is_kept(models, tmp_path):
    ran = build(tmp_path, models / "fft.keras")
    assert ran.code == 0, ran.err
    manifest = manifest_of(ran)
    refused = {r.id: r.reason for r in manifest.refused}
    for name in ("tflite/float32", "tfjs/graph"):
        assert "FFT2D" in refused[name]
    assert "FFT2" in refused["tfjs/layers"]
    assert [a.id for a in manifest.artifacts] == ["saved_model"]


def test_a_failing_gate_exits_3_and_publishes_nothing(models, tmp_path):
    data = models / "pixels.npz"
    ran = build(
        tmp_path, models / "cnn.keras", "--preprocess", "0..1", "--evaluation", data,
        "--only", "tflite/float32", "--max-bytes", 100,
    )  # fmt: skip
    assert ran.code == 3, ran.err
    assert ran.json["rejected"]
    assert [p.name for p in (tmp_path / "cnn").iterdir()] == ["1.rejected"]
    gate = ran.json["artifacts"][0]["gate"]
    assert gate["status"] == "failed"
    assert "max_bytes" in gate["reason"]


def test_the_python_api_builds_the_same(models, tmp_path):
    script = (
        "import packager, sys\n"
        "assert 'tensorflow' not in sys.modules\n"
        f"result = packager.build({str(models / 'linear.keras')!r}, output={str(tmp_path)!r},"
        " targets=['tflite/float16'])\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print(result.path, result.exit_code, result.manifest.artifact('tflite/float16').id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "linear" / "1"), "0", "tflite/float16"]


def test_samples_that_were_prepared_for_other_ends_are_prepared_again(
    models, tmp_path, monkeypatch
):
    def misread(found):
        graph, ends = from_file(found)
        return graph, {**ends, "outputs": [{**ends["outputs"][0], "activation": "softmax"}]}

    from_file = describe.from_file
    monkeypatch.setattr(describe, "from_file", misread)
    result = packaging.build(
        str(models / "linear.keras"), output=str(tmp_path), targets=["tflite/float32"]
    )
    assert result.exit_code == 0
    assert result.manifest.outputs[0].activation == "none"
    assert hashes.check_files(result.path, result.manifest) == []
