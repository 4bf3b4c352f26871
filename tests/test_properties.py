"""What holds for every input: readers answer or refuse, arithmetic keeps its bounds (hypothesis).

CI runs a few examples; PACKAGER_PROPERTY_EXAMPLES=20000 in the environment runs many.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packager_server import examples_json, json_text, predict_json
from packager_server.codes import ServeError
from packager_server.model import Signature, TensorInfo
from PIL import Image

from packager import bundle, config, hashes, preprocess, tflite_file
from packager.diff import tfjs
from packager.errors import PackagerError
from packager.loaders import saved_model_file, saved_model_ops

EXAMPLES = int(os.environ.get("PACKAGER_PROPERTY_EXAMPLES", "60"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

leaf = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["../../x", "/etc/passwd", "\0", "1e999", "tflite/int8", "int8", "NaN"]),
)  # fmt: skip
tree = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of a JSON document."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path, *(found for key, each in items for found in paths(each, (*path, key)))]


def replaced(document: Any, path: tuple[Any, ...], value: Any, remove: bool) -> Any:
    """The document with another value at a place, or without it."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = functools.reduce(lambda each, key: each[key], path[:-1], changed)
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


MANIFEST: dict[str, Any] = {
    "schema": 1, "name": "m", "version": 3, "created": "2026-01-01T00:00:00Z",
    "source": {"file": "m.keras", "sha256": "0" * 64, "format": "keras3", "saved_by": "keras 3.15"},
    "task": "classification",
    "inputs": [{"name": "image", "source_name": "image", "dtype": "float32",
                "shape": [None, 2, 2, 1],
                "image": {"width": 2, "height": 2, "channels": "gray", "resize": "pillow:bilinear",
                          "fit": "stretch", "pad_value": 0, "scale": [0.5], "offset": [0.0]}}],
    "outputs": [{"name": "digit", "source_name": "digit", "shape": [None, 2], "dtype": "float32",
                 "activation": "softmax"}],
    "labels": ["a", "b"],
    "artifacts": [{"id": "tflite/int8", "path": "tflite/m.tflite", "size_bytes": 5,
                   "runtime": {"kind": "tflite", "min_version": {"ai-edge-litert": "2.0.3"}},
                   "io": [{"role": "input", "name": "image", "dtype": "int8", "shape": [1, 2, 2, 1],
                           "scale": [0.1], "zero_point": [3]}],
                   "batch": 1, "metrics": {"accuracy": 0.5},
                   "gate": {"status": "passed", "checks": []}}],
    "tools": {"python": "3.11"}, "gates": {"max_drop": 0.01},
    "files": {"tflite/m.tflite": {"bytes": 5, "sha256": "0" * 64}},
}  # fmt: skip


@many
@given(st.data(), st.sampled_from(paths(MANIFEST)), tree, st.booleans())
def test_a_manifest_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: Any, path: Any, value: Any, remove: bool
) -> None:
    folder = tmp_path_factory.mktemp("bundle", numbered=True)
    changed = replaced(MANIFEST, path, value, remove)
    (folder / "manifest.json").write_text(json.dumps(changed), encoding="utf-8")
    try:
        read = bundle.read_manifest(folder)
        again = bundle.from_json(bundle.Manifest, bundle.to_json(read))
        hashes.check_files(folder, read)
    except PackagerError as error:
        assert error.message
        return
    assert again == read


