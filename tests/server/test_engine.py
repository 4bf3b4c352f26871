"""The SavedModel engine: its class, and its commands `run` and `verify`."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packager_server import reader
from PIL import Image

HERE = Path(__file__).resolve().parent
SERVER = HERE.parents[1] / "server"
ENGINE = SERVER / "packager_server" / "engine.py"
LIMIT_S = 120

pytestmark = pytest.mark.tf

RNG = np.random.default_rng(5)
WEIGHTS = RNG.normal(size=(16, 3)).astype(np.float32)
IMAGES = RNG.uniform(-1, 1, (10, 4, 4, 1)).astype(np.float32)
PIXELS = RNG.integers(0, 256, (4, 4), dtype=np.uint8)
TOLERANCE = 1e-5
SPEC = {
    "name": "image",
    "shape": [None, 4, 4, 1],
    "dtype": "float32",
    "image": {
        "width": 4,
        "height": 4,
        "channels": "gray",
        "resize": "pillow:bilinear",
        "fit": "stretch",
        "pad_value": 0,
        "scale": [1 / 255],
        "offset": [0.0],
    },
}


def affine(images):
    return images.reshape(len(images), 16) @ WEIGHTS


def child(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    np.save(folder / "weights.npy", WEIGHTS)
    done = child(HERE / "make_models.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


class Requests:
    """Collects requests by name; the first answer that is asked for runs them all at once."""

    def __init__(self, folder):
        self.folder = folder
        self.requests = {}
        self.answers = None

    def add(self, name, **request):
        assert name not in self.requests
        self.requests[name] = request

    def __getitem__(self, name):
        if self.answers is None:
            path = self.folder / "requests.json"
            path.write_text(json.dumps(list(self.requests.values())), encoding="utf-8")
            done = child(HERE / "driver.py", SERVER, path)
            assert done.returncode == 0, done.stderr
            lines = map(json.loads, done.stdout.splitlines())
            self.answers = dict(zip(self.requests, lines, strict=True))
        return self.answers[name]


@pytest.fixture(scope="session")
def bundles(models, tmp_path_factory):
    return make_bundles(models, tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def answers(models, bundles, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    found = Requests(folder)
    add_predictions(found, models)
    add_runs(found, models, folder)
    for name, bundle in bundles.items():
        found.add(name, argv=["verify", str(bundle), "--record", str(folder / f"{name}.json")])
    found.add("wanted", argv=["verify", str(bundles["good"]), "--artifact", "saved_model"])
    found.add("unwanted", argv=["verify", str(bundles["good"]), "--artifact", "tflite/int8"])
    found.add("newest", argv=["verify", str(bundles["good"].parent)])
    found.add("no command", argv=[])
    return found


# ------------------------------------------------------------------ Engine


def add_predictions(found, models):
    one = {"image": (IMAGES[:2].tolist(), "float32")}
    add = found.add
    add("affine", model=str(models / "affine"), predict=one)
    add("doubled", model=str(models / "affine"), signature="doubled", predict=one)
    add("float64", model=str(models / "affine"), predict={"image": (one["image"][0], "float64")})
    pair = {"left": ([[1, 2, 3.5]], "float32"), "right": ([[-4, 9]], "int32")}
    add("two", model=str(models / "two"), predict=pair)
    add("both ways", both_ways=str(models / "affine"), inputs=one)
    add("both ways, two", both_ways=str(models / "two"), inputs=pair)
    flat = {"image": (IMAGES[:2].reshape(2, 16, 1).tolist(), "float64")}
    add("both ways, wrong dtype", both_ways=str(models / "affine"), inputs=flat)
    add("no signature", model=str(models / "affine"), signature="none", predict=one)
    add("nowhere", model=str(models / "nowhere"), predict=one)
    broken = models / "broken"
    shutil.copytree(models / "affine", broken)
    data = next((broken / "variables").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:20])
    add("broken", model=str(broken), predict=one)
    add("wrong name", model=str(models / "affine"), predict={"picture": one["image"]})
    add("wrong dtype", model=str(models / "affine"), predict={"image": (one["image"][0], "int32")})
    add("wrong shape", model=str(models / "affine"), predict={"image": ([[1, 2]], "float32")})


def test_predict_by_names(answers):
    result = answers["affine"]
    assert result["inputs"] == {"image": ["float32", [None, 4, 4, 1]]}
    values, dtype = result["outputs"]["digit"]
    assert dtype == "float32"
    np.testing.assert_allclose(values, affine(IMAGES[:2]), rtol=1e-5)


def test_predict_another_signature(answers):
    values = answers["doubled"]["outputs"]["digit"][0]
    np.testing.assert_allclose(values, 2 * affine(IMAGES[:2]), rtol=1e-5)


def test_another_float_width_is_converted(answers):
    np.testing.assert_array_equal(
        answers["float64"]["outputs"]["digit"][0], answers["affine"]["outputs"]["digit"][0]
    )


def test_predict_several_inputs_and_outputs(answers):
    assert answers["two"]["outputs"] == {
        "largest": [[9], "int32"],
        "total": [[[2.5, 15.5]], "float32"],
    }


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("no signature", 2, "no signature 'none'; it has: doubled, serving_default"),
        ("nowhere", 1, "no SavedModel here: saved_model.pb is missing"),
        ("broken", 1, "TensorFlow cannot load this SavedModel"),
        ("wrong name", 2, "inputs are ['image'], received ['picture']"),
        ("wrong dtype", 2, "'image': expected float32, received int32"),
        ("wrong shape", 2, "expected shape (None, 4, 4, 1), received (1, 2)"),
    ],
)
def test_engine_errors(answers, name, code, message):
    assert answers[name]["code"] == code
    assert message in answers[name]["err"]


@pytest.mark.parametrize("name", ["both ways", "both ways, two"])
def test_the_public_functions_give_the_sessions_answers(answers, name):
    session, functions = answers[name]
    assert (session.pop("type"), functions.pop("type")) == ("SessionModel", "FunctionModel")
    assert session == functions
    (output,) = [v for k, v in session["serving_default"].items() if k in ("digit", "total")]
    assert np.shape(output)[0] in (1, 2) and np.isfinite(output).all()


def test_a_wrong_dtype_is_refused_both_ways(answers):
    for found in answers["both ways, wrong dtype"]:
        assert found["serving_default"] == "INVALID_ARGUMENT"


# ------------------------------------------------------------------ run


def write_inputs(folder, **arrays):
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def add_runs(found, models, folder):
    def run(name, model, *options, **arrays):
        inputs = write_inputs(folder / f"{name}.in", **arrays)
        outputs = str(folder / f"{name}.out")
        argv = ["run", str(models / model), "--inputs", inputs, "--outputs", outputs, *options]
        found.add(f"run {name}", argv=argv)

    run("free", "affine", "--batch", "3", image=IMAGES)
    run("fixed", "fixed", image=IMAGES)
    pair = {"left": np.float32([[1, 2, 3], [4, 5, 7]]), "right": np.int32([[1, 2], [3, -4]])}
    run("two", "two", **pair)
    run("missing", "affine")
    run("empty", "affine", image=IMAGES[:0])
    run("uneven", "two", left=pair["left"], right=pair["right"][:1])
    run("objects", "affine", image=np.array([None, 1], dtype=object))
    run("scalar", "affine", image=np.float32(3))
    run("no batch", "affine", "--batch", "0", image=IMAGES)


@pytest.mark.parametrize("name", ["free", "fixed"])
def test_run_writes_all_samples_in_order(answers, name):
    result = answers[f"run {name}"]
    assert result["code"] == 0
    answer = json.loads(result["out"])
    assert answer["count"] == 10
    assert answer["runtime"]["name"] == "tensorflow"
    written = np.load(answers.folder / f"{name}.out" / "digit.npy")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, affine(IMAGES), rtol=1e-5)


def test_run_several_inputs_and_integer_outputs(answers):
    assert answers["run two"]["code"] == 0
    largest = np.load(answers.folder / "two.out" / "largest.npy")
    assert (largest.dtype, largest.tolist()) == (np.float32, [2.0, 3.0])
    total = np.load(answers.folder / "two.out" / "total.npy")
    np.testing.assert_array_equal(total, [[7, 8], [19, 12]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "image.npy: this input file is missing"),
        ("empty", "at least 1"),
        ("uneven", "{'left': 2, 'right': 1}"),
        ("objects", "not a readable .npy file"),
        ("scalar", "received a single value"),
        ("no batch", "expected a positive integer, received '0'"),
    ],
)
def test_run_errors(answers, name, message):
    result = answers[f"run {name}"]
    assert (result["code"], result["out"]) == (2, "")
    assert message in result["err"]
    assert "Traceback" not in result["err"]


def test_no_command_is_a_usage_error(answers):
    assert answers["no command"]["code"] == 2


# ------------------------------------------------------------------ verify


def make_bundles(models, folder):
    """Returns bundles by name; each is a copy of a good one with one thing changed."""
    good = make_bundle(models / "affine", folder / "good" / "2")
    (folder / "good" / "rejected").mkdir()
    (folder / "good" / "1").mkdir()
    (folder / "good" / "1" / "manifest.json").write_text("{}")
    changes = {
        "drifted": lambda path: edit(path, "golden/samples.json", drift),
        "stored npy": store_as_npy,
        "unrecorded": lambda path: edit(path, "golden/samples.json", forget),
        "unlisted files": lambda path: edit(path, "manifest.json", lambda m: m.pop("files")),
        "tampered": lambda path: (path / "labels.txt").write_text("a\nb\nX\n"),
        "incomplete": lambda path: (path / "labels.txt").unlink(),
        "newer schema": lambda path: edit(path, "manifest.json", lambda m: m.update(schema=2)),
        "not json": lambda path: (path / "manifest.json").write_text("{"),
        "lacking": lambda path: edit(path, "manifest.json", lambda m: m.pop("artifacts")),
        "leading out": lambda path: edit(path, "manifest.json", lead_out),
        "other model": lambda path: edit(path, "manifest.json", name_another_model),
        "absolute samples": name_absolute_samples,
        "linked input": link_an_input,
        "dotted values": store_outside,
        "too old": lambda path: edit(path, "manifest.json", lambda m: require(m, "99.1")),
        "no model": lambda path: (path / "saved_model.pb").unlink(),
        "not finite": lambda path: replace_model(path, models / "inverse"),
        "picture": add_picture,
    }
    found = {"good": good}
    for name, change in changes.items():
        found[name] = folder / name.replace(" ", "_") / "1"
        shutil.copytree(good, found[name])
        change(found[name])
    return found


def make_bundle(model, bundle):
    shutil.copytree(model, bundle)
    (bundle / "golden").mkdir()
    (bundle / "labels.txt").write_text("a\nb\nc\n")
    samples = []
    for i, image in enumerate(IMAGES[:3]):
        np.save(bundle / f"golden/00{i}.image.npy", image)
        outputs = {"digit": affine(image[None])[0].tolist()}
        samples.append(
            {
                "id": f"00{i}",
                "inputs": {"image": f"golden/00{i}.image.npy"},
                "outputs": outputs,
                "artifacts": {"saved_model": outputs},
            }
        )
    golden = {"schema": 1, "samples": samples, "tolerances": {"saved_model": {"digit": TOLERANCE}}}
    (bundle / "golden/samples.json").write_text(json.dumps(golden))
    kinds = {"saved_model": "saved_model", "tflite/int8": "tflite"}
    manifest = {
        "schema": 1,
        "unknown key": 1,
        "inputs": [SPEC],
        "golden": {"path": "golden/samples.json"},
        "artifacts": [
            {
                "id": key,
                "path": ".",
                "runtime": {"kind": kind, "min_version": {"tensorflow": "2.9"}},
            }
            for key, kind in kinds.items()
        ],
        "files": {"labels.txt": entry(bundle / "labels.txt")},
    }
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def entry(path):
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def edit(bundle, name, change):
    content = json.loads((bundle / name).read_text())
    change(content)
    (bundle / name).write_text(json.dumps(content))


def drift(golden):
    golden["samples"][1]["artifacts"]["saved_model"]["digit"][2] += 3e-3


def forget(golden):
    for sample in golden["samples"]:
        del sample["artifacts"]["saved_model"]


def store_as_npy(bundle):
    np.save(bundle / "golden/stored.npy", affine(IMAGES[:3]))

    def refer(golden):
        for i, sample in enumerate(golden["samples"]):
            reference = {"npy": "golden/stored.npy", "index": i}
            sample["artifacts"]["saved_model"]["digit"] = reference

    edit(bundle, "golden/samples.json", refer)


def lead_out(manifest):
    manifest["files"]["../../../etc/passwd"] = {"bytes": 1, "sha256": ""}


def name_another_model(manifest):
    manifest["artifacts"][0]["path"] = "../../good/2"


def name_absolute_samples(bundle):
    path = str((bundle / "golden/samples.json").resolve())
    edit(bundle, "manifest.json", lambda manifest: manifest["golden"].update(path=path))


def link_an_input(bundle):
    inside = bundle / "golden/001.image.npy"
    outside = bundle.parent / "001.image.npy"
    inside.rename(outside)
    inside.symlink_to(outside)


def store_outside(bundle):
    store_as_npy(bundle)
    (bundle / "golden/stored.npy").rename(bundle.parent / "stored.npy")
    samples = bundle / "golden/samples.json"
    samples.write_text(samples.read_text().replace("golden/stored.npy", "../stored.npy"))


def require(manifest, version):
    manifest["artifacts"][0]["runtime"]["min_version"]["tensorflow"] = version


def replace_model(bundle, model):
    shutil.copy(model / "saved_model.pb", bundle)
    np.save(bundle / "golden/001.image.npy", np.zeros((4, 4, 1), np.float32))


def add_picture(bundle):
    Image.fromarray(PIXELS).save(bundle / "golden/000.image.png")
    values = affine((PIXELS.astype(np.float64) / 255).astype(np.float32)[None])[0].tolist()

    def refer(golden):
        golden["samples"][0]["inputs"]["image"] = "golden/000.image.png"
        golden["samples"][0]["artifacts"]["saved_model"]["digit"] = values

    edit(bundle, "golden/samples.json", refer)


def verified(answers, name):
    result = answers[name]
    assert "Traceback" not in result["err"]
    return result["code"], json.loads(result["out"])


@pytest.mark.parametrize("name", ["good", "wanted", "newest", "stored npy", "unlisted files"])
def test_verify_passes(answers, name):
    code, answer = verified(answers, name)
    assert code == 0
    assert answer["runner"] == "server"
    assert answer["runtime"]["name"] == "tensorflow"
    assert answer["files"] == {"checked": 0 if name == "unlisted files" else 1, "problems": []}
    (artifact,) = answer["artifacts"]
    assert (artifact["id"], artifact["status"]) == ("saved_model", "passed")
    assert (artifact["samples"], artifact["reason"]) == (3, "")
    assert 0 <= artifact["max_abs_diff"] <= TOLERANCE


def test_verify_records_flat_values(answers):
    verified(answers, "good")
    recorded = json.loads((answers.folder / "good.json").read_text())
    assert list(recorded) == ["saved_model"]
    values = [recorded["saved_model"][f"00{i}"]["digit"] for i in range(3)]
    np.testing.assert_allclose(values, affine(IMAGES[:3]), rtol=1e-5)


def test_verify_reads_pictures(answers):
    if not (SERVER / "packager_server" / "preprocess.py").is_file():
        pytest.skip("server/packager_server/preprocess.py is missing: the copy of packager's")
    code, answer = verified(answers, "picture")
    assert (code, answer["artifacts"][0]["status"]) == (0, "passed")


def test_a_sample_outside_its_tolerance(answers):
    code, answer = verified(answers, "drifted")
    (artifact,) = answer["artifacts"]
    assert (code, artifact["status"], artifact["worst_sample"]) == (3, "failed", "001")
    assert artifact["max_abs_diff"] == pytest.approx(3e-3, rel=0.01)
    assert artifact["reason"] == "sample 001, output digit: outside the tolerance"


def test_values_that_are_not_finite(answers):
    code, answer = verified(answers, "not finite")
    assert (code, answer["artifacts"][0]["status"]) == (3, "failed")
    assert "NaN or infinite" in answer["artifacts"][0]["reason"]
    assert json.loads((answers.folder / "not finite.json").read_text()) == {}


def test_nothing_stored_yet(answers):
    code, answer = verified(answers, "unrecorded")
    assert (code, answer["artifacts"][0]["status"]) == (0, "recorded")
    assert answer["artifacts"][0]["max_abs_diff"] is None


@pytest.mark.parametrize(("name", "problem"), [("tampered", "changed"), ("incomplete", "missing")])
def test_changed_files_are_named(answers, name, problem):
    code, answer = verified(answers, name)
    assert code == 1
    assert answer["files"]["problems"] == [{"path": "labels.txt", "problem": problem}]


def test_a_model_that_cannot_be_run(answers):
    code, answer = verified(answers, "no model")
    assert (code, answer["artifacts"][0]["status"]) == (1, "failed")
    assert "saved_model.pb is missing" in answer["artifacts"][0]["reason"]


@pytest.mark.parametrize("name", ["other model", "linked input", "dotted values"])
def test_nothing_outside_the_bundle_is_used(answers, name):
    code, answer = verified(answers, name)
    (artifact,) = answer["artifacts"]
    assert (code, artifact["status"], artifact["samples"]) == (1, "failed", 0)
    assert "leads out of the bundle" in artifact["reason"]


def test_a_listed_file_outside_the_bundle_is_a_problem(answers):
    code, answer = verified(answers, "leading out")
    (problem,) = answer["files"]["problems"]
    assert (code, problem["path"]) == (1, "../../../etc/passwd")
    assert "leads out of the bundle" in problem["problem"]


@pytest.mark.parametrize("name", ["../up", "/tmp/root", "a/b", "a\\b"])
def test_names_of_tensors_do_not_become_paths(name, tmp_path):
    with pytest.raises(reader.EngineError, match="cannot be that of a file"):
        reader.npy_path(tmp_path, name)
    assert reader.npy_path(tmp_path, "serving_x:0") == tmp_path / "serving_x:0.npy"


def test_an_old_tensorflow_must_not_run_it(answers):
    code, answer = verified(answers, "too old")
    assert (code, answer["artifacts"][0]["status"]) == (4, "skipped")
    assert "needs tensorflow 99.1 or newer" in answer["artifacts"][0]["reason"]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("newer schema", 1, "schema 2 is newer than this program's 1"),
        ("not json", 1, "manifest.json: cannot be read"),
        ("lacking", 1, "its JSON files lack 'artifacts'"),
        ("absolute samples", 1, "leads out of the bundle"),
        ("unwanted", 2, "no artifact 'tflite/int8' that this program runs"),
    ],
)
def test_verify_errors(answers, name, code, message):
    result = answers[name]
    assert (result["code"], result["out"]) == (code, "")
    assert message in result["err"]
    assert "Traceback" not in result["err"]


# ------------------------------------------------------------------ as a script


def test_as_a_script_its_output_is_one_json_document(models, tmp_path):
    inputs = write_inputs(tmp_path / "in", image=IMAGES)
    done = child(
        ENGINE, "run", models / "affine", "--inputs", inputs, "--outputs", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["count"] == 10
    np.testing.assert_allclose(np.load(tmp_path / "out/digit.npy"), affine(IMAGES), rtol=1e-5)


def test_usage_errors_do_not_start_tensorflow(tmp_path):
    done = child("-X", "importtime", ENGINE, "verify", tmp_path)
    assert done.returncode == 2
    assert "no bundle here" in done.stderr
    assert "tensorflow" not in done.stderr
    assert "packager.errors" not in done.stderr
