"""Fuzzes one reader with atheris: an error of its own kind is an answer, anything else a finding.

    python -m tests.fuzz TARGET [--seconds 600] [--corpus FOLDER]

A finding is written to FOLDER/crash-… and ends the run with another exit code than 0. The corpus
begins with a valid file of the kind, made here.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["packager", "packager_server", "PIL"]):
    from packager_server import examples_json, json_text, predict_json
    from packager_server.codes import ServeError
    from packager_server.model import Signature, TensorInfo

    from packager import bundle, hashes, preprocess, tflite_file
    from packager.diff import tfjs as tfjs_reader
    from packager.errors import PackagerError
    from packager.loaders import saved_model_file, saved_model_ops

from PIL import Image

from tests.test_properties import MANIFEST, TFJS, saved_model

SCRATCH = Path(tempfile.mkdtemp(prefix="fuzz-"))
FLOATS = TensorInfo("float32", (None, 2))
TEXTS = TensorInfo("string", (None,))
SIGNATURES = (
    Signature("numbers", {"x": FLOATS}, {"y": FLOATS}),
    Signature("both", {"x": FLOATS, "words": TEXTS}, {"y": FLOATS}),
)


def manifest(content: bytes) -> None:
    """manifest.json."""
    (SCRATCH / "manifest.json").write_bytes(content)
    try:
        read = bundle.read_manifest(SCRATCH)
        hashes.check_files(SCRATCH, read)
    except PackagerError:
        return


def tflite(content: bytes) -> None:
    """A .tflite file."""
    from packager.diff import tflite as comparison

    path = SCRATCH / "m.tflite"
    path.write_bytes(content)
    try:
        comparison.read(path)
        tflite_file.read_bytes(content)
    except PackagerError:
        return


def tfjs(content: bytes) -> None:
    """A model.json of TF.js; what follows two NULs is its only shard."""
    document, _, shard = content.partition(b"\0\0")
    (SCRATCH / "model.json").write_bytes(document)
    (SCRATCH / "shard.bin").write_bytes(shard)
    try:
        tfjs_reader.read(SCRATCH / "model.json")
    except PackagerError:
        return


def savedmodel(content: bytes) -> None:
    """saved_model.pb."""
    if not content:
        return
    (SCRATCH / "saved_model.pb").write_bytes(content)
    for read in (saved_model_ops.check, saved_model_file.read_origin, saved_model_file.has_objects):
        try:
            read(SCRATCH)
        except (PackagerError, ValueError):
            continue


def image(content: bytes) -> None:
    """A picture, and what is declared of one."""
    spec = {"width": 5, "height": 3, "channels": "rgb", "resize": "pillow:bicubic", "fit": "pad"}
    try:
        preprocess.prepare_pixels(io.BytesIO(content), spec)
    except preprocess.PreprocessError:
        return


def rest(content: bytes) -> None:
    """The body of a REST request."""
    for signature in SIGNATURES:
        for read in (
            lambda one=signature: predict_json.tensors(predict_json.parse(content), one),
            lambda: examples_json.serialized(examples_json.parse(content, "classify")),
            lambda: json_text.parse(content),
        ):
            try:
                read()
            except ServeError:
                continue


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (10, 200, 30)).save(file, "png")
    return file.getvalue()


def _tflite() -> bytes:
    found = sorted((Path(__file__).parents[2] / "dist").rglob("*.int8.tflite"))
    return found[0].read_bytes() if found else b"\x1c\0\0\0TFL3" + bytes(64)


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], bytes]]] = {
    "manifest": (manifest, lambda: json.dumps(MANIFEST).encode()),
    "tflite": (tflite, _tflite),
    "tfjs": (tfjs, lambda: json.dumps(TFJS).encode() + b"\0\0" + bytes(range(48))),
    "savedmodel": (savedmodel, lambda: saved_model(b"MatMul")),
    "image": (image, _picture),
    "rest": (
        rest,
        lambda: b'{"signature_name": "s", "instances": [{"x": [1.5, -2], "b64": "YQ=="}]}',
    ),
}


def main() -> None:
    """Runs libFuzzer, which ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, default=None)
    given = parser.parse_args()
    run, seed = TARGETS[given.target]
    corpus = given.corpus or SCRATCH / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "seed").write_bytes(seed())
    limits = [f"-max_total_time={given.seconds}", "-timeout=25", "-rss_limit_mb=4096"]
    flags = [*limits, "-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={corpus}{os.sep}"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
