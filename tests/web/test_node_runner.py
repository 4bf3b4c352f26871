"""web/node/run.mjs: `run` and `verify` on a small bundle that is made here, without Keras."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packager.loaders.layer_graph import Call, Layer, LayerGraph, TensorRef
from packager.targets import tfjs_layers

pytestmark = pytest.mark.node

RUN = Path(__file__).resolve().parents[2] / "web" / "node" / "run.mjs"
SCALE = [1 / 127.5]
IMAGE = {
    "width": 6,
    "height": 5,
    "channels": "rgb",
    "resize": "pillow:bicubic",
    "fit": "crop",
    "pad_value": 0,
    "scale": SCALE,
    "offset": [-1.0],
}
FEATURES, CLASSES = 5 * 6 * 3, 4
ID = "tfjs/layers"

Array = np.ndarray[Any, Any]


def model() -> tuple[LayerGraph, Array, Array]:
    """Flatten and Dense over an image and a vector, with its kernel and bias."""
    random = np.random.default_rng(2)
    kernel = (random.normal(size=(FEATURES + 2, CLASSES)) / 8).astype(np.float32)
    bias = random.normal(size=CLASSES).astype(np.float32)
    image, extra = TensorRef("image", 0, 0), TensorRef("extra", 0, 0)
    flat, joined, out = (TensorRef(name, 0, 0) for name in ("flat", "joined", "score"))
    dense = {"name": "score", "units": CLASSES, "use_bias": True, "activation": "linear"}
    layers = (
        Layer("InputLayer", "image", {"batch_shape": [None, 5, 6, 3], "dtype": "float32"}),
        Layer("InputLayer", "extra", {"batch_shape": [None, 2], "dtype": "float32"}),
        Layer("Flatten", "flat", {"name": "flat"}, (Call((image,)),)),
        Layer("Concatenate", "joined", {"axis": -1}, (Call((flat, extra)),)),
        Layer("Dense", "score", dense, (Call((joined,)),), {"kernel": kernel, "bias": bias}),
    )
    return LayerGraph("m", "Functional", layers, (image, extra), (out,)), kernel, bias


def ends() -> dict[str, Any]:
    return {
        "schema": 1,
        "inputs": [
            {"name": "image", "shape": [None, 5, 6, 3], "dtype": "float32", "image": IMAGE},
            {"name": "extra", "shape": [None, 2], "dtype": "float32"},
        ],
        "outputs": [{"name": "score", "shape": [None, CLASSES], "dtype": "float32"}],
    }


def preprocessed(image: Image.Image) -> Array:
    """The declaration above with Pillow; the source is 12 x 8, so 10 x 8 pixels are kept."""
    box = image.convert("RGB").crop((1, 0, 11, 8))
    method = Image.Resampling.BICUBIC
    small = np.asarray(box.resize((6, 8), method).resize((6, 5), method))
    return (small.astype(np.float64) * SCALE[0] - 1.0).astype(np.float32)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "m" / "1"
    (folder / "golden").mkdir(parents=True)
    graph, kernel, bias = model()
    tfjs_layers.write(graph, folder / "tfjs" / "layers", card=ends(), shard_bytes=700)
    random = np.random.default_rng(4)
    samples, stored = [], []
    for number, mode in enumerate(("L", "RGB", "RGB", "L")):
        image = Image.fromarray(random.integers(0, 256, (8, 12, 3), dtype=np.uint8)).convert(mode)
        extra = random.normal(size=2).astype(np.float32)
        image.save(folder / "golden" / f"{number}.image.png")
        np.save(folder / "golden" / f"{number}.extra.npy", extra)
        row = np.concatenate([preprocessed(image).ravel(), extra]) @ kernel + bias
        stored.append(row)
        score: Any = row.tolist() if number % 2 else {"npy": "golden/score.npy", "index": number}
        names = {"image": f"golden/{number}.image.png", "extra": f"golden/{number}.extra.npy"}
        samples.append({"id": f"{number:03}", "inputs": names, "artifacts": {ID: {"score": score}}})
    np.save(folder / "golden" / "score.npy", np.array(stored, np.float32))
    golden = {"schema": 1, "samples": samples, "tolerances": {ID: {"score": 1e-5}}}
    write_json(folder / "golden" / "samples.json", golden)
    (folder / "notes.txt").write_text("not used by any artifact", encoding="utf-8")
    seal(folder)
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def seal(folder: Path, **changes: Any) -> None:
    """Writes manifest.json over whatever is in the folder."""
    names = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "manifest.json"]
    files = {
        p.relative_to(folder).as_posix(): {
            "bytes": p.stat().st_size,
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
        }
        for p in names
    }
    artifact = {
        "id": ID,
        "path": "tfjs/layers/model.json",
        "runtime": {"kind": "tfjs-layers", "min_version": {"@tensorflow/tfjs": "4.22.0"}},
    }
    other = {"id": "tflite/int8", "path": "m.tflite", "runtime": {"kind": "tflite"}}
    manifest = {
        **ends(),
        "artifacts": [other, artifact],
        "golden": {"path": "golden/samples.json", "count": 4},
        "files": files,
        "unknown": {"key": True},
        **changes,
    }
    write_json(folder / "manifest.json", {k: v for k, v in manifest.items() if v is not None})


@pytest.mark.parametrize("backend", ["wasm", "cpu"])
def test_verify_passes_and_records(
    bundle: Path, node_json: Any, vendor: Path, backend: str
) -> None:
    record = bundle.parent / "record.json"
    answer = node_json(RUN, "verify", bundle.parent, "--backend", backend, "--record", record)
    assert answer["runner"] == "web"
    assert answer["runtime"]["name"] == "@tensorflow/tfjs"
    assert answer["runtime"]["backend"] == backend
    assert answer["files"]["problems"] == []
    assert answer["files"]["checked"] == len([p for p in bundle.rglob("*") if p.is_file()]) - 1
    (result,) = answer["artifacts"]
    assert (result["id"], result["status"], result["samples"]) == (ID, "passed", 4)
    assert 0 < result["max_abs_diff"] < 1e-5
    recorded = json.loads(record.read_text(encoding="utf-8"))[ID]
    expected = np.load(bundle / "golden" / "score.npy")
    for number, row in enumerate(expected):
        np.testing.assert_allclose(recorded[f"{number:03}"]["score"], row, atol=1e-5)


def test_verify_during_a_build_and_without_stored_values(
    bundle: Path, node_json: Any, vendor: Path
) -> None:
    path = bundle / "golden" / "samples.json"
    golden = json.loads(path.read_text(encoding="utf-8"))
    for sample in golden["samples"]:
        del sample["artifacts"]
    write_json(path, golden)
    seal(bundle, files=None)
    answer = node_json(RUN, "verify", bundle, "--artifact", ID)
    assert answer["files"] == {"checked": 0, "problems": []}
    assert answer["artifacts"][0]["status"] == "recorded"


def test_verify_leaves_other_runtimes_alone(bundle: Path, node_json: Any, vendor: Path) -> None:
    answer = node_json(RUN, "verify", bundle, "--artifact", "tflite/int8")
    assert answer["artifacts"][0]["status"] == "skipped"
    assert "tflite" in answer["artifacts"][0]["reason"]


def test_a_changed_weight_is_named(bundle: Path, node: Any, vendor: Path) -> None:
    shard = sorted((bundle / "tfjs" / "layers").glob("weights-*"))[0]
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)
    (bundle / "notes.txt").unlink()
    done = node(RUN, "verify", bundle)
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["files"]["problems"] == [
        {"path": "notes.txt", "problem": "missing"},
        {"path": shard.relative_to(bundle).as_posix(), "problem": "changed"},
    ]
    assert answer["artifacts"][0]["status"] == "failed"
    assert shard.name in answer["artifacts"][0]["reason"]


def test_another_answer_is_outside_the_tolerance(bundle: Path, node: Any, vendor: Path) -> None:
    scores = np.load(bundle / "golden" / "score.npy")
    scores[2, 1] += 0.25
    np.save(bundle / "golden" / "score.npy", scores)
    seal(bundle)
    done = node(RUN, "verify", bundle)
    (result,) = json.loads(done.stdout)["artifacts"]
    assert done.returncode == 3
    assert (result["status"], result["worst_sample"]) == ("failed", "002")
    assert result["max_abs_diff"] == pytest.approx(0.25, abs=1e-5)


def test_stored_nan_fails(bundle: Path, node: Any, vendor: Path) -> None:
    scores = np.load(bundle / "golden" / "score.npy")
    scores[0, 0] = np.nan
    np.save(bundle / "golden" / "score.npy", scores)
    seal(bundle)
    done = node(RUN, "verify", bundle)
    assert done.returncode == 3
    assert "not finite" in json.loads(done.stdout)["artifacts"][0]["reason"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": None}, "not a bundle"),
        ({"artifacts": None}, 'no list "artifacts"'),
    ],
)
def test_manifests_that_cannot_be_read(
    bundle: Path, node: Any, changes: dict[str, Any], words: str
) -> None:
    seal(bundle, **changes)
    done = node(RUN, "verify", bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_paths_outside_the_bundle_are_refused(bundle: Path, node: Any, vendor: Path) -> None:
    (bundle.parent / "model.json").write_text("{}", encoding="utf-8")
    artifact = {"id": ID, "path": "../model.json", "runtime": {"kind": "tfjs-layers"}}
    seal(bundle, artifacts=[artifact])
    done = node(RUN, "verify", bundle)
    assert done.returncode == 1
    assert "outside the bundle" in json.loads(done.stdout)["artifacts"][0]["reason"]


@pytest.mark.parametrize("name", ["golden/1.image.png", "golden/score.npy", "notes.txt"])
def test_links_out_of_the_bundle_are_refused(
    bundle: Path, node: Any, vendor: Path, name: str
) -> None:
    outside = bundle.parent / "outside"
    (bundle / name).rename(outside)
    (bundle / name).symlink_to(outside)
    done = node(RUN, "verify", bundle)
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["files"]["problems"] == [{"path": name, "problem": "outside the bundle"}]
    expected = "passed" if name == "notes.txt" else "failed"
    assert answer["artifacts"][0]["status"] == expected


@pytest.mark.parametrize("way", ["../stolen.bin", "/tmp/stolen.bin", "a/../../stolen.bin", "link"])
def test_shards_outside_the_models_folder_are_refused(
    bundle: Path, node: Any, vendor: Path, way: str
) -> None:
    """Both commands; only the hash of model.json itself is right."""
    folder = bundle / "tfjs" / "layers"
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    paths = model["weightsManifest"][0]["paths"]
    (folder / paths[1]).rename(folder.parent / "stolen.bin")
    (folder / "link").symlink_to(folder.parent / "stolen.bin")
    paths[1] = way
    write_json(folder / "model.json", model)
    seal(bundle, files=None)
    inputs = bundle.parent / "in"
    inputs.mkdir()
    np.save(inputs / "image.npy", np.ones((3, 5, 6, 3), np.float32))
    np.save(inputs / "extra.npy", np.ones((3, 2), np.float32))
    command = ("run", folder / "model.json", "--inputs", inputs, "--outputs", bundle.parent / "out")
    done = node(RUN, *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "lies outside" in done.stderr
    done = node(RUN, "verify", bundle)
    if way == "link":  # it stays inside the bundle, whose manifest would list it
        assert done.returncode == 0
    else:
        assert "lies outside" in json.loads(done.stdout)["artifacts"][0]["reason"]


@pytest.mark.parametrize(
    ("oldest", "code", "status"),
    [
        ({"@tensorflow/tfjs": "4.9"}, 0, "passed"),
        ({"@tensorflow/tfjs": "4.22.0"}, 0, "passed"),
        ({"@tensorflow/tfjs": "4.22.1"}, 4, "skipped"),
        ({"@tensorflow/tfjs": "4.100.0-rc1"}, 4, "skipped"),
        ({"@litertjs/core": "1.0.0"}, 4, "skipped"),
        ({}, 4, "skipped"),
    ],
)
def test_the_oldest_version_is_compared(
    bundle: Path, node: Any, vendor: Path, oldest: dict[str, str], code: int, status: str
) -> None:
    runtime = {"kind": "tfjs-layers", "min_version": oldest}
    seal(bundle, artifacts=[{"id": ID, "path": "tfjs/layers/model.json", "runtime": runtime}])
    done = node(RUN, "verify", bundle)
    (result,) = json.loads(done.stdout)["artifacts"]
    assert (done.returncode, result["status"]) == (code, status)
    if status == "skipped":
        assert "@tensorflow/tfjs" in result["reason"]
        assert oldest.get("@tensorflow/tfjs", "") in result["reason"]


def test_a_folder_without_a_manifest_is_no_version(
    bundle: Path, node_json: Any, vendor: Path
) -> None:
    (bundle.parent / "17").mkdir()
    (bundle.parent / "latest").mkdir()
    shutil.copytree(bundle, bundle.parent / "009")
    (bundle.parent / "009" / "more.txt").write_text("what tells it from version 1")
    seal(bundle.parent / "009", golden=None)
    answer = node_json(RUN, "verify", bundle.parent, "--artifact", "tflite/int8")
    newest = len([p for p in (bundle.parent / "009").rglob("*") if p.is_file()]) - 1
    assert answer["files"]["checked"] == newest
    assert node_json(RUN, "verify", bundle)["artifacts"][0]["status"] == "passed"


def test_outputs_that_are_not_finite(bundle: Path, node: Any, vendor: Path) -> None:
    """They fail, and the record, which is JSON, leaves them out."""
    shard = sorted((bundle / "tfjs" / "layers").glob("weights-*"))[0]
    content = np.frombuffer(shard.read_bytes(), "<f4").copy()
    content[:] = np.nan
    shard.write_bytes(content.tobytes())
    golden = bundle / "golden" / "samples.json"
    stored = json.loads(golden.read_text(encoding="utf-8"))
    for with_stored_values in (True, False):
        if not with_stored_values:
            for sample in stored["samples"]:
                del sample["artifacts"]
            write_json(golden, stored)
        seal(bundle)
        done = node(RUN, "verify", bundle, "--record", bundle.parent / "record.json")
        (result,) = json.loads(done.stdout)["artifacts"]
        assert (done.returncode, result["status"], result["samples"]) == (3, "failed", 4)
        assert result["reason"] == "sample 000: an output is NaN or infinite"
        assert json.loads((bundle.parent / "record.json").read_text()) == {}


def test_names_of_tensors_do_not_become_paths(bundle: Path, node: Any, vendor: Path) -> None:
    folder = bundle / "tfjs" / "layers"
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    model["userDefinedMetadata"]["packager"]["outputs"][0]["name"] = "../stolen"
    write_json(folder / "model.json", model)
    inputs, outputs = bundle.parent / "in", bundle.parent / "out"
    inputs.mkdir()
    np.save(inputs / "image.npy", np.ones((3, 5, 6, 3), np.float32))
    np.save(inputs / "extra.npy", np.ones((3, 2), np.float32))
    done = node(RUN, "run", folder / "model.json", "--inputs", inputs, "--outputs", outputs)
    assert done.returncode == 1
    assert "../stolen is the name of a tensor" in done.stderr
    assert not list(bundle.parent.rglob("stolen*"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_run_over_many_samples(bundle: Path, node_json: Any, vendor: Path, dtype: str) -> None:
    folder = bundle / "tfjs" / "layers"
    random = np.random.default_rng(9)
    count = 71
    images = random.normal(1.0, 40.0, (count, 5, 6, 3)).clip(0, 255).astype(dtype)
    extras = random.normal(size=(count, 2)).astype(np.float32)
    inputs, outputs = bundle.parent / "in", bundle.parent / "out"
    inputs.mkdir()
    np.save(inputs / "image.npy", images)
    np.save(inputs / "extra.npy", extras)
    arguments = ("--inputs", inputs, "--outputs", outputs, "--batch", "16")
    answer = node_json(RUN, "run", folder / "model.json", *arguments)
    assert answer["count"] == count
    assert answer["runtime"]["version"] == "4.22.0"
    _, kernel, bias = model()
    flat = np.concatenate([images.reshape(count, -1).astype(np.float32), extras], 1)
    expected = flat @ kernel + bias
    got = np.load(outputs / "score.npy")
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5 * float(np.ptp(expected)))


def test_run_refuses_what_does_not_fit(bundle: Path, node: Any, vendor: Path) -> None:
    inputs = bundle.parent / "in"
    inputs.mkdir()
    command = (RUN, "run", bundle / "tfjs" / "layers" / "model.json", "--inputs", inputs)
    np.save(inputs / "image.npy", np.ones((3, 5, 6, 3), np.float32))
    np.save(inputs / "extra.npy", np.ones((2, 2), np.float32))
    done = node(*command, "--outputs", bundle.parent / "out")
    assert done.returncode == 1
    assert "same number of samples" in done.stderr
    np.save(inputs / "extra.npy", np.ones((3, 7), np.float32))
    done = node(*command, "--outputs", bundle.parent / "out")
    assert "input extra: expected the shape [,2], received [3,7]" in done.stderr
    np.save(inputs / "extra.npy", np.asfortranarray(np.ones((3, 2), np.float32)))
    done = node(*command, "--outputs", bundle.parent / "out")
    assert "Fortran order" in done.stderr


def test_usage_and_missing_runtime(bundle: Path, node: Any, tmp_path: Path) -> None:
    for wrong in ((), ("fly", "x"), ("verify", bundle, "--backend", "abacus"), ("run", bundle)):
        done = node(RUN, *wrong)
        assert (done.returncode, done.stdout) == (2, "")
    done = node(RUN, "verify", bundle, "--vendor", tmp_path / "nowhere")
    assert done.returncode == 4
    assert "make vendor" in done.stderr


def test_the_runner_works_from_a_copied_folder(
    bundle: Path, node_json: Any, vendor: Path, tmp_path: Path
) -> None:
    web = tmp_path / "site"
    shutil.copytree(RUN.parents[1], web, ignore=shutil.ignore_patterns("vendor"))
    answer = node_json(web / "node" / "run.mjs", "verify", bundle, "--vendor", vendor)
    assert answer["artifacts"][0]["status"] == "passed"
