"""The manifest types, hashes, and publishing."""

import json
import multiprocessing
import os
import signal
import time

import pytest

from packager import bundle, hashes, publish
from packager.bundle import (
    Artifact,
    ArtifactTensor,
    FileEntry,
    ImageSpec,
    InputSpec,
    Manifest,
    OutputSpec,
    Runtime,
    Source,
)
from packager.errors import BundleError


@pytest.fixture
def manifest():
    return Manifest(
        name="digits",
        version=3,
        created="2026-11-30T12:00:00Z",
        source=Source("m.keras", "00", "keras3", "keras 3.15.1"),
        task="classification",
        inputs=(
            InputSpec("x", "x", (None, 8, 8, 1), "float32", ImageSpec(8, 8, "gray", scale=(0.1,))),
        ),
        outputs=(OutputSpec("y", "y", (None, 2), "float32", "softmax"),),
        labels=("null", "eins"),
        artifacts=(
            Artifact(
                "tflite/int8",
                "tflite/digits.int8.tflite",
                Runtime("tflite", {"tflite-runtime": "2.14.0"}),
                (ArtifactTensor("input", "x", "int8", (1, 8, 8, 1), (0.5,), (-128,)),),
            ),
        ),
        files={"labels.txt": FileEntry(3, "ab")},
    )


def test_a_manifest_survives_the_way_through_json(manifest, tmp_path):
    bundle.write_json(manifest, tmp_path / "manifest.json")
    assert bundle.read_manifest(tmp_path) == manifest


def test_unknown_keys_are_ignored_and_a_newer_schema_is_not(manifest, tmp_path):
    value = bundle.to_json(manifest)
    value["future"] = {"a": 1}
    value["inputs"][0]["future"] = 2
    bundle.write_json(value, tmp_path / "manifest.json")
    assert bundle.read_manifest(tmp_path) == manifest
    bundle.write_json({**value, "schema": 2}, tmp_path / "manifest.json")
    with pytest.raises(BundleError, match="schema 2"):
        bundle.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("version",), "3", r"manifest\.version: expected int, received '3'"),
        (("inputs", 0, "dtype"), 5, r"manifest\.inputs\[0\]\.dtype: expected str"),
        (("artifacts", 0, "io", 0, "scale"), "x", r"io\[0\]\.scale: expected a list"),
        (("source",), [], r"manifest\.source: expected an object"),
        (("threshold",), True, r"manifest\.threshold: expected a number"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(manifest, tmp_path, path, value, text):
    document = bundle.to_json(manifest)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match=text):
        bundle.read_manifest(tmp_path)


def test_a_missing_key_is_named(manifest, tmp_path):
    document = bundle.to_json(manifest)
    del document["artifacts"][0]["runtime"]
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match=r"artifacts\[0\]: the key 'runtime' is missing"):
        bundle.read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff"])
def test_a_damaged_manifest(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BundleError):
        bundle.read_manifest(tmp_path)


def test_numbers_that_are_not_finite_are_never_written(manifest):
    with pytest.raises(BundleError, match="finite"):
        bundle.to_json({"metrics": {"accuracy": float("nan")}})


def test_the_card_has_no_hashes_metrics_or_gates(manifest):
    assert set(manifest.card()) == {
        "schema", "name", "version", "task", "threshold", "inputs", "outputs", "labels", "tools",
    }  # fmt: skip


