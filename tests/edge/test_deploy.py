"""`packager deploy` to an OpenSSH server that the tests start on loopback."""

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packager import bundle as bundles
from packager import hashes, signing
from tests.conftest import packager

pytestmark = pytest.mark.tf
SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
DEADLINE_S = 30


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """A server with keys and a configuration of its own; returns the ssh command for it."""
    if SSHD is None:
        pytest.skip("sshd is missing: sh tests/edge/ensure-tools.sh")
    home, port = tmp_path_factory.mktemp("sshd"), free_port()
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name]
        subprocess.run(key, check=True)
    shutil.copy(home / "user.pub", home / "authorized")
    (home / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/host\nPidFile none\n"
        f"AuthorizedKeysFile {home}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (home / "config").write_text(
        f"Host device\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {home}/user\n IdentitiesOnly yes\n BatchMode yes\n LogLevel ERROR\n"
        f" StrictHostKeyChecking no\n UserKnownHostsFile {home}/known\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    log = (home / "log").open("w")
    with log, subprocess.Popen([SSHD, "-D", "-e", "-f", home / "sshd"], stderr=log) as server:
        try:
            until = time.monotonic() + DEADLINE_S
            command = ["ssh", "-F", home / "config", "device", "true"]
            while subprocess.run(command, capture_output=True, check=False).returncode:
                assert server.poll() is None, (home / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.1)
            yield f"ssh -F {home}/config"
        finally:
            server.terminate()


@pytest.fixture
def versions(digits_bundle, tmp_path):
    """Versions 1 to 3 of a small bundle: 2 is as good as 1, 3 gives other numbers."""

    def edit(number, change):
        folder = Path(shutil.copytree(digits_bundle, tmp_path / "digits" / str(number)))
        for name in ("saved_model.pb", "variables", "tfjs", "assets.extra", "fingerprint.pb"):
            part = folder / name
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        change(folder)
        manifest = replace(bundles.read_manifest(folder), version=number)
        kept = tuple(a for a in manifest.artifacts if a.runtime.kind == "tflite")
        files = hashes.hash_bundle(folder)
        manifest = replace(manifest, artifacts=kept, files=files)
        checksum = hashes.checksum(bundles.to_json(manifest))
        bundles.write_json(replace(manifest, checksum=checksum), folder / bundles.MANIFEST)
        return folder

    def other_numbers(folder):
        path = folder / "golden/samples.json"
        document = json.loads(path.read_text())
        document["samples"][0]["artifacts"]["tflite/int8"]["digit"][0] += 0.5
        path.write_text(json.dumps(document))

    def nothing(folder):
        pass

    return {1: edit(1, nothing), 2: edit(2, nothing), 3: edit(3, other_numbers)}


@pytest.fixture
def deploy(ssh, tmp_path):
    def run(*arguments, command=ssh, python=sys.executable):
        flags = ["--ssh", command, *(["--python", python] if python else [])]
        return packager("deploy", *arguments, f"device:{tmp_path}/device", *flags)

    return run


@pytest.fixture
def device(tmp_path):
    return tmp_path / "device"


def current(device, link="current"):
    return json.loads((device / link / "manifest.json").read_text())["version"]


@pytest.mark.parametrize("transport", ["rsync", "tar"])
def test_versions_and_back(deploy, versions, device, transport):
    way = ("--transport", transport)
    ran = deploy(versions[1], "--json", *way)
    assert ran.code == 0, ran.err
    assert {entry["status"] for entry in ran.json["artifacts"]} == {"passed"}
    assert transport in ran.err
    assert current(device) == 1
    for name, entry in bundles.read_manifest(versions[1]).files.items():
        assert hashes.hash_file(device / "current" / name) == entry
    signing.new_key(device / "key.pem")
    signature = signing.sign(versions[2], device / "key.pem").read_bytes()
    assert deploy(versions[2], *way).code == 0
    assert (current(device), current(device, "previous")) == (2, 1)
    assert (device / "current/manifest.sig").read_bytes() == signature
    # A bundle that does not verify there is not switched to.
    ran = deploy(versions[3], *way)
    assert ran.code == 3
    assert "does not verify there" in ran.err and "differs by 0.5" in ran.err
    assert (current(device), current(device, "previous")) == (2, 1)
    assert deploy("--rollback").code == 0
    assert (current(device), current(device, "previous")) == (1, 2)
    # What is already there is verified and switched to without being sent.
    ran = deploy(versions[2], *way)
    assert "already there" in ran.err
    assert (current(device), current(device, "previous")) == (2, 1)
    assert len(list((device / "releases").iterdir())) == 2


@pytest.mark.parametrize("transport", ["rsync", "tar"])
def test_an_interrupted_transfer_goes_on(deploy, ssh, versions, device, tmp_path, transport):
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os\nleft = 150000\nwhile left and (data := os.read(0, min(left, 4096))):\n"
        "    os.write(1, data)\n    left -= len(data)\n"
    )
    cutting = tmp_path / "cutting-ssh"
    cutting.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '  *"tar -C"* | *"rsync --server"*)\n'
        # Nothing but the relay may hold the sender's pipe open, or the sender would wait for ever.
        f'    exec 3<&0 </dev/null\n    {sys.executable} {relay} <&3 | {ssh} "$@" 3<&- &\n'
        "    exec 3<&-\n    wait $! ;;\n"
        f'  *) exec {ssh} "$@" ;;\nesac\n'
    )
    cutting.chmod(0o755)
    way = ("--transport", transport)
    ran = deploy(versions[1], *way, command=str(cutting))
    assert ran.code == 1
    assert "was interrupted" in ran.err and "run the same command again" in ran.err
    assert not (device / "current").exists()
    arrived = {p: p.stat().st_ino for p in (device / ".incoming").rglob("*") if p.is_file()}
    whole = {
        path.relative_to(device / ".incoming").as_posix().partition("/")[2]: inode
        for path, inode in arrived.items()
    }
    same = [
        name for name in whole
        if (versions[1] / name).is_file()
        and hashes.hash_file(versions[1] / name) == hashes.hash_file(
            next((device / ".incoming").iterdir()) / name
        )
    ]  # fmt: skip
    total = len(bundles.read_manifest(versions[1]).files) + 1
    assert 0 < len(same) < total
    ran = deploy(versions[1], *way)
    assert ran.code == 0, ran.err
    assert current(device) == 1
    for name in same:
        assert (device / "current" / name).stat().st_ino == whole[name]
    if transport == "tar":
        assert f"tar, {total - len(same)} of {total} files" in ran.err


def test_a_release_that_was_changed_there(deploy, versions, device):
    assert deploy(versions[1]).code == 0
    assert deploy(versions[2]).code == 0
    (device / "previous/tflite/digits.int8.tflite").write_bytes(b"rot")
    ran = deploy(versions[1])
    assert ran.code == 1
    assert "digits.int8.tflite changed" in ran.err
    assert current(device) == 2


def test_the_devices_own_environment_is_used(deploy, versions, device):
    program = device / "venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\ntouch {device}/used\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    assert deploy(versions[1], python="").code == 0
    assert (device / "used").exists()


def test_what_the_device_lacks(deploy, versions, device):
    ran = deploy(versions[1], python="/nowhere/python3")
    assert ran.code == 4
    assert "install.sh" in ran.err
    assert not (device / "current").exists()


def test_errors(deploy, versions, device):
    ran = deploy("--rollback")
    assert ran.code == 2 and "no previous bundle" in ran.err
    ran = packager("deploy", versions[1], "device")
    assert ran.code == 2 and "expected user@host:dir" in ran.err
    ran = deploy(versions[1], command="ssh -o ConnectTimeout=2 -p 1 -o BatchMode=yes")
    assert ran.code == 4 and "cannot be reached" in ran.err
