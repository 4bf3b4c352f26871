"""The wheel holds both packages and the programs that packager runs."""

import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", folder, ROOT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.node
def test_contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for name in (
        "packager/cli.py", "packager/py.typed", "packager/report/templates/index.html",
        "packager_server/engine.py", "packager_server/reader.py", "packager_server/preprocess.py",
        "packager/_assets/edge/run.py", "packager/_assets/web/bundle.js",
        "packager/_assets/web/package.json", "packager/_assets/web/node/run.mjs",
        "packager/_assets/web/vendor/tf.min.js", "packager/_assets/web/vendor/VERSIONS.json",
    ):  # fmt: skip
        assert name in names, name
    assert not [n for n in names if n.startswith(("tests/", "bench/", "examples/"))]
    assert not [n for n in names if "__pycache__" in n or "node_modules" in n]


@pytest.mark.node
def test_an_installed_wheel_finds_its_programs(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = (
        "from packager import assets\n"
        "paths = [assets.edge_runner(), assets.node_runner(), assets.server_engine()]\n"
        "print([str(p.relative_to('.')) if not p.is_absolute() else str(p) for p in paths])\n"
        "assert all(p.is_file() for p in paths)\n"
        "assert (assets.web_vendor() / 'VERSIONS.json').is_file()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(tmp_path)) == 3
