"""web/node/png.mjs against Pillow, web/npy.js against NumPy, and the vendored files' record."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.node

HERE = Path(__file__).resolve().parent
WEB = HERE.parents[1] / "web"
DECODE = HERE / "decode_files.mjs"


def smooth(height: int, width: int, channels: int) -> np.ndarray[Any, Any]:
    """Ramps with some noise, so that an encoder uses all row filters."""
    random = np.random.default_rng(channels)
    ramp = np.add.outer(np.arange(height) * 7, np.arange(width) * 3)[..., np.newaxis]
    noise = random.integers(0, 9, (height, width, channels))
    return ((ramp * np.arange(1, channels + 1) + noise) % 256).astype(np.uint8)


def test_png_files_decode_as_in_pillow(tmp_path: Path, node_json: Any) -> None:
    expected = {}
    for mode, channels in (("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)):
        pixels = smooth(33, 21, channels)
        image = Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)
        image.save(tmp_path / f"{mode}.png")
        expected[f"{mode}.png"] = pixels
    colours = Image.fromarray(smooth(20, 31, 3)).quantize(200)
    colours.save(tmp_path / "palette.png", bits=8)
    expected["palette.png"] = np.asarray(colours.convert("RGB"))
    colours.save(tmp_path / "palette_alpha.png", bits=8, transparency=bytes(range(0, 250, 5)))
    with Image.open(tmp_path / "palette_alpha.png") as image:
        expected["palette_alpha.png"] = np.asarray(image.convert("RGBA"))
    keyed = Image.fromarray(smooth(9, 8, 3))
    keyed.save(tmp_path / "keyed.png", transparency=keyed.getpixel((3, 2)))
    with Image.open(tmp_path / "keyed.png") as image:
        expected["keyed.png"] = np.asarray(image.convert("RGBA"))
    answers = node_json(DECODE, *(tmp_path / name for name in expected))
    for answer, (name, pixels) in zip(answers, expected.items(), strict=True):
        assert answer.get("shape") == list(pixels.shape), (name, answer)
        got = np.array(answer["values"], np.uint8).reshape(pixels.shape)
        np.testing.assert_array_equal(got, pixels, err_msg=name)


def test_png_files_that_are_refused(tmp_path: Path, node_json: Any) -> None:
    Image.fromarray(smooth(8, 8, 3)).save(tmp_path / "good.png")
    good = (tmp_path / "good.png").read_bytes()
    changed = bytearray(good)
    changed[60] ^= 255
    Image.fromarray(np.full((4, 4), 700, np.uint16)).save(tmp_path / "deep.png")
    broken = {
        "text.png": b"hello",
        "cut.png": good[:-20],
        "damaged.png": bytes(changed),
        "interlaced.png": good[:28] + b"\x01" + good[29:],
    }
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    names = [*broken, "deep.png"]
    answers = node_json(DECODE, *(tmp_path / name for name in names))
    words = ["not a PNG", "cut off", "is damaged", "is damaged", "16 bits"]
    for answer, word in zip(answers, words, strict=True):
        assert answer["error"].startswith("PngError")
        assert word in answer["error"]


def png(width: int, height: int, pixels: bytes, header: bool = True) -> bytes:
    """A gray PNG file whose header may say something else than its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    ends = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)) if header else b""
    return b"\x89PNG\r\n\x1a\n" + ends + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_png_files_that_unpack_to_more_than_they_declare(tmp_path: Path, node_json: Any) -> None:
    rows = b"\0abcd" * 3
    bomb = compress(bytes(200_000_000), 9)
    assert len(bomb) < 300_000
    files = {
        "good": png(4, 3, compress(rows)),
        "bomb": png(4, 3, bomb),
        "short": png(4, 3, compress(rows[:-1])),
        "huge": png(60_000, 60_000, bomb),
        "empty": png(0, 3, compress(b"")),
        "headless": png(4, 3, compress(rows), header=False),
        "no zlib": png(4, 3, rows),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    good, *answers = node_json(DECODE, *(tmp_path / f"{name}.png" for name in files))
    assert good == {"shape": [3, 4, 1], "values": list(b"abcd" * 3)}
    words = ["unpacked to 15 bytes", "wrong length", "60000 x 60000", "0 x 3", "header", "unpacked"]
    for answer, word in zip(answers, words, strict=True):
        assert answer["error"].startswith("PngError")
        assert word in answer["error"]


def test_npy_files_decode_as_in_numpy(tmp_path: Path, node_json: Any) -> None:
    random = np.random.default_rng(1)
    dtypes = ["float32", "float64", "int64", "int32", "int16", "uint16", "int8", "uint8", "bool"]
    arrays = [(random.normal(0, 40, (3, 2, 5)) % 120).astype(dtype) for dtype in dtypes]
    arrays += [np.array(2.5), np.arange(4.0)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    answers = node_json(DECODE, *(tmp_path / f"{i}.npy" for i in range(len(arrays))))
    for answer, array in zip(answers, arrays, strict=True):
        assert answer["dtype"] == array.dtype.name
        got = np.array(answer["values"]).reshape(answer["shape"])
        np.testing.assert_array_equal(got.astype(array.dtype), array)


def test_npy_files_that_are_refused(tmp_path: Path, node_json: Any) -> None:
    np.save(tmp_path / "complex.npy", np.array([1j]))
    np.save(tmp_path / "big.npy", np.arange(4, dtype=">f4"))
    np.save(tmp_path / "cut.npy", np.arange(40.0))
    content = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(content[:-9])
    (tmp_path / "text.npy").write_text("hello, this is text", encoding="utf-8")
    names = ["complex.npy", "big.npy", "cut.npy", "text.npy"]
    answers = node_json(DECODE, *(tmp_path / name for name in names))
    words = ["<c16", ">f4", "ends before its 40 values", "not a .npy file"]
    for answer, word in zip(answers, words, strict=True):
        assert answer["error"].startswith("NpyError")
        assert word in answer["error"]


def test_the_lock_file_has_hashes_and_no_addresses() -> None:
    text = (WEB / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]
    assert "resolved" not in text
    assert "://" not in text.replace('"url": "https://', '"')
    wanted = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert all(p["integrity"].startswith("sha512-") for key, p in packages.items() if key)


def test_vendored_files_are_what_the_record_says(vendor: Path) -> None:
    files = json.loads((vendor / "VERSIONS.json").read_text(encoding="utf-8"))["files"]
    present = {p.relative_to(vendor).as_posix() for p in vendor.rglob("*") if p.is_file()}
    assert present == {file["path"] for file in files} | {"VERSIONS.json"}
    for file in files:
        content = (vendor / file["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert 'from "./wasm-utils.js"' in (vendor / "litert" / "core.js").read_text(encoding="utf-8")


def test_filling_again_needs_no_network(node: Any, vendor: Path) -> None:
    done = node(WEB / "vendor.mjs", "--npm", "no-such-npm")
    assert (done.returncode, done.stdout.strip()) == (0, "web/vendor is up to date")
    assert node(WEB / "vendor.mjs", "--bad").returncode == 2


def test_notices_name_every_vendored_package(vendor: Path) -> None:
    notices = (WEB / "THIRD_PARTY_NOTICES").read_text(encoding="utf-8")
    files = json.loads((vendor / "VERSIONS.json").read_text(encoding="utf-8"))["files"]
    for file in files:
        assert f"{file['package']} {file['version']}" in notices
    assert "Apache License" in notices
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in notices
