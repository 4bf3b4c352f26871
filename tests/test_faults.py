"""What a full disk, lost permissions, clocks, crashes, hangs and other builds do to a build."""

import contextlib
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest

import packager as packaging
from packager import bundle, hashes, opening
from packager.children import Child
from packager.errors import BundleError, ConversionError, PackagerError
from packager.targets import tfjs
from tests.conftest import DIGITS, ROOT

TIME_LIMIT_S = 60
measure = importlib.import_module(
    "packager.bench.measure"
)  # the package has a function of this name


def build(output, **options):
    """Builds what needs no TensorFlow: in a fraction of a second, through every stage."""
    return packaging.build(
        str(DIGITS / "model.keras"), name="digits", output=str(output), preprocess="0..1",
        targets=["tfjs/layers"], verify=False, **{"version": "next", **options},
    )  # fmt: skip


def is_whole(folder):
    return hashes.check_files(folder, bundle.read_manifest(folder)) == []


@contextlib.contextmanager
def mounted(folder, options):
    """A small file system of its own."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_at_any_moment_of_a_build(tmp_path):
    """From one page to enough: every write is once the one that fails."""
    size_kib, failed = 4, 0
    while True:
        with mounted(tmp_path / "disk", f"size={size_kib}k") as disk:
            try:
                result = build(disk / "dist")
            except BundleError as error:
                failed += 1
                assert "No space left on device" in error.message
                assert "make room" in error.hint or "another folder" in error.hint
                assert error.exit_code == 1
                assert list(disk.iterdir()) == []
            else:
                assert is_whole(result.path)
                break
        size_kib += 32
    assert failed > 4


def test_a_disk_that_is_full_keeps_the_version_that_was_to_be_replaced(tmp_path):
    with mounted(tmp_path / "disk", "size=2m") as disk:
        first = build(disk / "dist")
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - 100_000))
        with pytest.raises(BundleError, match="No space left"):
            build(disk / "dist", version=1, force=True)
        assert is_whole(first.path)
        assert [p.name for p in (disk / "dist/digits").iterdir()] == ["1"]
        (disk / "ballast").unlink()
        assert is_whole(build(disk / "dist", version=1, force=True).path)


def test_a_child_process_that_finds_the_disk_full_says_what_to_do(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as disk, Child("tests.echo_worker") as child:
        with pytest.raises(ConversionError, match="No space left on device") as caught:
            child.call("write", "converting", path=disk / "file", size_bytes=200_000)
        assert "TMPDIR" in caught.value.hint
        with pytest.raises(ConversionError) as caught:
            child.call("divide", "dividing", by=0)
        assert caught.value.hint == ""


def test_permission_that_is_lost_midway(tmp_path, monkeypatch):
    """The folder can no longer be written, not even to clean up; once it can, a rerun does."""
    write = tfjs.write
    with mounted(tmp_path / "disk", "size=10m") as disk:

        def lose(*given):
            written = write(*given)
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            return written

        monkeypatch.setattr(tfjs, "write", lose)
        with pytest.raises(BundleError, match="Read-only file system; nothing was published") as e:
            build(disk / "dist")
        assert "permission" in e.value.hint
        assert all(p.name.startswith(".") for p in (disk / "dist/digits").iterdir())
        monkeypatch.undo()
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert is_whole(build(disk / "dist").path)
        assert [p.name for p in (disk / "dist/digits").iterdir()] == ["1"]


def test_a_clock_that_goes_back(tmp_path, monkeypatch, capsys):
    """Versions count, they are no times; durations come from a clock that cannot go back."""
    first = build(tmp_path)
    ticks = itertools.count(1e9, -3600.0)
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: next(ticks))
    for path in (tmp_path / "digits").rglob("*"):
        os.utime(path, (4e9, 4e9))
    second = build(tmp_path, quiet=False)
    assert (first.manifest.version, second.manifest.version) == (1, 2)
    assert bundle.find_bundle(tmp_path / "digits") == second.path
    told = capsys.readouterr().err
    assert re.search(r"\d s\b|\ds\b|\d ms", told), told
    assert not re.search(r"-\d", re.sub(r"\w-\d", "", told.replace(str(tmp_path), ""))), told


def test_no_duration_is_measured_by_a_clock_that_can_jump():
    """Only the time in a log, in a name, `created` and a file's age are of the wall clock."""
    found = []
    for folder in ("packager", "edge", "server/packager_server"):
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if re.search(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow|today)\(", line):
                    found.append((path.name, line.strip()))
    expected = ["access.py", "cache.py", "describe.py", "measure.py", "run.py"]
    assert sorted(name for name, _ in found) == expected


def at_once(*calls):
    """Runs calls in threads; what each returned or raised."""
    found = [None] * len(calls)

    def run(number):
        try:
            found[number] = calls[number]()
        except PackagerError as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIME_LIMIT_S)
        assert not thread.is_alive()
    return found


