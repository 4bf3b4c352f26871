"""Every small model of Keras 2 as a SavedModel, and every archive; see tests/loaders."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.loaders.keras2_verdicts import SUFFIXES, Judge, documented

pytestmark = [pytest.mark.soak, pytest.mark.tf]
DIVISOR = int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1"))


def test_every_format_of_every_class_is_as_documented(tmp_path):
    names = sorted(documented())[::DIVISOR]
    subprocess.run(
        [sys.executable, ROOT / "tests/loaders/keras2_models.py", "--only", tmp_path, *names],
        check=True,
        capture_output=True,
    )
    different = {}
    with Judge() as judges:
        for name in names:
            for suffix, cell in zip(SUFFIXES, documented()[name], strict=True):
                found = judges.instead(tmp_path / f"{name}{suffix}", cell)
                if found:
                    different[name, suffix] = found
    assert different == {}