def test_the_manifest_of_these_tests_is_one(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    assert bundle.read_manifest(tmp_path).artifact("tflite/int8").batch == 1


CONFIG: dict[str, Any] = {
    "model": {"source": "m.keras", "input_shape": {"x": [1, 5]}}, "name": "m", "version": "next",
    "task": "binary", "threshold": 0.4, "labels": ["a", "b"],
    "preprocess": {"resize": "pillow:bilinear", "fit": "crop", "scale": 0.5, "offset": [0.0]},
    "calibration": {"source": "c.npz", "limit": 5}, "evaluation": "e.npz", "targets": ["tflite"],
    "train": {"source": "t.npz"}, "tfjs_weights": ["uint8:conv*"],
    "gates": {"max_drop": 0.1, "max_bytes": 100}, "golden": {"count": 3, "seed": 1},
}  # fmt: skip


@many
@given(st.sampled_from(paths(CONFIG)), tree, st.booleans())
def test_a_configuration_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: Any, value: Any, remove: bool
) -> None:
    file = tmp_path_factory.mktemp("config", numbered=True) / "package.yaml"
    try:
        text = yaml.safe_dump(replaced(CONFIG, path, value, remove))
    except (yaml.YAMLError, ValueError):
        return
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        read = config.load(file)
    except PackagerError as error:
        assert error.exit_code == 2
        assert error.hint or "expected" in error.message
        return
    assert isinstance(read, config.Config)


@many
@given(st.binary(max_size=200) | tree.map(lambda value: json.dumps(value).encode()))
def test_a_request_is_parsed_or_refused(body: bytes) -> None:
    info = TensorInfo("float32", (None, 2))
    signature = Signature("s", {"x": info}, {"y": info})
    for attempt in (
        lambda: predict_json.tensors(predict_json.parse(body), signature),
        lambda: examples_json.serialized(examples_json.parse(body, "classify")),
        lambda: json_text.parse(body),
    ):
        try:
            attempt()
        except ServeError as error:
            assert error.message


number = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.lists(number, min_size=2, max_size=2), min_size=n, max_size=n
    )
)  # fmt: skip


@many
@given(rows, st.booleans())
def test_the_tensors_of_a_request_are_its_numbers(values: list[list[float]], by_row: bool) -> None:
    info = TensorInfo("float32", (None, 2))
    signature = Signature("s", {"x": info}, {"y": info})
    body = json.dumps({"instances": values} if by_row else {"inputs": values}).encode()
    tensors, found_rows = predict_json.tensors(predict_json.parse(body), signature)
    assert found_rows is by_row
    np.testing.assert_array_equal(tensors["x"], np.array(values, np.float32))


sizes = st.integers(1, 5000)


@many
@given(sizes, sizes, sizes, sizes, st.sampled_from(preprocess.FITS))
def test_boxes_lie_inside_the_picture_and_the_target(
    w: int, h: int, W: int, H: int, fit: str
) -> None:
    (left, top, cw, ch), (rw, rh), (x, y) = preprocess.fit_boxes(w, h, W, H, fit)
    assert 0 <= left <= left + cw <= w
    assert 0 <= top <= top + ch <= h
    assert min(cw, ch, rw, rh) >= 1
    assert 0 <= x <= x + rw <= W
    assert 0 <= y <= y + rh <= H
    assert (rw, rh) == (W, H) or fit == "pad"
    if fit == "crop":
        # The same shape as the target's, to the nearest pixel of the side that is cut.
        assert abs(cw * H - ch * W) <= max(W, H)


@many
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.integers(1, 30),
    st.sampled_from(preprocess.RESIZE_METHODS), st.sampled_from(preprocess.FITS),
    st.sampled_from(preprocess.CHANNELS), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_pictures_become_what_is_declared(
    w: int, h: int, W: int, H: int, method: str, fit: str, channels: str, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)
    spec = {"width": W, "height": H, "channels": channels, "resize": method, "fit": fit,
            "pad_value": 7, "scale": [1 / 255], "offset": [-0.5]}  # fmt: skip
    found = preprocess.prepare_pixels(Image.fromarray(pixels), spec)
    assert found.shape == (H, W, 1 if channels == "gray" else 3)
    assert found.dtype == (np.float32 if method == "tf:bilinear" else np.uint8)
    low, high = int(min(found.min(), 7)), int(max(found.max(), 7))
    if method in ("pillow:nearest", "tf:nearest", "pillow:bilinear", "tf:bilinear"):
        # These never leave the range of what they are given.
        gray = preprocess.to_channels(pixels, channels)
        assert min(7, int(gray.min())) <= low <= high <= max(7, int(gray.max()))
    tensor = preprocess.normalise(found, spec, "float32")
    wanted = (found.astype(np.float64) * (1 / 255) - 0.5).astype(np.float32)
    np.testing.assert_array_equal(tensor, wanted)


