"""The cache: what it gives back, what it depends on, and that nothing bad can come of it."""

import json
import os
import threading
from pathlib import Path

import pytest

from packager import cache
from packager.cache import Cache
from packager.children import Child
from packager.errors import ChildCrashed, ConfigError, UnsupportedError
from tests.conftest import DIGITS, packager

WORKER = "tests.echo_worker"
KEY = "ab" + 62 * "0"


@pytest.fixture
def kept(tmp_path):
    return Cache(tmp_path / "cache", 10**6)


def entry_of(kept):
    (entry,) = kept.folder.glob("??/*.zip")
    return entry


def write_outputs(folder):
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "a.bin").write_bytes(bytes(range(256)))
    (folder / "file").write_text("x")


def outputs(folder):
    return [folder / "deep", folder / "file", folder / "absent"]


def test_files_folders_and_what_was_not_written_come_back(kept, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    write_outputs(here)
    kept.store(KEY, {"value": [1, "ü"]}, outputs(here))
    assert kept.restore(KEY, outputs(there)) == {"value": [1, "ü"]}
    found = {p.relative_to(there).as_posix() for p in there.rglob("*")}
    assert found == {"deep", "deep/a.bin", "deep/empty", "file"}
    assert (there / "deep/a.bin").read_bytes() == bytes(range(256))
    assert kept.restore("cd" + KEY[2:], outputs(there)) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_entry_is_absent_and_changes_nothing(kept, tmp_path, damage):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    write_outputs(here)
    kept.store(KEY, {"value": 1}, outputs(here))
    entry = entry_of(kept)
    data = bytearray(entry.read_bytes())
    data[data.index(bytes(range(256))) + 7] ^= 1
    entry.write_bytes({"flip": data, "cut": data[: len(data) // 2], "empty": b""}[damage])
    (there / "file").write_text("mine")
    assert kept.restore(KEY, outputs(there)) is None
    assert [p.name for p in there.iterdir()] == ["file"]
    assert (there / "file").read_text() == "mine"
    assert not entry.exists()
    value = kept.remembered(KEY, outputs(there), lambda: 2)
    assert (value, kept.remembered(KEY, outputs(there), lambda: 3)) == (2, 2)


def test_the_longest_unused_entries_go(kept, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1000))
    keys = [f"{i:02x}{KEY[2:]}" for i in range(4)]
    for age, key in enumerate(keys):
        kept.store(key, {"value": age}, [file])
        path = kept.folder / key[:2] / f"{key}.zip"
        os.utime(path, (1000 + age, 1000 + age))
    unfinished = kept.folder / "00" / ".new-killed"
    unfinished.write_bytes(bytes(5000))
    os.utime(unfinished, (500, 500))
    assert kept.restore(keys[0], [file])  # used just now
    kept.limit_bytes = 3000
    kept.trim()
    assert [kept.restore(key, [file]) is not None for key in keys] == [True, False, False, True]
    assert not unfinished.exists()
    assert kept.size_bytes() <= 3000


def test_an_entry_that_would_drive_out_most_others_is_not_kept(kept, tmp_path):
    (tmp_path / "large").write_bytes(bytes(600_000))
    kept.store(KEY, {"value": 1}, [tmp_path / "large"])
    assert kept.size_bytes() == 0


def test_a_file_from_before_1980_and_a_folder_that_is_not_there_yet(kept, tmp_path):
    (tmp_path / "old").write_text("x")
    os.utime(tmp_path / "old", (1000, 1000))
    kept.store(KEY, {"value": 1}, [tmp_path / "old"])
    assert kept.restore(KEY, [tmp_path / "new" / "folder" / "file"]) == {"value": 1}
    assert (tmp_path / "new" / "folder" / "file").read_text() == "x"


def test_a_change_within_the_clocks_resolution_is_seen(kept, tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    stamp = path.stat().st_mtime_ns
    first = kept.digest(path)
    path.write_text("2")
    os.utime(path, ns=(stamp, stamp))
    assert kept.digest(path) != first


def test_no_room_and_no_permission_are_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    kept = Cache(tmp_path / "cache", 10**6)
    assert kept.remembered(KEY, [], lambda: 5) == 5
    assert kept.remembered(KEY, [], lambda: 6) == 6
    kept.trim()


def test_builds_side_by_side_see_whole_entries(kept, tmp_path):
    contents = [bytes([i]) * 200_000 for i in range(4)]
    wrong = []

    def work(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        for _ in range(25):
            (folder / "in").write_bytes(contents[number])
            kept.store(KEY, {"value": number}, [folder / "in"])
            answer = kept.restore(KEY, [folder / "out"])
            if answer and (folder / "out").read_bytes() != contents[answer["value"]]:
                wrong.append(answer)
            if number == 3:
                kept.limit_bytes = 0
                kept.trim()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert list(kept.folder.glob("??/.new-*")) == []


def test_a_digest_is_of_the_content_and_the_names(kept, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = kept.digest(folder)
    (folder / "a").rename(folder / "b")
    second = kept.digest(folder)
    (folder / "b").write_text("22")
    assert len({first, second, kept.digest(folder)}) == 3
    assert kept.digest(folder) == Cache(None).digest(folder)


def test_the_key_depends_on_the_tools(kept, monkeypatch):
    before = kept.key({"a": 1})
    assert before == kept.key({"a": 1}) != kept.key({"a": 2})
    monkeypatch.setattr(cache, "tools", lambda: ["another version"])
    assert kept.key({"a": 1}) != before


def test_tools_name_code_packages_settings_and_processor(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    found = cache.tools.__wrapped__()
    assert any(name.startswith("tensorflow-2") for name in found)
    assert any(name.startswith("ai_edge_litert-") for name in found)
    assert "TF_ENABLE_ONEDNN_OPTS=0" in found
    assert str(os.cpu_count()) in found[-1]


@pytest.mark.parametrize(
    ("environment", "folder", "limit"),
    [
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/packager"), 5 * 10**9),
        ({"PACKAGER_CACHE": "/y", "PACKAGER_CACHE_LIMIT": "1.5 MB"}, Path("/y"), 1_500_000),
        ({"PACKAGER_CACHE": ""}, None, 5 * 10**9),
        ({"PACKAGER_CACHE_LIMIT": "0"}, None, 0),
    ],
)
def test_the_environment_says_where_and_how_much(environment, folder, limit):
    found = cache.from_environment(environment)
    assert (found.folder, found.limit_bytes) == (folder, limit)


def test_a_limit_that_is_no_size_is_refused():
    with pytest.raises(ConfigError, match=r"PACKAGER_CACHE_LIMIT.*'much'"):
        cache.from_environment({"PACKAGER_CACHE_LIMIT": "much"})


def double(child, source, target):
    return child.call(
        "double", "doubling", reads=["source"], writes=[target], source=source, target=target
    )


def test_a_child_is_not_started_for_what_is_known(kept, tmp_path):
    source = tmp_path / "source"
    source.write_text("ab")
    with Child(WORKER, cache=kept) as child:
        first = double(child, source, tmp_path / "first")
    with Child(WORKER, cache=kept) as child:
        assert double(child, source, tmp_path / "second") == first
        assert child._process is None
        assert (tmp_path / "second" / "twice.txt").read_text() == "abab"
        source.write_text("cd")
        assert double(child, source, tmp_path / "third") != first
        assert (tmp_path / "third" / "twice.txt").read_text() == "cdcd"
    assert (kept.hits, kept.misses) == (1, 2)


def test_a_child_that_starts_late_is_told_what_it_must_know(kept):
    def ask(value):
        with Child(WORKER, cache=kept) as child:
            child.call("remember", "remembering", keep=True, reads=(), value=value)
            return child.call("recall", "recalling"), child.call("recall", "", reads=())

    assert ask(41) == (41, 41)
    assert ask(41) == (41, 41)
    # What a child knows is part of the question.
    assert ask(42) == (42, 42)


def test_answers_come_in_any_order_with_known_ones_between(kept, tmp_path):
    with Child(WORKER, cache=kept) as child:
        child.call("add", "", reads=(), a=1, b=2)
    with Child(WORKER, cache=kept) as child:
        slow = child.submit("sleep", "sleeping", seconds=0.2)
        known = child.submit("add", "", reads=(), a=1, b=2)
        crash = child.submit("segfault", "crashing", reads=())
        new = child.submit("add", "", reads=(), a=3, b=4)
        assert (known.result(), new.result(), slow.result()) == (3, 7, None)
        with pytest.raises(ChildCrashed, match="crashing"):
            crash.result()
    with Child(WORKER, cache=kept) as child, pytest.raises(ChildCrashed):
        child.call("segfault", "crashing", reads=())


def test_refusals_are_known_and_other_errors_are_not(kept):
    for started in (True, False):
        with Child(WORKER, cache=kept) as child:
            with pytest.raises(UnsupportedError, match="no form of it") as caught:
                child.call("unsupported", "", reads=())
            assert caught.value.hint == "another"
            assert (child._process is not None) == started
    for _ in range(2):
        with Child(WORKER, cache=kept) as child:
            with pytest.raises(Exception, match="no samples"):
                child.call("refuse", "", reads=())
            assert child._process is not None


def test_what_a_trusted_child_says_is_not_remembered(kept):
    for _ in range(2):
        with Child(WORKER, cache=kept, trusted=True) as child:
            child.call("add", "", reads=(), a=1, b=2)
    assert (kept.hits, kept.misses) == (0, 0)


def test_a_path_must_be_read_or_written(kept, tmp_path):
    with Child(WORKER, cache=kept) as child, pytest.raises(TypeError, match="target is a path"):
        child.submit("double", "", reads=["source"], source=tmp_path, target=tmp_path / "x")


def stages(ran):
    """Which stages a build took whole from the cache, by name."""
    lines = [line for line in ran.err.splitlines() if "✓" in line]
    return {line.split("✓")[1].split("  ")[0].strip(): line.endswith("cached") for line in lines}


@pytest.mark.tf
def test_a_rebuild_repeats_only_what_depends_on_the_change(tmp_path):
    def build(*flags):
        ran = packager(
            "build", DIGITS / "model.keras", "--name", "digits", "--preprocess", "0..1",
            "--only", "saved_model", "--only", "tflite/float32", "--only", "tflite/int8",
            "--calibration", DIGITS / "data/calibration.npz", "--evaluation", evaluation,
            "-o", tmp_path / "dist", *flags, PACKAGER_CACHE=str(tmp_path / "cache"),
        )  # fmt: skip
        assert ran.code in (0, 3), ran.err
        return ran

    def hashes(version):
        folder = next((tmp_path / "dist" / "digits").glob(f"{version}*"))
        manifest = json.loads((folder / "manifest.json").read_text())
        metrics = {a["id"]: a["metrics"] for a in manifest["artifacts"]}
        return {k: v["sha256"] for k, v in manifest["files"].items()}, metrics

    evaluation = DIGITS / "data/evaluation.npz"
    first = stages(build("--version", "1"))
    assert not any(first.values())
    gates = build("--version", "2", "--max-drop", "0")
    found = stages(gates)
    # The files' cards hold the version, and the cheapest stages write them anew.
    unchanged = {name for name, known in found.items() if known}
    assert unchanged >= {
        "open it in TensorFlow", "SavedModel", "convert to TFLite", "calibrate",
        "run the source model", "verify with the shipped runners",
    }  # fmt: skip
    assert hashes(1)[1] == hashes(2)[1]
    before = hashes(1)[0]
    same = stages(build("--version", "1", "--force", "--max-drop", "0.5"))
    assert {same[name] for name in ("tflite/int8", "tflite/float32")} == {True}
    after = hashes(1)[0]
    assert {name for name in before | after if before[name] != after[name]} == {"package.yaml"}
    plan = stages(build("--version", "3", "--keep-float", "block2_depthwise"))
    assert {name for name, known in plan.items() if known} >= {"convert to TFLite", "calibrate"}
    assert not plan["tflite/int8"]
    assert not plan["verify with the shipped runners"]
    assert not any(stages(build("--version", "4", "--no-cache", "--no-verify")).values())
