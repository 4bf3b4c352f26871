"""The queue and batching, with models of a few lines."""

import threading
import time

import numpy as np
import pytest
from packager_server.codes import Code, ServeError
from packager_server.core import Call
from packager_server.model import find_signature
from packager_server.scheduler import Batching

from tests.server import fakes

LIMIT_S = 20


def call_of(core, *rows, name="m", dtype=np.float32):
    lease = core.versions.acquire(name)
    signature = find_signature(lease.model, "")
    return Call(lease, signature, {"x": np.array(rows, dtype)}, ("y",))


class Answers:
    """Submits calls and collects what comes back, in the order of the calls."""

    def __init__(self, core):
        self.core = core
        self.results = []
        self._events = []

    def submit(self, *rows, timeout_s=LIMIT_S, **more):
        index = len(self.results)
        ended = threading.Event()
        self.results.append(None)
        self._events.append(ended)

        def done(outputs, error):
            self.results[index] = error if outputs is None else outputs["y"].tolist()
            ended.set()

        self.core.submit(call_of(self.core, *rows, **more), timeout_s, done)

    def wait(self):
        assert all(event.wait(LIMIT_S) for event in self._events)
        return self.results


@pytest.fixture
def make(tmp_path):
    cores = []

    def with_model(model=None, **batching):
        model = model or fakes.scaled()
        settings = {"enabled": True, "max_batch_size": 8, "num_batch_threads": 1, **batching}
        core = fakes.core_with(
            tmp_path / str(len(cores)), {1: model}, batching=Batching(**settings)
        )
        cores.append(core)
        return core, model

    yield with_model
    for core in cores:
        core.stop()


def held_back(core, model):
    """Occupies the only thread, so that what follows gathers in the queue."""
    model.gate.clear()
    answers = Answers(core)
    answers.submit([0.0, 0.0])
    deadline = time.monotonic() + LIMIT_S
    while not model.batches and time.monotonic() < deadline:
        time.sleep(0.002)
    return answers


def test_requests_that_wait_are_merged_and_get_their_own_rows(make):
    core, model = make()
    answers = held_back(core, model)
    answers.submit([1.0, 2.0])
    answers.submit([3.0, 4.0], [5.0, 6.0])
    answers.submit([7.0, 8.5])
    model.gate.set()
    assert answers.wait()[1:] == [[[2.0, 4.0]], [[6.0, 8.0], [10.0, 12.0]], [[14.0, 17.0]]]
    assert model.batches[1:] == [{"x": (4, 2)}]


def test_a_bad_request_in_a_batch_fails_alone(make):
    core, model = make()
    answers = held_back(core, model)
    answers.submit([1.0, 2.0])
    answers.submit([-1.0, 2.0])
    answers.submit([3.0, 4.0])
    model.gate.set()
    good, bad, also_good = answers.wait()[1:]
    assert (good, also_good) == ([[2.0, 4.0]], [[6.0, 8.0]])
    assert bad.message == "negative numbers are refused"


def test_other_shapes_and_dtypes_are_not_merged(make):
    core, model = make(fakes.scaled(shape=(None, None)))
    answers = held_back(core, model)
    answers.submit([1.0, 2.0])
    answers.submit([1.0, 2.0, 3.0])
    answers.submit([4.0, 5.0])
    answers.submit([1.0, 2.0], dtype=np.float64)
    model.gate.set()
    assert answers.wait()[1:] == [[[2.0, 4.0]], [[2.0, 4.0, 6.0]], [[8.0, 10.0]], [[2.0, 4.0]]]
    assert [batch["x"] for batch in model.batches[1:]] == [(2, 2), (1, 3), (1, 2)]


def newest_is(core, number):
    newest = core.versions.status("m")[0]
    return (newest.version, newest.state) == (number, "AVAILABLE")


def test_two_versions_are_never_merged(make, tmp_path):
    core, model = make()
    answers = held_back(core, model)
    answers.submit([1.0, 2.0])
    newer = fakes.scaled(10.0)
    core.versions._loader.add("2", newer)
    polling = threading.Thread(target=core.versions.poll)
    polling.start()
    deadline = time.monotonic() + LIMIT_S
    while not newest_is(core, 2) and time.monotonic() < deadline:
        time.sleep(0.002)
    answers.submit([1.0, 2.0])
    model.gate.set()
    assert answers.wait()[1:] == [[[2.0, 4.0]], [[10.0, 20.0]]]
    polling.join(LIMIT_S)
    assert model.closed and not newer.closed


def test_a_full_batch_does_not_grow(make):
    core, model = make(max_batch_size=4)
    answers = held_back(core, model)
    for number in range(5):
        answers.submit([number, number], [number, 0.0])
    model.gate.set()
    assert answers.wait()[5] == [[8.0, 8.0], [8.0, 0.0]]
    assert [batch["x"] for batch in model.batches[1:]] == [(4, 2), (4, 2), (2, 2)]


def test_a_request_above_the_largest_batch_is_refused(make):
    core, _ = make(max_batch_size=4)
    with pytest.raises(ServeError, match="Task size 5 is larger than maximum input batch size 4"):
        Answers(core).submit(*[[1.0, 1.0]] * 5)
    lease = core.versions.acquire("m")
    assert lease._version.users == 1  # only this one: the refused request holds none
    lease.release()


