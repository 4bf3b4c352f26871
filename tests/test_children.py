"""Child processes: order of answers, errors, crashes and restarts."""

import os
import socket

import pytest

from packager import sandbox
from packager.children import Child
from packager.errors import ChildCrashed, ConversionError, DataError

WORKER = "tests.echo_worker"


def test_answers_reach_their_askers_in_any_order():
    with Child(WORKER) as child:
        first = child.submit("add", "adding", a=1, b=2)
        second = child.submit("add", "adding", a=10, b=20)
        assert second.result() == 30
        assert first.result() == 3
        assert first.result() == 3


def test_prints_do_not_disturb_answers():
    with Child(WORKER) as child:
        assert child.call("noisy", "printing") == "quiet"


def test_errors_keep_class_message_hint_and_exit_code():
    with Child(WORKER) as child:
        with pytest.raises(DataError, match="no samples") as caught:
            child.call("refuse", "refusing")
        assert caught.value.hint == "give some"
        assert caught.value.exit_code == 2
        with pytest.raises(ConversionError, match="ZeroDivisionError"):
            child.call("divide", "dividing", by=0)
        assert child.call("add", "adding", a=1, b=1) == 2


@pytest.mark.parametrize(("method", "how"), [("segfault", "SIGSEGV"), ("leave", "exit code 7")])
def test_a_crash_names_the_stage_and_the_signal(method, how):
    with Child(WORKER) as child:
        with pytest.raises(ChildCrashed, match=f"converting it died .*{how}") as caught:
            child.call(method, "converting it")
        assert "last words" in "".join(caught.value.__notes__)


def test_after_a_crash_the_child_goes_on_with_what_it_must_know():
    with Child(WORKER) as child:
        child.call("remember", "remembering", keep=True, value=41)
        child.submit("sleep", "sleeping", seconds=0.5)
        crash = child.submit("segfault", "crashing")
        waiting = child.submit("recall", "recalling")
        with pytest.raises(ChildCrashed, match="crashing"):
            crash.result()
        assert waiting.result() == 41
        for _ in range(2):
            with pytest.raises(ChildCrashed, match="exit code 7"):
                child.call("leave", "leaving")
            assert child.call("recall", "recalling") == 41


def test_what_failed_is_not_told_again():
    with Child(WORKER) as child:
        with pytest.raises(ChildCrashed):
            child.call("segfault", "crashing", keep=True)
        assert child.call("add", "adding", a=1, b=1) == 2
        child.call("remember", "remembering", keep=True, value=41)
        with child.again() as other:
            assert other.call("recall", "recalling") == 41


def test_a_child_that_cannot_start_again_does_not_hang(tmp_path):
    with Child(WORKER) as child:
        child.call("once", "working once", keep=True, marker=tmp_path / "marker")
        assert child.call("add", "adding", a=1, b=1) == 2
        with pytest.raises(ChildCrashed):
            child.call("segfault", "crashing")
        with pytest.raises(ChildCrashed):
            child.call("add", "adding", a=1, b=1)


def test_close_kills_a_busy_child():
    child = Child(WORKER)
    child.submit("sleep", "sleeping", seconds=600)
    child.close(at_once=True)
    assert child._process.poll() is not None


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_child_has_no_network_and_no_secrets(port, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    with Child(WORKER) as child:
        if sandbox.can_cut_network():
            assert child.call("connect", "connecting", port=port) is False
        # As a browser and its page do.
        assert child.call("talk", "connecting") is True
        found = child.call("environment", "looking")
        assert "hush" not in found.values()
        assert "TF_CONFIG" not in found
        assert found["PATH"] == os.environ["PATH"]
        limits = child.call("limits", "looking")
        assert limits["CORE"] == 0
        assert 32 * 2**30 <= limits["AS"] < 2**45
        assert child.call("allocate", "allocating", size_bytes=limits["AS"] + 2**20) == 0
    with Child(WORKER, trusted=True) as child:
        assert child.call("connect", "connecting", port=port) is True
        assert child.call("environment", "looking")["GITHUB_TOKEN"] == "hush"


def test_a_request_that_takes_too_long_ends_the_child():
    with Child(WORKER, limit_s=0.5) as child:
        with pytest.raises(ChildCrashed, match=r"converting it died .*longer than 0\.5 s"):
            child.call("sleep", "converting it", seconds=600)
        assert child.call("add", "adding", a=1, b=1) == 2
