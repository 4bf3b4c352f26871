"""Weights of TF.js models: rules, storage and shards, read back by the stock converter's reader."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager import config
from packager.errors import ConfigError, ConversionError
from packager.targets import tfjs_files, tfjs_weights
from packager.targets.tfjs_weights import Rule
from packager.verify import gates, golden

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / ".venv-tfjs-reader"
RNG = np.random.default_rng(5)

# The package's own __init__ imports converters, with JAX and another TensorFlow.
READ = """
import json, sys, types
import numpy as np
sys.path.insert(0, sys.argv[1])
package = types.ModuleType("tensorflowjs")
package.__path__ = [sys.argv[1] + "/tensorflowjs"]
sys.modules["tensorflowjs"] = package
from tensorflowjs import read_weights
manifest = json.load(open(sys.argv[2] + "/model.json"))["weightsManifest"]
entries = read_weights.read_weights(manifest, sys.argv[2], flatten=True)
plain = lambda a: np.array([t.decode() for t in a.reshape(-1)]).reshape(a.shape)
arrays = [plain(e["data"]) if e["data"].dtype == object else e["data"] for e in entries]
np.savez(sys.argv[3], *arrays)
print(json.dumps([e["name"] for e in entries]))
"""


def decoded(folder: Path, tmp_path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """A model's weights as the `tensorflowjs` package reads them."""
    if not (READER / ".stamp").exists():
        pytest.skip("the stock reader is missing: make setup-tfjs-reader")
    target = tmp_path / "decoded.npz"
    done = subprocess.run(
        [sys.executable, "-c", READ, READER, folder, target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(target) as arrays:
        return {name: arrays[f"arr_{i}"] for i, name in enumerate(json.loads(done.stdout))}


def weights() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "conv/kernel": RNG.normal(size=(3, 3, 4, 8)).astype(np.float32),
        "conv/bias": RNG.normal(size=8).astype(np.float32),
        "head/kernel": np.maximum(RNG.normal(size=(8, 5)), 0).astype(np.float32),
        "positive": RNG.uniform(2, 3, (4, 4)).astype(np.float32),
        "constant": np.full((3, 3), 0.25, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.float32(1.5).reshape(()),
        "steps": np.array([1, -2, 2**31 - 1], np.int32),
        "mask": np.array([[True, False]]),
        "words": np.array([b"one", b"", "zwölf".encode()], object),
    }


def write(folder: Path, arrays: Any, *rules: str, **options: Any) -> tfjs_files.WrittenTfjs:
    return tfjs_files.write_model(
        folder,
        topology={},
        weights=arrays,
        model_format="graph-model",
        converted_by="test",
        metadata={},
        rules=tfjs_weights.parse(rules),
        **options,
    )


def test_all_types_come_back_from_shards_smaller_than_a_weight(tmp_path: Path) -> None:
    given = weights()
    written = write(tmp_path / "model", given, shard_bytes=100)
    assert len(written.shards) > 12
    assert all(shard.stat().st_size == 100 for shard in written.shards[:-1])
    for number, shard in enumerate(written.shards, start=1):
        digest = hashlib.sha256(shard.read_bytes()).hexdigest()[:16]
        assert shard.name == f"weights-{digest}-{number}of{len(written.shards)}.bin"
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == sorted(
        ["model.json", *(shard.name for shard in written.shards)]
    )
    found = decoded(tmp_path / "model", tmp_path)
    assert list(found) == list(given)
    for name, array in given.items():
        if name == "words":
            assert found[name].tolist() == ["one", "", "zwölf"]
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)
            assert found[name].dtype == array.dtype


def test_a_changed_weight_changes_a_shards_name(tmp_path: Path) -> None:
    given = weights()
    one = write(tmp_path / "one", given).shards
    given["scalar"] = np.float32(1.25).reshape(())
    two = write(tmp_path / "two", given).shards
    assert len(one) == len(two) == 1
    assert one[0].name != two[0].name


@pytest.mark.parametrize("dtype", ["float16", "uint16", "uint8"])
def test_fewer_bits_keep_values_within_half_a_step(dtype: str, tmp_path: Path) -> None:
    given = weights()
    plain = write(tmp_path / "plain", given)
    written = write(tmp_path / "model", given, dtype)
    assert written.size_bytes < plain.size_bytes
    found = decoded(tmp_path / "model", tmp_path)
    description = json.loads(written.model_json.read_text())
    stored = {
        w["name"]: w.get("quantization") for w in description["weightsManifest"][0]["weights"]
    }
    chosen = {name for name, how in stored.items() if how}
    assert chosen == {"conv/kernel", "head/kernel", "positive", "constant", "empty"}
    for name, array in given.items():
        if name == "words":
            continue
        if name not in chosen:
            np.testing.assert_array_equal(found[name], array)
        elif dtype == "float16":
            np.testing.assert_array_equal(found[name], array.astype(np.float16))
        elif array.size:
            steps = float(np.ptp(array)) / (2 ** int(dtype[4:]) - 1)
            # Half a step; one more where the range was moved so that zero is exact.
            error = float(np.abs(found[name] - array).max())
            assert error <= steps * 1.01 + 1e-7
    zeros = given["head/kernel"] == 0
    assert zeros.any()
    assert not found["head/kernel"][zeros].any()
    np.testing.assert_array_equal(found["constant"], given["constant"])


def test_patterns_choose_and_the_rest_follows(tmp_path: Path) -> None:
    rules = tfjs_weights.parse(["uint8:conv/*", "float16"])
    chosen = tfjs_weights.assign(rules, weights())
    assert {name: rule.dtype for name, rule in chosen.items()} == {
        "conv/kernel": "uint8",
        "conv/bias": "uint8",  # a pattern may name what has one axis
        "head/kernel": "float16",
        "positive": "float16",
        "constant": "float16",
        "empty": "float16",
    }
    mode = tfjs_weights.quantization(rules)
    assert mode is not None
    assert mode.mode == "uint8_weights"
    assert tfjs_weights.quantization(()) is None


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["uint8:dense*"], "--tfjs-weights uint8:dense* matches no weight"),
        (["uint8:steps"], "matches no weight"),  # integers are not stored in fewer bits
        (["uint8:conv/*", "float16:*/kernel"], "both match the weight conv/kernel"),
        (["uint8:*", "float16"], "--tfjs-weights float16 matches no weight"),
    ],
)
def test_rules_that_do_not_fit_the_model_are_errors(rules: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tfjs_weights.assign(tfjs_weights.parse(rules), weights())
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["int8"], "expected one of uint16, float16, uint8"),
        (["uint8:"], "received 'uint8:'"),
        (["float16", "uint8"], "the same pattern"),
        (["uint8:a*", "uint16:a*"], "the same pattern"),
    ],
)
def test_rules_that_mean_nothing_are_refused_before_anything_starts(
    rules: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match="--tfjs-weights") as caught:
        config.from_flags({"model": {"source": "model.keras"}, "tfjs_weights": rules})
    assert words in caught.value.message


