"""Versions on a file system: the cases of TensorFlow Serving's own tests, with small models."""

import threading
import time

import pytest
from packager_server.codes import ServeError
from packager_server.lifecycle import Lifecycle, ModelConfig
from packager_server.storage import VersionPolicy, list_versions
from packager_server.versions import VersionManager

from tests.server import fakes

LIMIT_S = 20


@pytest.fixture
def make(tmp_path):
    managers = []

    def with_folders(models, *, policy=None, labels=None, configure=True, **lifecycle):
        folders = fakes.Folders(tmp_path / "m", models)
        (tmp_path / "m").mkdir(exist_ok=True)
        manager = VersionManager(folders, Lifecycle(**lifecycle))
        managers.append(manager)
        if configure:
            manager.reload([config(tmp_path, policy, labels)])
        return manager, folders

    yield with_folders
    for manager in managers:
        manager.stop()


def config(tmp_path, policy=None, labels=None, name="m"):
    return ModelConfig(name, str(tmp_path / "m"), policy or VersionPolicy(), labels or {})


def model():
    return fakes.scaled()


def states(manager, name="m"):
    return {one.version: one.state for one in manager.status(name)}


def newest(manager):
    lease = manager.acquire("m")
    lease.release()
    return lease.version


def test_no_versions_at_start_and_files_that_appear_later(make):
    manager, folders = make({})
    assert not manager.ready()
    with pytest.raises(ServeError, match="Could not find any versions of model m"):
        manager.status("m")
    folders.add("3", model())
    manager.poll()
    assert manager.ready() and newest(manager) == 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (VersionPolicy(), [9]),
        (VersionPolicy("latest", count=2), [5, 9]),
        (VersionPolicy("latest", count=10), [1, 5, 9]),
        (VersionPolicy("all"), [1, 5, 9]),
        (VersionPolicy("specific", versions=(5, 7)), [5]),
        (VersionPolicy("specific"), []),
    ],
)
def test_policies(make, policy, expected):
    manager, folders = make({"1": model(), "00005": model(), "9": model()}, policy=policy)
    assert sorted(folders.loads) == expected
    found = {one.version for one in manager.status("m")} if expected else set()
    assert found == set(expected)