@many
@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20),
    st.floats(1e-6, 1e3), st.integers(-128, 127),
)  # fmt: skip
def test_quantizing_moves_by_half_a_step_or_clips(
    values: list[float], scale: float, zero_point: int
) -> None:
    x = np.array(values, np.float32)
    q = preprocess.quantize(x, scale, zero_point, "int8")
    back = preprocess.dequantize(q, scale, zero_point)
    low, high = (scale * (edge - zero_point) for edge in (-128, 127))
    inside = (x > low) & (x < high)
    error = np.abs(back.astype(np.float64) - x)
    slack = np.abs(x.astype(np.float64)) * 2.0**-22
    assert (error[inside] <= scale / 2 + slack[inside]).all()
    assert (q[x <= low - scale] == -128).all()
    assert (q[x >= high + scale] == 127).all()
    assert (np.diff(q[np.argsort(x, kind="stable")].astype(int)) >= 0).all()


def mutated(content: bytes, edits: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(content)
    for at, value in edits:
        changed[at % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)] if cut % 3 == 0 else changed)


edits = st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), max_size=8)


def protobuf(fields: list[tuple[int, bytes]]) -> bytes:
    def varint(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    return b"".join(varint(n << 3 | 2) + varint(len(v)) + v for n, v in fields)


def saved_model(op: bytes) -> bytes:
    """A SavedModel whose graph and only function hold one operation."""
    node = protobuf([(1, b"n"), (2, op)])
    return saved_graph([node], [protobuf([(1, protobuf([(1, b"f")])), (3, node)])])


def saved_graph(nodes: list[bytes], functions: list[bytes]) -> bytes:
    """A SavedModel of these nodes and functions."""
    library = protobuf([(1, function) for function in functions])
    graph = protobuf([*((1, node) for node in nodes), (2, library)])
    return protobuf([(2, protobuf([(2, graph)]))])


SAFE = protobuf([(1, b"n"), (2, b"MatMul")])
EVIL = protobuf([(1, b"n"), (2, b"ReadFile")])
SAVE = protobuf([(1, b"s"), (2, b"SaveV2")])
SAVER = (1, protobuf([(1, b"__inference__traced_save_1")]))


@pytest.mark.parametrize(
    "content",
    [
        # Of two values TensorFlow takes the last.
        saved_graph([protobuf([(1, b"n"), (2, b"MatMul"), (2, b"ReadFile")])], []),
        saved_graph([], [protobuf([SAVER, (1, protobuf([(1, b"f")])), (3, SAVE)])]),
        saved_graph([], [protobuf([(1, protobuf([(1, b"__inference__traced_save_1"), (1, b"f")])),
                                   (3, SAVE)])]),
        # Two of one name: one would hide the other.
        saved_graph([EVIL, SAFE], []),
        saved_graph([SAFE, EVIL], []),
        saved_graph([SAFE], [protobuf([SAVER, (3, EVIL)]), protobuf([SAVER, (3, SAFE)])]),
        # A field number with more bits than the readers that cut them off keep.
        protobuf([(2, protobuf([(2, protobuf([(1 + (1 << 29), EVIL)]))]))]),
        b"\x02\0" + saved_model(b"MatMul"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_saved_model_that_two_readers_understand_differently(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises((ValueError, PackagerError)):
        saved_model_ops.check(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(saved_graph([SAFE], [protobuf([SAVER, (3, SAVE)])]))
    saved_model_ops.check(tmp_path)


@many
@given(edits, st.integers(0, 1000))
def test_a_damaged_saved_model_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("saved", numbered=True)
    content = mutated(saved_model(b"MatMul"), changes, cut)
    if not content:
        return
    (folder / "saved_model.pb").write_bytes(content)
    for attempt in (saved_model_ops.check, saved_model_file.read_origin):
        try:
            attempt(folder)
        except (ValueError, PackagerError) as error:
            assert str(error)


@many
@given(st.sampled_from(["ReadFile", "PyFunc", "MyOwnOp", "WriteFile", "", "matmul", "Mat\0Mul"]))
def test_no_spelling_of_an_operation_slips_through(
    tmp_path_factory: pytest.TempPathFactory, op: str
) -> None:
    folder = tmp_path_factory.mktemp("saved", numbered=True)
    (folder / "saved_model.pb").write_bytes(saved_model(op.encode()))
    with pytest.raises(PackagerError):
        saved_model_ops.check(folder)


@many
@given(edits, st.integers(0, 3000))
def test_a_damaged_picture_is_opened_or_refused(changes: Any, cut: int) -> None:
    file = io.BytesIO()
    kind = ("png", "jpeg", "gif", "webp")[cut % 4]
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, kind)
    try:
        found = preprocess.load_image(io.BytesIO(mutated(file.getvalue(), changes, cut)))
    except preprocess.PreprocessError as error:
        assert error.message
        return
    assert found.dtype == np.uint8
    assert found.ndim == 3


@many
@given(st.binary(max_size=64), edits)
def test_what_is_no_tflite_file_is_refused(content: bytes, changes: Any) -> None:
    head = struct.pack("<I4s", 28, b"TFL3")
    with pytest.raises(PackagerError):
        tflite_file.read_bytes(head + mutated(content or b"x", changes, 1))


TFJS: dict[str, Any] = {
    "format": "layers-model",
    "modelTopology": {"model_config": {"class_name": "Functional", "config": {"layers": [
        {"class_name": "Dense", "name": "d", "config": {"name": "d", "units": 2},
         "inbound_nodes": [[["x", 0, 0, {}]]]}]}}},
    "weightsManifest": [{"paths": ["shard.bin"], "weights": [
        {"name": "d/kernel", "shape": [2, 3], "dtype": "float32"},
        {"name": "d/bias", "shape": [3], "dtype": "float32",
         "quantization": {"dtype": "uint8", "scale": 0.1, "min": -1.0}},
        {"name": "d/words", "shape": [2], "dtype": "string"}]}],
    "userDefinedMetadata": {"packager": {"schema": 1}},
}  # fmt: skip
SHARD = bytes(24) + b"abc" + b"\2\0\0\0hi\0\0\0\0"


@many
@given(st.sampled_from(paths(TFJS)), tree, st.booleans(), st.integers(0, len(SHARD)))
def test_a_model_json_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: Any, value: Any, remove: bool, length: int
) -> None:
    folder = tmp_path_factory.mktemp("tfjs", numbered=True)
    (folder / "model.json").write_text(json.dumps(replaced(TFJS, path, value, remove)))
    (folder / "shard.bin").write_bytes(SHARD[:length])
    try:
        read = tfjs.read(folder / "model.json")
    except PackagerError as error:
        assert error.message
        return
    assert all(tensor.values.nbytes <= len(SHARD) for tensor in read.tensors.values())


def test_the_model_json_of_these_tests_is_one(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(TFJS))
    (tmp_path / "shard.bin").write_bytes(SHARD)
    found = tfjs.read(tmp_path / "model.json")
    assert [t.values.size for t in found.tensors.values()] == [6, 3, 10]


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_weights_are_not_read_from_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(SHARD)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.json").write_text(
        json.dumps(replaced(TFJS, ("weightsManifest", 0, "paths"), [name], remove=False))
    )
    with pytest.raises(PackagerError, match="leads out of it"):
        tfjs.read(folder / "model.json")


def test_words_without_end_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "shard.bin").write_bytes(SHARD)
    shape = ("weightsManifest", 0, "weights", 2, "shape")
    (tmp_path / "model.json").write_text(json.dumps(replaced(TFJS, shape, [2**40], remove=False)))
    with pytest.raises(PackagerError, match="end before d/words"):
        tfjs.read(tmp_path / "model.json")
