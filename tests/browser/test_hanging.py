"""A browser that never answers is ended with every process of it."""

import contextlib
import importlib
import json
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from packager.errors import PackagerError

measure = importlib.import_module("packager.bench.measure")
LIMIT_S, SEEN_AFTER_S, TIME_LIMIT_S = 30, 25, 60


def processes_with(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.soak
@pytest.mark.browser
@pytest.mark.tf
def test_a_browser_that_hangs(digits_bundle, monkeypatch):
    """A page that measures for ever: the deadline ends it, and every process of it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("PACKAGER_MARK", mark)
    monkeypatch.setattr(measure, "_TIMEOUT_S", LIMIT_S)
    candidate = {"library": "tfjs", "backend": "cpu", "artifact": "tfjs/layers", "title": "x"}
    settings = {"warm_up": 0, "runs": 10**9, "seconds": 1e9}
    order = {"candidate": candidate, "threads": 1, "settings": settings}
    command = [sys.executable, "-m", "packager.bench.browser", str(digits_bundle)]
    seen = []
    watcher = threading.Timer(SEEN_AFTER_S, lambda: seen.extend(processes_with(mark)))
    watcher.start()
    with pytest.raises(PackagerError, match="no answer in 30 s"):
        measure._ask([*command, json.dumps(order)], memory_limit=False)
    watcher.join()
    assert len(seen) > 2, "the browser did not start"
    deadline = time.monotonic() + TIME_LIMIT_S
    while processes_with(mark):
        assert time.monotonic() < deadline, "processes of the browser are left"
        time.sleep(0.1)