def test_every_changed_missing_or_added_file_is_named(tmp_path, manifest):
    for name in ("a.txt", "sub/b.bin", "sub/c.bin", "report/index.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = hashes.hash_bundle(tmp_path)
    assert set(files) == {"a.txt", "sub/b.bin", "sub/c.bin"}
    described = Manifest(**{**vars(manifest), "files": files})
    bundle.write_json(described, tmp_path / "manifest.json")
    assert hashes.check_files(tmp_path, described) == []
    (tmp_path / "a.txt").write_text("A.txt")
    (tmp_path / "sub/b.bin").unlink()
    (tmp_path / "new").touch()
    (tmp_path / "report/index.html").write_text("merged")
    assert sorted(hashes.check_files(tmp_path, described)) == [
        ("a.txt", "changed"),
        ("new", "unexpected"),
        ("sub/b.bin", "missing"),
    ]


def test_a_changed_manifest_is_named(tmp_path, manifest):
    described = bundle.to_json(manifest)
    described["files"] = {}
    described["checksum"] = hashes.checksum(described)
    bundle.write_json(described, tmp_path / "manifest.json")
    assert hashes.check_files(tmp_path, bundle.read_manifest(tmp_path)) == []
    described["labels"][0] = "zwei"
    bundle.write_json(described, tmp_path / "manifest.json")
    problems = hashes.check_files(tmp_path, bundle.read_manifest(tmp_path))
    assert problems == [("manifest.json", "changed")]


def test_a_link_that_leaves_the_bundle_is_not_read(tmp_path, manifest):
    (tmp_path / "outside").write_text("secret")
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    described = Manifest(**{**vars(manifest), "files": {"link": FileEntry(6, "")}})
    bundle.write_json(described, folder / "manifest.json")
    assert ("link", "unsafe path") in hashes.check_files(folder, described)


def test_a_path_that_leaves_the_bundle_is_not_read(tmp_path, manifest):
    described = Manifest(**{**vars(manifest), "files": {"../x": FileEntry(0, "")}})
    bundle.write_json(described, tmp_path / "manifest.json")
    assert ("../x", "unsafe path") in hashes.check_files(tmp_path, described)


def test_the_newest_version_is_found(tmp_path):
    for version in ("2", "10", "9"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "manifest.json").write_text("{}")
    (tmp_path / "11").mkdir()
    assert bundle.find_bundle(tmp_path).name == "10"
    assert bundle.find_bundle(tmp_path / "9").name == "9"
    with pytest.raises(BundleError, match="not a bundle"):
        bundle.find_bundle(tmp_path / "11")


def versions(base):
    return sorted(p.name for p in base.iterdir())


def fill(stage, text="new"):
    (stage.folder / "file").write_text(text)


def test_publishing_makes_a_version_and_leaves_nothing_else(tmp_path):
    base = tmp_path / "dist" / "digits"
    with publish.staging(base, None) as stage:
        fill(stage)
        assert versions(base) == [stage.folder.name]
        assert not stage.folder.name.isdigit()
        publish.publish(stage)
    with publish.staging(base, None) as stage:
        fill(stage)
        publish.publish(stage)
    assert versions(base) == ["1", "2"]


def test_an_error_leaves_nothing(tmp_path):
    base = tmp_path / "digits"
    with pytest.raises(RuntimeError), publish.staging(base, 1) as stage:
        fill(stage)
        raise RuntimeError
    assert not base.exists()


def test_an_existing_version_is_kept_without_force_and_replaced_with_it(tmp_path):
    for force, text in ((False, "old"), (True, "new")):
        with publish.staging(tmp_path, 1, force=force) as stage:
            fill(stage, text)
            publish.publish(stage, force=force)
        assert (tmp_path / "1" / "file").read_text() == text
    with pytest.raises(BundleError, match="exists already"), publish.staging(tmp_path, 1):
        pass
    assert versions(tmp_path) == ["1"]


def test_a_failing_rename_restores_the_old_version(tmp_path, monkeypatch):
    with publish.staging(tmp_path, 1) as stage:
        fill(stage, "old")
        publish.publish(stage)
    with publish.staging(tmp_path, 1, force=True) as stage:
        fill(stage)
        original = type(stage.folder).rename

        def rename(path, target):
            if path == stage.folder:
                raise OSError(28, "No space left on device")
            return original(path, target)

        monkeypatch.setattr(type(stage.folder), "rename", rename)
        with pytest.raises(BundleError, match="No space left"):
            publish.publish(stage, force=True)
    assert (tmp_path / "1" / "file").read_text() == "old"
    assert versions(tmp_path) == ["1"]


def hold(base, started):
    with publish.staging(base, None) as stage:
        fill(stage)
        started.set()
        time.sleep(600)


def test_a_live_build_keeps_its_number_and_a_killed_one_is_cleaned_up(tmp_path):
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    other = context.Process(target=hold, args=(tmp_path, started))
    other.start()
    assert started.wait(60)
    with publish.staging(tmp_path, None) as stage:
        assert stage.version == 2
        fill(stage)
        publish.publish(stage)
    assert any(name.startswith(".1.building-") for name in versions(tmp_path))
    os.kill(other.pid, signal.SIGKILL)
    other.join(60)
    with publish.staging(tmp_path, 1) as stage:
        fill(stage)
        publish.publish(stage)
    assert versions(tmp_path) == ["1", "2"]


def test_a_version_that_was_moved_aside_by_a_killed_build_comes_back(tmp_path):
    (tmp_path / ".1.old-0123abcd").mkdir()
    (tmp_path / ".1.old-0123abcd" / "file").write_text("old")
    with publish.staging(tmp_path, None) as stage:
        assert stage.version == 2
    assert (tmp_path / "1" / "file").read_text() == "old"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(BundleError, match="cannot write below"),
        publish.staging(tmp_path / "file" / "digits", 1),
    ):
        pass
