"""The cases' models, built once per test run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tfjs_harness import Cases, build


@pytest.fixture(scope="session")
def cases(once: Callable[..., Path]) -> Cases:
    pytest.importorskip("keras", reason="Keras is missing: pip install .[build]")
    folder = once("tfjs-cases", build)
    return Cases(folder, json.loads((folder / "cases.json").read_text(encoding="utf-8")))
