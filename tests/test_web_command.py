"""`packager web` and `--with-web`: what is served, exported and put into bundles."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packager import bundle, hashes, web
from tests.conftest import ROOT, packager

HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """A bundle with the app, made without TensorFlow."""
    folder = tmp_path_factory.mktemp("small")
    model = ROOT / "examples/digits/model.keras"
    ran = packager(
        *("build", model, "--only", "tfjs/layers", "--no-verify", "--with-web", "--name", "m"),
        *("--output", folder, "--json"),
    )
    assert ran.code == 0, ran.err
    return folder / "m" / "1"


@pytest.fixture
def port(small: Path) -> Iterator[int]:
    with web.server(small, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


@pytest.mark.node
def test_a_bundle_with_the_app_holds_all_of_it(small: Path) -> None:
    manifest = bundle.read_manifest(small)
    assert hashes.check_files(small, manifest) == []
    shipped = {path.removeprefix("web/") for path in manifest.files if path.startswith("web/")}
    assert shipped == {*web.files(), web.LIST}
    for name in ("index.html", "packager.js", "packager.d.ts", "sw.js", "THIRD_PARTY_NOTICES"):
        assert name in shipped
    assert "vendor/litert/wasm/litert_wasm_threaded_internal.wasm" in shipped
    assert not [
        name
        for name in shipped
        if name.startswith(("node/", "package"))
        and name not in ("packager.js", "packager.d.ts", "packager-layers.js")
    ]
    topology = (small / "tfjs/layers/model.json").read_text()
    assert '"PackagerConv"' in topology
    assert "web: true" in (small / "package.yaml").read_text()


@pytest.mark.node
def test_the_list_for_the_service_worker_names_the_app(small: Path) -> None:
    text = (small / "web" / web.LIST).read_text()
    found = json.loads(re.fullmatch(r"self\.APP = (.*);\n", text)[1])
    assert re.fullmatch(r"[0-9a-f]{16}", found["version"])
    assert {"index.html", "app.css", "worker.js", "app/main.js"} <= set(found["shell"])
    assert not [name for name in found["shell"] if name.startswith("vendor/")]
    assert all((small / "web" / name).is_file() for name in found["shell"])


@pytest.mark.node
def test_what_is_served(port: int, small: Path) -> None:
    status, headers, _ = ask(port, "/")
    assert (status, headers["Location"]) == (302, "/web/")
    status, headers, content = ask(port, "/web/")
    assert status == 200 and content == (small / "web/index.html").read_bytes()
    assert headers["Content-Type"] == "text/html"
    assert HEADERS.items() <= headers.items()
    for path, kind in {
        "/web/packager.js": "text/javascript",
        "/web/vendor/tfjs-backend-wasm.wasm": "application/wasm",
        "/web/app.webmanifest": "application/manifest+json",
        "/manifest.json": "application/json",
    }.items():
        status, headers, content = ask(port, path)
        assert (status, headers["Content-Type"]) == (200, kind), path
        assert content == (small / path[1:]).read_bytes()
        again = ask(port, path, If_None_Match=headers["ETag"])
        assert (again[0], again[2]) == (304, b"")
        packed = ask(port, path, Accept_Encoding="gzip")
        assert packed[1]["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed[2]) == content


@pytest.mark.node
@pytest.mark.parametrize(
    "path",
    ["/web/none.js", "/../m/1/manifest.json", "/%2e%2e/%2e%2e/secret", "/web/../../x", "//x"],
)
def test_nothing_beside_the_bundle_is_served(port: int, path: str, small: Path) -> None:
    (small.parent.parent / "secret").write_text("secret")
    status, _, content = ask(port, path)
    assert status == 404
    assert b"is not here" in content


@pytest.mark.node
def test_an_export_holds_what_a_browser_needs_and_no_more(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    ran = packager("web", small.parent, "--export", target)
    assert ran.code == 0, ran.err
    found = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    assert {
        "index.html",
        ".nojekyll",
        "manifest.json",
        "web/index.html",
        "web/app-files.js",
    } <= found
    assert not [name for name in found if name.startswith(("saved_model", "variables", "edge"))]
    assert {name for name in bundle.read_manifest(small).files if name.startswith("tfjs/")} <= found
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    again = packager("web", small, "--export", target)
    assert again.code == 2
    assert "is not empty" in again.err


def test_what_cannot_be_exported_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    ran = packager("web", folder, "--export", tmp_path / "site")
    assert ran.code == 1
    assert not (tmp_path / "site").exists()


@pytest.mark.node
def test_the_command_serves_until_it_is_ended(small: Path) -> None:
    command = [sys.executable, "-u", "-m", "packager", "web", str(small.parent), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.match(r"http://127\.0\.0\.1:(\d+)/web/", line)
            assert found, line
            assert ask(int(found[1]), "/manifest.json")[0] == 200
        finally:
            process.terminate()
        assert process.wait(timeout=20) == 130
