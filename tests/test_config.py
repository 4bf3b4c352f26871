"""package.yaml and flags: what they become, and what is said about mistakes in them."""

from pathlib import Path

import pytest

from packager import config
from packager.bundle import GateLimits
from packager.config import Config, DataSource, Golden, Model
from packager.errors import ConfigError

FULL = """
model: {source: nets/model.keras, signature: serve, custom_objects: my.layers,
        input_shape: {image: [224, 224, 3]}}
name: pets
version: next
output: out
task: binary
threshold: 0.25
labels: [no cat, cat]
preprocess: {image: {preset: 0..1, width: 224, height: 224, fit: crop}}
calibration: {source: "my.data:calibration", limit: 200}
evaluation: eval.npz
targets: [tflite, tfjs/layers]
gates: {max_drop: 0.02, max_abs_diff: 1e-4, min_agreement: false, max_bytes: 500_000}
golden: {count: 4, seed: 9}
"""


def load(folder, text):
    path = folder / "package.yaml"
    path.write_text(text, encoding="utf-8")
    return config.load(path)


def test_reads_every_key(tmp_path):
    assert load(tmp_path, FULL) == Config(
        model=Model(
            source=str(tmp_path / "nets/model.keras"),
            signature="serve",
            custom_objects=("my.layers",),
            input_shape={"image": (224, 224, 3)},
        ),
        name="pets",
        version="next",
        output=tmp_path / "out",
        task="binary",
        threshold=0.25,
        labels=("no cat", "cat"),
        preprocess={"image": {"preset": "0..1", "width": 224, "height": 224, "fit": "crop"}},
        calibration=DataSource("my.data:calibration", 200),
        evaluation=DataSource(str(tmp_path / "eval.npz")),
        targets=("tflite", "tfjs/layers"),
        gates=GateLimits(0.02, None, 1e-4, 500_000),
        golden=Golden(4, 9),
    )


def test_short_forms_and_defaults(tmp_path):
    found = load(tmp_path, "model: ../m.keras\npreprocess: -1..1\nlabels: l.txt\ntargets:\n")
    assert found.model == Model(source=str(tmp_path.parent / "m.keras"))
    assert found.preprocess == "-1..1"
    assert found.labels == str(tmp_path / "l.txt")
    assert (found.version, found.output, found.targets) == (1, tmp_path / "dist", ())
    assert (found.gates, found.golden) == (GateLimits(), Golden(16, 0))


def test_korean_text_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "package.yaml"
    path.write_bytes("\ufefflabels: [고양이, 개]\r\n".encode())
    assert config.load(path).labels == ("고양이", "개")


def test_flags_override_single_values_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    flags = {
        "model": {"source": None, "allow_unsafe_code": True},
        "evaluation": {"source": Path("other.npz"), "limit": None},
        "calibration": {"limit": 50},
        "gates": {"max_drop": 0.5},
        "version": "7",
        "name": None,
        "force": True,
    }
    before = load(folder, FULL)
    found = config.merge(before, flags)
    assert found.evaluation == DataSource(str(tmp_path / "other.npz"))
    assert found.calibration == DataSource("my.data:calibration", 50)
    assert found.gates == GateLimits(0.5, None, 1e-4, 500_000)
    assert (found.version, found.name, found.force) == (7, "pets", True)
    assert found.model.source == before.model.source
    assert found.model.allow_unsafe_code


def test_flags_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config.from_flags({"model": {"source": "m.h5"}, "labels": "l.txt"})
    assert found.model.source == str(tmp_path / "m.h5")
    assert (found.labels, found.output) == (str(tmp_path / "l.txt"), tmp_path / "dist")


@pytest.mark.parametrize("text", [FULL, "model: m.keras\n"])
def test_the_resolved_configuration_reads_back_equal(tmp_path, text):
    found = load(tmp_path, text)
    written = found.to_yaml(tmp_path)
    assert str(tmp_path) not in written
    assert load(tmp_path, written) == found


