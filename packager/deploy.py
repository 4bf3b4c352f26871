"""`packager deploy`: a bundle goes to a device by ssh, is verified there, and then becomes current.

    DIR/releases/NAME-VERSION-HASH/   whole bundles that were verified on the device
    DIR/.incoming/NAME-VERSION-HASH/  one that is being transferred
    DIR/current, DIR/previous         links to releases; `current` is replaced atomically
    DIR/venv/                         Python for run.py, when it is there (edge/install.sh)

A transfer that was interrupted goes on where it stopped: with rsync within a file, with tar after
the last whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager import bundle
from packager.bundle import MANIFEST, SIGNATURE
from packager.console import Reporter, human_size
from packager.errors import EnvironmentLacks, GateFailed, PackagerError, UsageError

_SSH_FAILED = 255
_NOT_FOUND = 127
_RUNNER = "edge/run.py"
_POLL_S = 0.05
# A device that is switched off is noticed after a minute.
_OPTIONS = (
    "-o", "ControlPersist=no", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
# A new link is renamed over the old one: at every moment `current` leads to a whole bundle.
_SWITCH = """set -eu; cd {folder}
point() {{ ln -s "$2" ".$1.new" && mv -T ".$1.new" "$1"; }}
rm -f .current.new .previous.new
old=$(readlink current || true)
[ "$old" = {release} ] || {{ [ -z "$old" ] || point previous "$old"; point current {release}; }}
"""
_ROLLBACK = """set -eu; cd {folder}
point() {{ ln -s "$2" ".$1.new" && mv -T ".$1.new" "$1"; }}
rm -f .current.new .previous.new
new=$(readlink previous) || exit 3
old=$(readlink current)
[ -d "$new" ] || exit 3
point current "$new"; point previous "$old"; echo "$new"
"""
# Keeps the bundles that `current` and `previous` lead to.
_CLEAN = """set -eu; cd {folder}
for each in releases/*; do
  case "$each" in
    "$(readlink current)" | "$(readlink previous || true)") ;;
    *) rm -rf "$each" ;;
  esac
done
"""


@dataclass(frozen=True)
class Target:
    """Where to: `user@host:dir`; a relative `dir` is below the user's home."""

    host: str
    folder: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Reads `user@host:dir`.

        Raises:
            UsageError: It has another form.
        """
        host, colon, folder = text.partition(":")
        folder = folder.removeprefix("~/").rstrip("/")
        if not colon or not folder or not host or host.startswith("-") or folder.startswith("-"):
            raise UsageError(f"expected user@host:dir, received {text!r}")
        return cls(host, folder)


@dataclass(frozen=True)
class Device:
    """Runs commands on a device, over a connection that is open; `ssh` is the command for it."""

    target: Target
    ssh: tuple[str, ...]

    def run(self, script: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Runs a shell script there.

        Raises:
            EnvironmentLacks: The device does not answer.
        """
        command = [*self.ssh, self.target.host, script]
        given = {"stdin": subprocess.DEVNULL, **options}
        done = subprocess.run(command, check=False, capture_output=True, **given)
        if done.returncode == _SSH_FAILED:
            raise _unreachable(self.target, done.stderr)
        return done

    def must(self, script: str, what: str, **options: Any) -> str:
        """Runs a script that has to succeed; returns its output."""
        done = self.run(script, **options)
        if done.returncode:
            raise PackagerError(
                f"{self.target.host}:{self.target.folder}: {what} failed: {_last_line(done.stderr)}"
            )
        return done.stdout.decode(errors="replace")


def deploy(
    folder: Path,
    target: Target,
    reporter: Reporter,
    *,
    ssh: str = "ssh",
    transport: str = "auto",
    python: str = "",
) -> dict[str, Any]:
    """Sends a bundle, verifies it on the device, and makes it the current one.

    Args:
        folder: The bundle's folder.
        target: Where to.
        reporter: Where the stages are shown.
        ssh: The ssh command, with its options.
        transport: `rsync`, `tar`, or `auto`: rsync where both sides have it.
        python: Python on the device; by default `DIR/venv`'s, else `python3`.

    Returns:
        The device's answer to `run.py verify`.

    Raises:
        EnvironmentLacks: The device cannot be reached or lacks what run.py needs.
        GateFailed: A sample leaves its tolerance there: nothing was switched.
        UsageError: The bundle has nothing for a device.
        PackagerError: The transfer failed, or a hash differs.
    """
    manifest = bundle.read_manifest(folder)
    signature = [SIGNATURE] if (folder / SIGNATURE).is_file() else []
    described = hashlib.sha256("".join(_hash(folder / f) for f in [MANIFEST, *signature]).encode())
    name = f"{manifest.name}-{manifest.version}-{described.hexdigest()[:12]}"
    if _RUNNER not in manifest.files:
        raise UsageError(f"{folder} has no TFLite files for a device", hint="build it with tflite")
    files = [*manifest.files, MANIFEST, *signature]
    with _connected(target, ssh) as device:
        place = f"{target.folder}/.incoming/{name}"
        release = f"releases/{name}"
        inside, quoted = shlex.quote(target.folder), shlex.quote(release)
        with reporter.stage("send") as detail:
            ready = f"cd {inside} 2>/dev/null && [ -d {quoted} ]"
            is_there = device.run(ready).returncode == 0
            if is_there:
                place = f"{target.folder}/{release}"
                detail.append("already there")
            else:
                detail.append(_send(device, folder, files, place, transport))
        with reporter.stage("verify on the device") as detail:
            answer = _verify(device, place, python)
            detail.append(f"{len(answer['artifacts'])} artifacts")
        with reporter.stage("switch") as detail:
            if not is_there:
                move = f"mv {shlex.quote(place)} {inside}/{quoted}"
                device.must(f"mkdir -p {inside}/releases && {move}", "moving the bundle")
            switch = _SWITCH.format(folder=inside, release=quoted)
            device.must(switch, "switching")
            device.must(_CLEAN.format(folder=inside), "removing old bundles")
            detail.append(f"{target.folder}/current -> {release}")
    return answer


def rollback(target: Target, *, ssh: str = "ssh") -> str:
    """Makes the previous bundle the current one; returns its folder.

    Raises:
        UsageError: There is no previous bundle.
    """
    with _connected(target, ssh) as device:
        done = device.run(_ROLLBACK.format(folder=shlex.quote(target.folder)))
    if done.returncode:
        raise UsageError(
            f"{target.host}:{target.folder} has no previous bundle: {_last_line(done.stderr)}"
        )
    return done.stdout.decode().strip()


@contextlib.contextmanager
def _connected(target: Target, ssh: str) -> Iterator[Device]:
    """Opens one connection for all steps, so that a password is asked for once."""
    # A socket's path is limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="pk-") as folder, tempfile.TemporaryFile() as log:
        socket = Path(folder, "s")
        through = (*shlex.split(ssh), "-o", f"ControlPath={socket}", *_OPTIONS)
        command = [*through, "-o", "ControlMaster=yes", "-N", target.host]
        try:
            master = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        except FileNotFoundError:
            raise EnvironmentLacks(f"{command[0]} is not installed", hint="install ssh") from None
        with master:
            try:
                while not socket.exists():  # the user may be typing a password
                    if master.poll() is not None:
                        log.seek(0)
                        raise _unreachable(target, log.read())
                    time.sleep(_POLL_S)
                yield Device(target, (*through, "-o", "ControlMaster=no"))
            finally:
                # Every step has ended; SIGTERM was seen to leave ssh waiting.
                master.kill()


def _unreachable(target: Target, stderr: bytes) -> EnvironmentLacks:
    return EnvironmentLacks(
        f"{target.host} cannot be reached: {_last_line(stderr)}", hint=f"try: ssh {target.host}"
    )


def _send(device: Device, folder: Path, files: Sequence[str], place: str, transport: str) -> str:
    """Transfers what is missing; returns how."""
    inside = shlex.quote(place)
    device.must(f"mkdir -p {inside}", "making the folder")
    both = shutil.which("rsync") and device.run("command -v rsync").returncode == 0
    if transport == "rsync" and not both:
        raise EnvironmentLacks("rsync is not on both sides", hint="use --transport tar")
    if both and transport != "tar":
        command = ["rsync", "-r", "--times", "--checksum", "--partial", "--files-from=-", "--from0"]
        command += ["-e", shlex.join(device.ssh), f"{folder}/", f"{device.target.host}:{place}/"]
        done = subprocess.run(
            command, input="\0".join(files).encode(), capture_output=True, check=False
        )
        if done.returncode:
            raise _interrupted(device, done.stderr)
        return f"rsync, {len(files)} files"
    present = device.must(f"cd {inside} && find . -type f -exec sha256sum {{}} +", "listing")
    sums = {line[66:].removeprefix("./"): line[:64] for line in present.splitlines()}
    missing = [name for name in files if sums.get(name) != _hash(folder / name)]
    size = sum((folder / name).stat().st_size for name in missing)
    command = ["tar", "-C", str(folder), "--null", "-T", "-", "-cf", "-"]
    with tempfile.TemporaryFile() as names:
        names.write("\0".join(missing).encode())
        names.seek(0)
        with subprocess.Popen(command, stdin=names, stdout=subprocess.PIPE) as tar:
            done = device.run(f"tar -C {inside} -xf -", stdin=tar.stdout)
    if done.returncode or tar.returncode:
        raise _interrupted(device, done.stderr)
    return f"tar, {len(missing)} of {len(files)} files, {human_size(size)}"


def _interrupted(device: Device, stderr: bytes) -> PackagerError:
    return PackagerError(
        f"the transfer to {device.target.host} was interrupted: {_last_line(stderr)}",
        hint="run the same command again: it goes on where it stopped",
    )


def _verify(device: Device, place: str, python: str) -> dict[str, Any]:
    """Runs the device's own check, hashes included."""
    inside = shlex.quote(place)
    own = shlex.quote(f"{device.target.folder}/venv/bin/python")
    chosen = shlex.quote(python) if python else f"$([ -x {own} ] && echo {own} || echo python3)"
    done = device.run(f"{chosen} {inside}/{_RUNNER} verify {inside} --json")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        kind = EnvironmentLacks if done.returncode in (4, _NOT_FOUND) else PackagerError
        hint = f"on the device: sh {place}/edge/install.sh --venv {device.target.folder}/venv"
        raise kind(
            f"{device.target.host} cannot run the bundle: {_last_line(done.stderr)}", hint=hint
        ) from None
    if done.returncode:
        problems = [f"{p['path']} {p['problem']}" for p in answer["files"]["problems"]]
        problems += [f"{a['id']}: {a['reason']}" for a in answer["artifacts"] if a["reason"]]
        kinds = {GateFailed.exit_code: GateFailed, EnvironmentLacks.exit_code: EnvironmentLacks}
        raise kinds.get(done.returncode, PackagerError)(
            f"{device.target.host}: the bundle does not verify there: {'; '.join(problems[:3])}",
            hint="the current bundle was left in place; to send this one anew, on the device:"
            f" rm -r {place}",
        )
    return answer


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
