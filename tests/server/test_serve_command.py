"""`packager serve`: what it starts."""

import os
import sys

import pytest
from click.testing import CliRunner

from packager.cli import cli
from tests.conftest import packager


@pytest.fixture
def started(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: calls.append(arguments))
    return calls


@pytest.fixture
def bundles(tmp_path):
    for version in ("1", "3"):
        (tmp_path / "dist" / "cats" / version).mkdir(parents=True)
        (tmp_path / "dist" / "cats" / version / "manifest.json").write_text("{}")
    return tmp_path / "dist" / "cats"


def test_a_name_serves_all_its_versions(started, bundles):
    done = CliRunner().invoke(
        cli, ["serve", str(bundles), "--rest_api_port=1", "--enable_batching"]
    )
    assert done.exit_code == 0, done.output
    (command,) = started
    assert command == [
        sys.executable, "-m", "packager_server", f"--model_base_path={bundles}",
        "--model_name=cats", "--rest_api_port=1", "--enable_batching",
    ]  # fmt: skip


def test_a_version_serves_only_that(started, bundles):
    CliRunner().invoke(cli, ["serve", str(bundles / "3")])
    assert started[0][3:] == [f"--model_base_path={bundles / '3'}", "--model_name=cats"]


def test_the_servers_own_errors_come_through(bundles):
    ran = packager("serve", bundles, "--no_such_flag")
    assert (ran.code, "unrecognized arguments: --no_such_flag" in ran.err) == (2, True)
    ran = packager("serve", bundles, "--batching_parameters_file=x")
    assert (ran.code, ran.err) == (2, "error: --batching_parameters_file needs --enable_batching\n")


def test_what_is_no_bundle(started, tmp_path):
    ran = packager("serve", tmp_path)
    assert (ran.code, "is not a bundle" in ran.err, started) == (1, True, [])