@pytest.mark.parametrize("text", [FULL, "model: m.keras\n"])
def test_the_template_reproduces_the_configuration(tmp_path, text):
    found = load(tmp_path, text)
    written = config.template(found, {"model": "keras3,\n12 parameters"}, tmp_path)
    assert "# keras3,\n# 12 parameters\nmodel:" in written
    assert load(tmp_path, written) == found


def test_every_example_of_the_template_can_be_read(tmp_path):
    written = config.template(Config(output=tmp_path / "dist"), {}, tmp_path)
    examples = [line[2:] for line in written.splitlines() if line.startswith("# ")]
    keys = [line for line in examples if line.partition(":")[0] in Config.__dataclass_fields__]
    text = "\n".join(line for line in keys if " " not in line.partition(":")[0])
    found = load(tmp_path, text)
    assert found.labels == str(tmp_path / "labels.txt")
    assert found.calibration == DataSource(str(tmp_path / "calibration.npz"), 200)
    assert found.preprocess == "0..1"


def test_flags_are_not_written(tmp_path):
    text = Config(model=Model("m:f", allow_unsafe_code=True), force=True).to_yaml(tmp_path)
    assert "m:f" in text
    assert "force" not in text
    assert "unsafe" not in text


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("modle: m.keras", "unknown key 'modle'", "Did you mean 'model'"),
        ("gates: {max_dorp: 1}", "unknown key 'gates.max_dorp'", "Did you mean 'max_drop'"),
        ("preprocess: {widht: 3}", "unknown key 'preprocess.widht'", "Did you mean 'width'"),
        ("zzz: 1", "unknown key 'zzz'", "Known keys: model"),
        ("1: 1", "unknown key '1'", "Known keys"),
        ("version: 0", "version: expected a positive whole number or next, received 0", ""),
        ("version: 1.5", r"received 1.5 \(float\)", ""),
        ("threshold: 2", "threshold: expected a number from 0 to 1, received 2", ""),
        ("threshold: abc", r"received 'abc' \(str\)", ""),
        ("threshold: true", "received True", ""),
        ("threshold: .nan", "received nan", ""),
        ("task: clasification", "task: expected one of", "Did you mean 'classification'"),
        ("labels: [yes, no]", r"expected texts .quote labels.*received True", ""),
        ("labels: 3", "expected a file, or a list of labels, received 3", ""),
        ("name: ../up", "name: expected letters", ""),
        ("name: 5", "name: expected text", ""),
        ("calibration: {limit: 3}", "calibration.source: expected a path", ""),
        ("calibration: {source: c.npz, limit: 0}", "calibration.limit: expected a whole", ""),
        ("calibration: [a]", "calibration: expected a mapping with source, limit", ""),
        ("model: {source: m, input_shape: [0, 3]}", "model.input_shape: expected sizes", ""),
        ("gates: 0.1", "gates: expected a mapping with max_drop", ""),
        ("force: true", "force is decided on the command line", "--force"),
        ("model: {allow_unsafe_code: true}", "command line", "--allow-unsafe-code"),
        ("name: a\nname: b", "line 2, column 1: the key 'name' occurs twice", ""),
        ("name: [a", "not valid YAML: line 1", ""),
        ("? [a, b]\n: 1", "not valid YAML: line 1", ""),
        ("- a", "expected a mapping with model", ""),
        ("", "the file is empty", "packager init"),
        ("# only a comment\n", "the file is empty", "packager init"),
        ("a: !!python/object:os.system x", "not valid YAML", ""),
    ],
)
def test_explains_mistakes(tmp_path, text, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "package.yaml") in str(caught.value)
    assert hint in caught.value.hint


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(tmp_path / "b.yaml")


def test_mistakes_in_flags_name_the_command_line():
    with pytest.raises(ConfigError, match=r"command line: gates\.max_drop: expected"):
        config.from_flags({"gates": {"max_drop": "much"}})


def test_the_digits_example_is_valid():
    folder = Path(__file__).resolve().parents[1] / "examples" / "digits"
    found = config.load(folder / "package.yaml")
    assert found.output == folder.parents[1] / "dist"
    for path in (found.model.source, found.labels):
        assert Path(path).is_file()
    assert Path(found.calibration.source).is_file()