def test_names_that_are_no_versions(tmp_path):
    for name in ("1", "001", "-2", "2.5", "x", ".3", "3.tmp", "٤", "99999999999999999999", "0"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").write_text("a file")
    assert list_versions(str(tmp_path)) == {0: f"{tmp_path}/0", 1: f"{tmp_path}/001"}
    assert list_versions(str(tmp_path / "missing")) is None


def test_a_savedmodel_itself_is_one_version(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    (tmp_path / "variables").mkdir()
    assert list_versions(str(tmp_path)) == {1: str(tmp_path)}
    numbered = tmp_path.rename(tmp_path.with_name("012"))
    assert list_versions(f"{numbered}/") == {12: f"{numbered}/"}


def test_the_newest_loads_first_and_the_old_goes_when_it_answers(make):
    first, second = model(), model()
    manager, folders = make({"1": first})
    folders.add("2", second)
    lease = manager.acquire("m")
    polling = threading.Thread(target=manager.poll)
    polling.start()
    wait_until(lambda: states(manager) == {2: "AVAILABLE", 1: "UNLOADING"})
    assert newest(manager) == 2 and not first.closed
    # The request that began with version 1 ends with it.
    assert lease.model is first
    lease.release()
    polling.join(LIMIT_S)
    assert first.closed and states(manager) == {2: "AVAILABLE", 1: "END"}


def test_resource_preserving_unloads_first(make):
    order = []
    first, second = model(), model()
    first.close = lambda: order.append("closed 1")
    manager, folders = make({"1": first}, resource_preserving=True)
    folders.add("2", second)
    load = folders.__call__
    manager._loader = lambda *a: (order.append(f"load {a[1]}"), load(*a))[1]
    manager.poll()
    assert order == ["closed 1", "load 2"]


def test_availability_preserving_loads_first(make):
    order = []
    first = model()
    first.close = lambda: order.append("closed 1")
    manager, folders = make({"1": first})
    folders.add("2", model())
    load = folders.__call__
    manager._loader = lambda *a: (order.append(f"load {a[1]}"), load(*a))[1]
    manager.poll()
    assert order == ["load 2", "closed 1"]


def test_deleting_the_newest_rolls_back(make):
    manager, folders = make({"1": model(), "2": model()})
    assert newest(manager) == 2
    folders.remove("2")
    manager.poll()
    assert states(manager) == {2: "END", 1: "AVAILABLE"}
    folders.add("2", model())
    manager.poll()
    assert newest(manager) == 2


def test_a_renamed_version(make):
    manager, folders = make({"1": model()})
    folders.models["5"] = folders.models["1"]
    (folders.base / "1").rename(folders.base / "5")
    folders.models["5"] = model()
    manager.poll()
    assert states(manager) == {5: "AVAILABLE", 1: "END"}


def test_all_versions_deleted(make):
    manager, folders = make({"1": model()})
    folders.remove("1")
    manager.poll()
    assert states(manager) == {1: "END"}
    with pytest.raises(ServeError, match=r"Servable not found for request: Latest\(m\)"):
        manager.acquire("m")


def test_the_last_version_can_be_kept(make):
    manager, folders = make({"1": model()}, always_present=True)
    folders.remove("1")
    manager.poll()
    assert newest(manager) == 1


def test_a_missing_base_path_changes_nothing(make):
    manager, folders = make({"1": model()})
    folders.base.rename(folders.base.with_name("away"))
    manager.poll()
    assert newest(manager) == 1


def test_looking_once_only(make):
    manager, folders = make({"1": model()}, poll_wait_s=0)
    folders.add("2", model())
    manager.poll()
    assert newest(manager) == 1


def test_a_broken_version_leaves_the_old_one_and_says_why(make):
    manager, folders = make({"1": model()})
    folders.add("2", RuntimeError("the file is damaged"))
    manager.poll()
    assert newest(manager) == 1
    failed = manager.status("m", 2)[0]
    assert (failed.state, failed.message) == ("END", "the file is damaged")


def test_a_load_is_tried_again_later_and_not_for_ever(make):
    manager, folders = make({"1": RuntimeError("not yet")}, load_retries=2, retry_wait_s=0.0)
    for _ in range(5):
        manager.poll()
    assert folders.loads == [1, 1, 1]


def test_a_load_waits_for_its_turn(make):
    manager, folders = make({"1": RuntimeError("not yet")}, retry_wait_s=1000.0)
    manager.poll()
    assert folders.loads == [1]


def test_a_half_copied_folder_is_tried_again_when_it_changes(make):
    manager, folders = make(
        {"1": model(), "2": RuntimeError("variables.index is missing")},
        load_retries=0, retry_wait_s=1000.0,
    )  # fmt: skip
    assert newest_or_none(manager) is None
    folders.models["2"] = model()
    manager.poll()
    assert newest_or_none(manager) is None  # nothing changed in the folder
    (folders.base / "2" / "variables.index").write_text("there it is")
    manager.poll()
    assert newest(manager) == 2


def newest_or_none(manager):
    try:
        return newest(manager)
    except ServeError:
        return None


def test_labels(make):
    manager, _ = make(
        {"1": model(), "2": model()},
        policy=VersionPolicy("all"), labels={"stable": 1, "canary": 2},
    )  # fmt: skip
    for label, number in (("stable", 1), ("canary", 2)):
        lease = manager.acquire("m", label=label)
        lease.release()
        assert lease.version == number
    with pytest.raises(ServeError, match="Unrecognized servable version label: other"):
        manager.acquire("m", label="other")


def test_a_label_needs_a_loaded_version(make, tmp_path):
    manager, _ = make({"1": model()}, labels={"stable": 1})
    with pytest.raises(ServeError, match="assign label canary to version 2"):
        manager.reload([config(tmp_path, labels={"stable": 1, "canary": 2})])
    lease = manager.acquire("m", label="stable")
    lease.release()


def test_a_label_may_come_early_if_that_is_asked_for(make, tmp_path):
    manager, folders = make({"1": model()}, labels={"next": 2}, labels_for_unavailable=True)
    with pytest.raises(ServeError, match=r"Specific\(m, 2\)"):
        manager.acquire("m", label="next")
    folders.add("2", model())
    manager.poll()
    manager.acquire("m", label="next").release()


def test_labels_wait_for_the_configuration(make):
    manager, _ = make({"1": model()}, configure=False)
    with pytest.raises(ServeError, match="Model labels does not init yet") as caught:
        manager.acquire("m", label="stable")
    assert caught.value.code.http == 503


def test_models_come_and_go_with_the_configuration(make, tmp_path):
    manager, _ = make({"1": model(), "2": model()}, policy=VersionPolicy("all"))
    manager.reload([config(tmp_path, VersionPolicy("specific", versions=(1,)))])
    assert states(manager) == {2: "END", 1: "AVAILABLE"}
    manager.reload([config(tmp_path, name="n")])
    assert manager.names() == ["n"]
    assert set(states(manager).values()) == {"END"}
    assert states(manager, "n") == {2: "AVAILABLE"}


def test_a_new_base_path_replaces_the_version_of_the_same_number(make, tmp_path):
    old = model()
    manager, folders = make({"1": old})
    other = tmp_path / "other"
    (other / "1").mkdir(parents=True)
    newer = folders.models["1"] = model()
    manager.reload([ModelConfig("m", str(other))])
    lease = manager.acquire("m")
    lease.release()
    assert lease.model is newer and old.closed


def test_requests_and_switches_at_the_same_time(make):
    """Thirty switches under four clients: no refusal, no closed model, one version per answer."""
    manager, folders = make({"1": model()})
    ended = threading.Event()
    problems = []

    def client():
        while not ended.wait(0.0005):
            try:
                lease = manager.acquire("m")
                x = fakes.np.ones((1, 2), "float32")
                lease.model.run("serving_default", {"x": x}, ("y",))
                lease.release()
            except Exception as error:
                problems.append(error)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for one in clients:
        one.start()
    for number in range(2, 32):
        folders.add(str(number), model())
        manager.poll()
        folders.remove(str(number - 1))
        assert newest(manager) == number
    ended.set()
    for one in clients:
        one.join(LIMIT_S)
    assert problems == []


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