def test_rules_stand_in_package_yaml(tmp_path: Path) -> None:
    given = config.from_flags(
        {"model": {"source": "model.keras"}, "tfjs_weights": ["uint8:conv*", "float16"]}
    )
    assert given.tfjs_weights == ("uint8:conv*", "float16")
    path = tmp_path / "package.yaml"
    path.write_text(given.to_yaml(tmp_path))
    assert config.load(path).tfjs_weights == given.tfjs_weights


def test_values_beyond_a_type_are_refused() -> None:
    large = np.array([[1.0, 1e5]], np.float32)
    with pytest.raises(ConversionError, match="beyond float16") as caught:
        tfjs_weights.encode("big", large, Rule("float16"))
    assert "uint16:big" in caught.value.hint
    infinite = np.array([[1.0, -np.inf]], np.float32)
    for dtype in tfjs_weights.DTYPES:
        with pytest.raises(ConversionError, match="weight mask: infinite"):
            tfjs_weights.encode("mask", infinite, Rule(dtype))
    # Without a rule it is what it is: a mask may be meant.
    assert tfjs_weights.encode("mask", infinite, None)[1] == infinite.tobytes()
    with pytest.raises(ConversionError, match="no float64"):
        tfjs_weights.encode("double", np.ones((2, 2)), None)


def test_sixteen_bits_are_held_to_the_source_and_eight_to_its_answers() -> None:
    metrics = {"agreement": 1.0, "range_diff": 0.1, "max_abs_diff": 0.1, "mean_abs_diff": 0.1}
    statuses = {
        mode: gates.check(mode, 1, metrics, gates.GateLimits(), synthetic=False).status
        for mode in ("float32", "float16_weights", "uint16_weights", "uint8_weights")
    }
    assert statuses == {
        "float32": "failed",
        "float16_weights": "failed",
        "uint16_weights": "failed",
        "uint8_weights": "passed",
    }
    metrics["range_diff"] = 0.04
    for mode in ("float16_weights", "uint16_weights"):
        checked = gates.check(mode, 1, metrics, gates.GateLimits(), synthetic=False)
        assert checked.status == "passed", mode


def test_elsewhere_the_same_weights_give_the_same_values_as_float32() -> None:
    """TF.js computes in float32 whatever the download holds, so no machine may differ more."""
    assert golden._FLOAT_TOLERANCE.get("uint8_weights") is None
    assert golden._FLOAT_TOLERANCE["float32"] == golden._DEFAULT_FLOAT_TOLERANCE