def test_a_full_queue_is_unavailable(make):
    core, model = make(max_batch_size=1, max_enqueued_batches=2)
    answers = held_back(core, model)
    answers.submit([1.0, 1.0])
    answers.submit([2.0, 2.0])
    assert core.scheduler.is_full()
    with pytest.raises(ServeError, match="batch scheduling queue") as caught:
        answers.submit([3.0, 3.0])
    assert caught.value.code == Code.UNAVAILABLE
    model.gate.set()
    del answers.results[3:], answers._events[3:]
    assert answers.wait()[1:] == [[[2.0, 2.0]], [[4.0, 4.0]]]


def test_without_batching_the_queue_is_bounded_too(make):
    core, model = make(enabled=False, max_enqueued_batches=1)
    answers = held_back(core, model)
    answers.submit([1.0, 1.0])
    with pytest.raises(ServeError, match="queue"):
        answers.submit([2.0, 2.0])
    model.gate.set()
    del answers.results[2:], answers._events[2:]
    assert answers.wait()[1] == [[2.0, 2.0]]
    assert [batch["x"] for batch in model.batches] == [(1, 2), (1, 2)]


def test_what_is_late_is_dropped_without_running(make):
    core, model = make()
    answers = held_back(core, model)
    answers.submit([1.0, 2.0], timeout_s=0.01)
    answers.submit([3.0, 4.0])
    time.sleep(0.05)
    model.gate.set()
    late, good = answers.wait()[1:]
    assert (late.code, good) == (Code.DEADLINE_EXCEEDED, [[6.0, 8.0]])
    assert model.batches[1:] == [{"x": (1, 2)}]


def test_waiting_ends_at_the_time_limit(make):
    core, model = make()
    model.gate.clear()
    with pytest.raises(ServeError, match="Timed out waiting for notification") as caught:
        core.run(call_of(core, [1.0, 2.0]), 0.05)
    assert caught.value.code.http == 504
    model.gate.set()


def test_a_batch_is_filled_up_to_an_allowed_size(make):
    core, model = make(allowed_batch_sizes=(4, 8))
    answers = held_back(core, model)
    for number in range(5):
        answers.submit([number, 1.0])
    model.gate.set()
    assert answers.wait() == [[[0.0, 0.0]]] + [[[2.0 * n, 2.0]] for n in range(5)]
    assert [batch["x"] for batch in model.batches] == [(4, 2), (8, 2)]


def test_unequal_lengths_are_filled_with_the_first_value(make):
    def last_column(inputs):
        return {"y": inputs["x"][:, -1:]}

    model = fakes.FakeModel(
        last_column, {"x": ("float32", (None, None))}, {"y": ("float32", (None, 1))}
    )
    core, _ = make(model, pad_variable_length_inputs=True, batch_timeout_s=0.3, max_batch_size=2)
    answers = Answers(core)
    answers.submit([5.0, 6.0])
    answers.submit([1.0, 2.0, 3.0])
    assert answers.wait() == [[[5.0]], [[3.0]]]
    assert model.batches == [{"x": (2, 3)}]


def test_an_open_batch_waits_for_more(make):
    core, model = make(batch_timeout_s=0.3, max_batch_size=3)
    answers = Answers(core)
    for number in range(3):
        answers.submit([number, 1.0])
    assert answers.wait() == [[[0.0, 2.0]], [[2.0, 2.0]], [[4.0, 2.0]]]
    assert model.batches == [{"x": (3, 2)}]


@pytest.mark.parametrize("shape", [(4, 2), ()])
def test_inputs_without_a_free_batch_axis_run_alone(make, shape):
    core, model = make(fakes.scaled(shape=shape))
    answers = held_back(core, model)
    for _ in range(2):
        answers.submit([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 4.0])
    model.gate.set()
    answers.wait()
    assert len(model.batches) == 3


def test_a_model_that_mixes_rows_is_found_out(make):
    """An output without the batch axis cannot be shared out: each request runs alone."""

    def mean(inputs):
        return {"y": inputs["x"].mean(0)}

    model = fakes.FakeModel(mean, {"x": ("float32", (None, 2))}, {"y": ("float32", (2,))})
    core, _ = make(model, batch_timeout_s=0.3, max_batch_size=3)
    answers = Answers(core)
    for number in range(3):
        answers.submit([number, 1.0])
    assert answers.wait() == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]


def test_an_exception_of_the_model_is_an_internal_error(make):
    def broken(inputs):
        raise KeyError("oops")

    model = fakes.FakeModel(broken, {"x": ("float32", None)}, {"y": ("float32", None)})
    core, _ = make(model)
    for _ in range(2):
        with pytest.raises(ServeError, match="KeyError") as caught:
            core.run(call_of(core, [1.0, 2.0]), LIMIT_S)
        assert caught.value.code == Code.INTERNAL


def test_stopping_runs_what_is_queued(make):
    core, model = make()
    answers = held_back(core, model)
    answers.submit([1.0, 2.0])
    stopping = threading.Thread(target=core.stop)
    stopping.start()
    model.gate.set()
    assert answers.wait()[1] == [[2.0, 4.0]]
    stopping.join(LIMIT_S)
    assert model.closed
    with pytest.raises(ServeError):
        Answers(core).submit([1.0, 2.0])


def test_a_caller_that_breaks_does_not_end_the_worker(make, caplog):
    core, _ = make()

    def broken(outputs, error):
        raise RuntimeError("nobody is there")

    core.submit(call_of(core, [1.0, 2.0]), LIMIT_S, broken)
    assert core.run(call_of(core, [1.0, 2.0]), LIMIT_S)["y"].tolist() == [[2.0, 4.0]]
    assert "could not be handed over" in caplog.text