@pytest.fixture
def meeting(monkeypatch):
    """Lets two builds wait for each other when both have begun."""
    barrier, write = threading.Barrier(2, timeout=TIME_LIMIT_S), tfjs.write

    def wait(*given):
        barrier.wait()
        return write(*given)

    monkeypatch.setattr(tfjs, "write", wait)


def test_two_builds_of_one_name_get_two_versions(tmp_path, meeting):
    results = at_once(lambda: build(tmp_path), lambda: build(tmp_path))
    assert sorted(result.manifest.version for result in results) == [1, 2]
    assert all(is_whole(result.path) for result in results)
    assert sorted(p.name for p in (tmp_path / "digits").iterdir()) == ["1", "2"]


def test_two_builds_of_one_version_leave_one_and_say_so(tmp_path, meeting):
    results = at_once(*[lambda: build(tmp_path, version=1)] * 2)
    (error,) = [result for result in results if isinstance(result, PackagerError)]
    assert "1 exists already" in error.message
    assert "--version next" in error.hint
    assert is_whole(tmp_path / "digits/1")
    assert [p.name for p in (tmp_path / "digits").iterdir()] == ["1"]


def test_two_builds_that_replace_one_version_both_succeed(tmp_path, meeting):
    results = at_once(*[lambda: build(tmp_path, version=1, force=True)] * 2)
    assert [result.manifest.version for result in results] == [1, 1]
    assert is_whole(tmp_path / "digits/1")
    assert [p.name for p in (tmp_path / "digits").iterdir()] == ["1"]


@pytest.mark.tf
def test_a_converter_that_crashes(models, tmp_path, monkeypatch, capsys):
    def child(_module, model, work, reporter, cache):
        return Child("tests.crashing_worker", temporary=work)

    monkeypatch.setattr(opening, "child", child)
    result = packaging.build(
        str(models / "linear.keras"),
        output=str(tmp_path),
        targets=["saved_model", "tflite/float32"],
        verify=False,
    )
    assert result.exit_code == 1
    (failure,) = result.failures
    assert failure.id == "tflite/float32"
    assert re.search(r"converting .* died \(signal SIGSEGV\)", failure.error.message)
    assert "--verbose" in failure.error.hint
    assert [a.id for a in result.manifest.artifacts] == ["saved_model"]
    assert is_whole(result.path)


def test_a_child_that_hangs(monkeypatch):
    monkeypatch.setattr(measure, "_TIMEOUT_S", 1.0)
    with pytest.raises(PackagerError, match="no answer in 1 s"):
        measure._ask([sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(PackagerError, match="cannot be started"):
        measure._ask(["/nowhere/python"])
    with pytest.raises(PackagerError, match="what went wrong"):
        measure._ask([sys.executable, "-c", "raise SystemExit('what went wrong')"])


def test_a_measured_child_has_no_network_and_no_secrets(monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    code = "import json, os; print(json.dumps({'token': os.environ.get('GITHUB_TOKEN')}))"
    assert measure._ask([sys.executable, "-c", code]) == {"token": None}
