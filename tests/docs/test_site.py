"""The guide is built, and every page is in it."""

import subprocess
import sys

import yaml

from tests.conftest import ROOT


def pages(entries):
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else (entry,):
            yield from pages(value) if isinstance(value, list) else (value,)


def test_the_guide_is_built_without_warnings(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (0, "")
    listed = set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}
    for name in listed:
        text = (tmp_path / name.replace(".md", ".html")).read_text(encoding="utf-8")
        # Nothing that a page loads comes from elsewhere.
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text
