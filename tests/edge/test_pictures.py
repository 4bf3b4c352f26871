"""Pictures as cameras, phones and attackers make them: the right answer or a clear error."""

import json
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image

from packager import preprocess as reference
from tests.conftest import ROOT

pytestmark = pytest.mark.tf


def smooth(size, seed=3, mode="RGB"):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


def bomb(path, width, height):
    """A PNG of a few bytes that claims a huge picture."""

    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def expected_pixels(bundle, picture):
    declared = json.loads((bundle / "manifest.json").read_text())["inputs"][0]
    return reference.preprocess(picture, declared)


@pytest.fixture
def answers(program, bundle):
    """Answers one file and the array that it should become; both must be equal."""

    def check(path, picture, tmp_path):
        np.save(tmp_path / "tensor.npy", expected_pixels(bundle, picture))
        answer = program("predict", bundle, path, tmp_path / "tensor.npy", "--json")
        assert answer.code == 0, answer.err
        assert answer.lines[0]["top"] == answer.lines[1]["top"]

    return check


@pytest.mark.parametrize("kind", ["gif", "png16", "cmyk", "exif", "one", "long"])
def test_odd_pictures(answers, tmp_path, kind):
    """Compared with 8-bit pixels that the test makes itself."""
    path = tmp_path / f"a.{ {'gif': 'gif', 'cmyk': 'jpg', 'exif': 'jpg'}.get(kind, 'png') }"
    if kind == "gif":
        frames = [smooth((40, 30), seed).quantize() for seed in (1, 2)]
        frames[0].save(path, save_all=True, append_images=frames[1:])
        picture = np.asarray(frames[0].convert("RGB"))
    elif kind == "png16":
        picture = np.asarray(smooth((40, 30), mode="L"))
        Image.fromarray(picture.astype(np.uint16) * 256 + 77).save(path)
    elif kind == "cmyk":
        smooth((40, 30)).convert("CMYK").save(path, quality=95)
        picture = np.asarray(Image.open(path).convert("RGB"))
    elif kind == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6
        smooth((40, 30)).save(path, exif=exif, quality=95)
        # Orientation 6: turned to the right when shown.
        picture = np.rot90(np.asarray(Image.open(path)), -1)
    else:
        smooth((1, 1) if kind == "one" else (10_000, 10)).save(path)
        picture = np.asarray(Image.open(path))
    answers(path, np.ascontiguousarray(picture), tmp_path)


@pytest.mark.parametrize("side", [12_000, 60_000])
def test_image_bombs(program, bundle, tmp_path, side):
    bomb(tmp_path / "bomb.png", side, side)
    good = bundle / "golden/000.image.png"
    answer = program("predict", bundle, tmp_path / "bomb.png", good, "--json")
    assert answer.code == 1
    assert "bomb.png" in answer.lines[0]["error"]
    assert "limit" in answer.lines[0]["error"]
    assert "label" in answer.lines[1]
    assert "Traceback" not in answer.err


def test_a_bundle_without_labels(command, bundle, change_manifest):
    change_manifest(lambda manifest: manifest.update(labels=[]))
    answer = command("predict", bundle, bundle / "golden/000.image.png", "--json")
    assert answer.code == 0
    assert answer.lines[0]["label"] == str(answer.lines[0]["class"])


def test_a_model_of_another_kind(command, bundle, built, change_manifest):
    """The file of another model under the name of this one."""
    change_manifest(lambda manifest: manifest.pop("files"))
    other = (built / "loose/two.tflite").read_bytes()
    (bundle / "tflite/digits.int8.tflite").write_bytes(other)
    answer = command("predict", bundle, bundle / "golden/000.image.png")
    assert answer.code == 1
    assert "expected image, but the file has" in answer.err


def test_the_photos_that_everything_here_is_tried_on(program, digits_bundle, shared, tmp_path):
    """run.py, and the reference preprocessing with the bare interpreter, give one answer."""
    declared = json.loads((digits_bundle / "manifest.json").read_text())["inputs"][0]
    photos = sorted((shared / "data/images").glob("*.jpg"))
    tensors = []
    for photo in photos:
        tensors.append(tmp_path / f"{photo.stem}.npy")
        np.save(tensors[-1], reference.preprocess(photo, declared))
    answer = program("predict", digits_bundle, *photos, *tensors, "--json")
    assert answer.code == 0, answer.err
    half = len(photos)
    assert [line["top"] for line in answer.lines[:half]] == [
        line["top"] for line in answer.lines[half:]
    ]


class TestInstall:
    def run(self, edge, *arguments, **environment):
        return subprocess.run(
            ["sh", edge / "install.sh", *arguments], capture_output=True, text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}, check=False,
        )  # fmt: skip

    @pytest.fixture
    def edge(self):
        return ROOT / "edge"

    @pytest.mark.parametrize(
        ("facts", "code", "text"),
        [
            ("64 aarch64 3 13 2 41", 0, "install --quiet ai-edge-litert>=2.0.3 numpy>=1.23"),
            ("64 x86_64 3 9 2 31", 0, "install --quiet ai-edge-litert>=2.0.3"),
            ("64 aarch64 3 15 2 41", 4, "no build for Python 3.15"),
            ("64 aarch64 3 8 2 31", 4, "Python 3.8 is too old"),
            ("32 armv7l 3 11 2 36", 0, "install --quiet tflite-runtime==2.14.0"),
            ("32 aarch64 3 11 2 36", 0, "chosen: tflite-runtime 2.14, with Debian's NumPy 1"),
            ("32 armv7l 3 13 2 41", 4, "no build for Python 3.13"),
            ("32 armv7l 3 9 2 31", 4, "needs glibc 2.34"),
        ],
    )
    def test_what_is_chosen(self, edge, tmp_path, facts, code, text):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho {facts}\n")
        python.chmod(0o755)
        done = self.run(edge, "--dry-run", "--python", python)
        assert done.returncode == code, done.stderr
        assert text in done.stdout + done.stderr

    def test_the_edge_tpu_is_looked_for(self, edge, tmp_path):
        usb, libraries = tmp_path / "sys/bus/usb/devices/1-1", tmp_path / "lib"
        for folder in (usb, libraries, tmp_path / "dev/bus/usb/001"):
            folder.mkdir(parents=True)
        places = {"SYS": tmp_path / "sys", "DEV": tmp_path / "dev", "LIBRARIES": libraries}
        done = self.run(edge, "--edgetpu", **places)
        assert done.returncode == 4
        assert "libedgetpu.so.1: missing" in done.stdout and "no Edge TPU" in done.stdout
        for name, value in (("idVendor", "18d1"), ("idProduct", "9302"), ("busnum", "1"),
                            ("devnum", "4")):  # fmt: skip
            (usb / name).write_text(value + "\n")
        (tmp_path / "dev/bus/usb/001/004").touch()
        (libraries / "libedgetpu.so.1").touch()
        done = self.run(edge, "--edgetpu", **places)
        assert done.returncode == 0, done.stdout
        assert "USB Accelerator: found" in done.stdout

    def test_a_service(self, edge):
        done = self.run(edge, "--dry-run", "--service", "watch /opt/digits/current /srv/in")
        assert done.returncode == 0, done.stderr
        assert f"/venv/bin/python {edge}/run.py watch /opt/digits/current" in done.stdout
        assert "@" not in done.stdout.partition("write")[2]
        assert "systemctl enable --now packager-edge" in done.stdout

    def test_usage(self, edge):
        assert self.run(edge, "--venv").returncode == 2
        assert self.run(edge, "--nothing").returncode == 2
        assert "--edgetpu" in self.run(edge, "--help").stdout
