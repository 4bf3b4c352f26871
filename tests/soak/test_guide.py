"""The blocks of the guide's pages, run as they stand, each page in one shell session.

`sh` and `python` blocks are run; `console` blocks need a server, hardware or a page and are not.
The pages that are older than the guide have tests of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = (
    "index", "quick-start", "targets", "quantization", "troubleshooting", "coming-from", "report",
    "diff", "explain", "rebuilding",
)  # fmt: skip
# Blocks that are not run, by page: a new one must be wanted.
NOT_RUN = {"quick-start": 2, "targets": 2, "coming-from": 1}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 900
# Most pages build a model several times; CI runs the first two.
RUN = PAGES if os.environ.get("PACKAGER_SOAK_DIVISOR", "1") == "1" else PAGES[:2]

pytestmark = pytest.mark.soak


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return FENCE.findall(text)


def script(page: str) -> str:
    parts = []
    for kind, text in blocks(page):
        if kind == "sh":
            parts.append(text)
        elif kind == "python":
            parts.append(f"python - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n")
    return "".join(parts)


@pytest.mark.parametrize("page", PAGES)
def test_only_these_blocks_are_not_run(page: str) -> None:
    kinds = [kind for kind, _ in blocks(page)]
    assert set(kinds) <= {"sh", "python", "console", "yaml"}
    assert kinds.count("console") == NOT_RUN.get(page, 0)


@pytest.mark.tf
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(page: str, digits_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(digits_bundle, tmp_path / "dist" / "digits" / "1")
    commands = script(page)
    assert "packager" in commands
    folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
