"""Signed bundles: made, checked by `packager verify` and by the server."""

import base64
import json
import shutil
import stat
import subprocess
import sys

import pytest
from packager_server import signature
from packager_server.codes import ServeError
from packager_server.loader import VersionLoader
from packager_server.reader import EngineError

from tests.conftest import packager

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        assert packager("sign", "--new-key", folder / f"{name}.pem").code == 0
    return folder


@pytest.fixture
def signed(digits_bundle, keys, tmp_path):
    folder = tmp_path / "digits" / "1"
    shutil.copytree(digits_bundle, folder)
    ran = packager("sign", folder.parent, "--key", keys / "mine.pem")
    assert ran.code == 0, ran.err
    return folder


def test_keys_are_the_owner_s_and_are_not_replaced(keys):
    mode = stat.S_IMODE((keys / "mine.pem").stat().st_mode)
    assert mode == 0o600
    before = (keys / "mine.pem").read_bytes()
    ran = packager("sign", "--new-key", keys / "mine.pem")
    assert (ran.code, "exists" in ran.err) == (2, True)
    assert (keys / "mine.pem").read_bytes() == before


def test_openssl_agrees(signed, keys, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    raw = tmp_path / "raw.sig"
    raw.write_bytes(base64.b64decode((signed / "manifest.sig").read_text()))
    done = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys / "mine.pub", "-rawin",
         "-sigfile", raw, "-in", signed / "manifest.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Successfully" in done.stdout, done.stderr


def test_verify_asks_for_the_signature_first(signed, keys, digits_bundle):
    unsigned = packager("verify", digits_bundle, "--key", keys / "mine.pub")
    assert (unsigned.code, "is not signed" in unsigned.err) == (1, True)
    other = packager("verify", signed, "--key", keys / "other.pub")
    assert (other.code, "do not use this one" in other.err) == (1, True)
    private = packager("verify", signed, "--key", keys / "mine.pem")
    assert (private.code, "no public key" in private.err) == (2, True)


def test_a_signed_bundle_passes_and_a_changed_one_does_not(signed, keys):
    ran = packager("verify", signed, "--key", keys / "mine.pub", "--json")
    assert ran.code == 0, ran.err
    path = signed / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["labels"][0] = "nine"
    path.write_text(json.dumps(manifest))
    ran = packager("verify", signed, "--key", keys / "mine.pub")
    assert (ran.code, "no signature of this manifest.json" in ran.err) == (1, True)


@pytest.mark.parametrize("text", ["", "not base64!", "AAAA"])
def test_damaged_signatures(signed, keys, text):
    (signed / "manifest.sig").write_text(text)
    ran = packager("verify", signed, "--key", keys / "mine.pub")
    assert (ran.code, "no signature of this manifest.json" in ran.err) == (1, True)


def test_the_server_loads_signed_bundles_only(signed, keys, monkeypatch):
    opened = []
    monkeypatch.setattr(VersionLoader, "_open", lambda self, path, manifest: opened.append(path))
    load = VersionLoader(None, None, warmup=False, key=signature.load_key(keys / "mine.pub"))
    load(None, 1, str(signed))
    assert opened == [str(signed)]
    stranger = VersionLoader(None, None, warmup=False, key=signature.load_key(keys / "other.pub"))
    with pytest.raises(ServeError, match="no signature of this manifest"):
        stranger(None, 1, str(signed))
    (signed / "manifest.sig").unlink()
    with pytest.raises(ServeError, match=r"no manifest\.sig"):
        load(None, 1, str(signed))
    with pytest.raises(ServeError, match=r"no manifest\.json"):
        load(None, 1, str(keys))
    assert len(opened) == 1
    with pytest.raises(EngineError, match="no public key"):
        signature.load_key(keys / "mine.pem")


def test_a_file_of_a_signed_bundle_is_compared_with_the_manifest(signed, keys, monkeypatch):
    monkeypatch.setattr(VersionLoader, "_open", lambda self, path, manifest: None)
    load = VersionLoader(None, None, warmup=False, key=signature.load_key(keys / "mine.pub"))
    path = signed / "saved_model.pb"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ServeError, match=r"saved_model\.pb is changed"):
        load(None, 1, str(signed))


def test_without_cryptography(signed, keys):
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from pathlib import Path\nfrom packager import signing\n"
        "from packager.errors import EnvironmentLacks\n"
        "for call in (signing.check, signing.sign):\n"
        "  try: call(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "  except EnvironmentLacks as error: print(error.exit_code, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, signed, keys / "mine.pub"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "4 pip install 'packager[sign]'\n" * 2
