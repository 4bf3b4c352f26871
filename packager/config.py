"""`package.yaml` and command-line flags become one frozen `Config`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from packager.bundle import GateLimits
from packager.errors import ConfigError
from packager.quantize import settings
from packager.quantize.qat.settings import READERS as QAT_READERS
from packager.quantize.qat.settings import Qat
from packager.quantize.settings import Int8
from packager.values import Preprocess, Shape, UniqueKeyLoader, Values, yaml_problem


@dataclass(frozen=True)
class Model:
    """What to package.

    Attributes:
        source: An absolute path, or `package.module:function`; empty when none is given.
        architecture: For a file that holds weights only: the absolute path of what
            `model.to_json()` wrote, or the `package.module:function` that builds the model.
        signature: Which signature of a SavedModel; None for its default.
        custom_objects: Modules that register the model's custom layers.
        input_shape: Fixed sizes, batch axis included, for device files, by input name; the name
            is empty where only one input is meant.
        allow_unsafe_code: Run code that the model file holds; a flag, never in a file.
        allow_op: Operations of a SavedModel that may do more than compute; a flag, too.
    """

    source: str = ""
    architecture: str = ""
    signature: str | None = None
    custom_objects: tuple[str, ...] = ()
    input_shape: dict[str, Shape] = field(default_factory=dict)
    allow_unsafe_code: bool = False
    allow_op: tuple[str, ...] = ()

    @property
    def runs_code(self) -> bool:
        """Whether the user has named Python code that belongs to the model."""
        functions = [text for text in (self.source, self.architecture) if ":" in text]
        is_named = any(not Path(text).exists() for text in functions)
        return is_named or bool(self.custom_objects) or self.allow_unsafe_code


@dataclass(frozen=True)
class DataSource:
    """A data set: an absolute path or `module:function`, and how many samples at most."""

    source: str
    limit: int | None = None


@dataclass(frozen=True)
class Golden:
    """How many golden samples a bundle holds, and the seed that chooses them."""

    count: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Config:
    """Everything that decides a build.

    Attributes:
        model: What to package.
        name: The bundle's name; None: the model file's name.
        version: A positive number, or `next` for the next free one.
        output: The folder of bundles.
        task: None: recognised from the model.
        threshold: Score from which a `binary` or `multilabel` class counts; 0 to 1.
        labels: The absolute path of a file, the labels themselves, or None.
        preprocess: A preset's name, a declaration, or one of both by input name.
        calibration: Sets the ranges of integer artifacts; None: these are not made.
        evaluation: Measures accuracy; None: it is not measured.
        train: For quantization-aware training; None: there is none.
        qat: How that training runs.
        targets: Artifact ids or kinds; empty: all that can be made.
        runtimes: Interpreters that must run every TFLite artifact: `tflite-runtime==2.14`.
        tfjs_weights: Which weights of TF.js models to store in fewer bits: `float16`, `uint16` or
            `uint8`, each alone or as `uint8:PATTERN`.
        int8: How the int8 artifacts are made.
        gates: Limits that each artifact must keep.
        golden: The samples that a bundle checks itself with.
        fold: Merge normalisations and activations into the layers before them in TF.js models.
        fused_layers: Use the fused classes of packager-layers.js in TF.js layers models.
        web: Put the web app with its runtimes into the bundle; implies `fused_layers`.
        verify: Run the artifacts and compare them with the model; a flag, never in a file.
        force: Replace a bundle of the same version; a flag, never in a file.
        cache: Take results of earlier builds; a flag, never in a file.
        jobs: How many processes work side by side; a flag, never in a file.
    """

    model: Model = field(default_factory=Model)
    name: str | None = None
    version: int | Literal["next"] = 1
    output: Path = Path("dist")
    task: str | None = None
    threshold: float | None = None
    labels: str | tuple[str, ...] | None = None
    preprocess: Preprocess | None = None
    calibration: DataSource | None = None
    evaluation: DataSource | None = None
    train: DataSource | None = None
    qat: Qat = field(default_factory=Qat)
    targets: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    tfjs_weights: tuple[str, ...] = ()
    int8: Int8 = field(default_factory=Int8)
    gates: GateLimits = field(default_factory=GateLimits)
    golden: Golden = field(default_factory=Golden)
    fold: bool = True
    fused_layers: bool = False
    web: bool = False
    verify: bool = True
    force: bool = False
    cache: bool = True
    jobs: int = os.cpu_count() or 1

    def to_yaml(self, relative_to: Path | None = None) -> str:
        """Returns the resolved configuration as YAML; `load` reads it back.

        Args:
            relative_to: The folder of the file, which paths are written relative to; default:
                the current one.
        """
        mapping = _to_mapping(self, relative_to or Path.cwd())
        return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True)


def load(path: Path) -> Config:
    """Reads a `package.yaml`; its relative paths are relative to its folder.

    Raises:
        ConfigError: The file cannot be read, is no mapping, or holds an unknown key or a value
            of the wrong type.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.load(text, UniqueKeyLoader)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", hint="`packager init MODEL` writes one."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {yaml_problem(error)}") from error
    if content is None:
        raise ConfigError(f"{path}: the file is empty", hint="`packager init MODEL` writes one.")
    folder = path.absolute().parent
    _refuse_flags(content, str(path))
    start = Config(output=folder / "dist")
    return _resolved(start, content, Values(str(path), folder))


def _refuse_flags(content: object, origin: str) -> None:
    sections = [content, content.get("model")] if isinstance(content, dict) else []
    for section in sections:
        for key in _FLAGS_ONLY:
            if isinstance(section, dict) and key in section:
                raise ConfigError(
                    f"{origin}: {key} is decided on the command line only",
                    hint=f"Remove it, and give --{key.replace('_', '-')} where you mean it.",
                )


def from_flags(flags: Mapping[str, Any]) -> Config:
    """Returns the configuration that command-line flags make without a file; see `merge`."""
    return merge(Config(output=Path.cwd() / "dist"), flags)


def merge(config: Config, flags: Mapping[str, Any]) -> Config:
    """Returns `config` with what `flags` give in its place.

    Args:
        config: From a file.
        flags: Nested as in the file, `{"gates": {"max_drop": 0.02}}`; None is a flag that was
            not given. Relative paths are relative to the current folder.

    Raises:
        ConfigError: As `load` does.
    """
    return _resolved(config, _without_none(flags), Values("command line", Path.cwd()))


def _without_none(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in flags.items()
    }
    return {key: value for key, value in nested.items() if value is not None and value != {}}


Read = Callable[[Values, object, str], Any]

# A section's fields and what checks them; a field that is a dataclass is a section itself.
_READERS: dict[type, dict[str, Read | type]] = {
    Model: {
        "source": Values.location,
        "architecture": Values.location,
        "signature": Values.text,
        "custom_objects": Values.texts,
        "input_shape": Values.input_shape,
        "allow_unsafe_code": Values.switch,
        "allow_op": Values.texts,
    },
    DataSource: {"source": Values.location, "limit": Values.whole},
    GateLimits: {
        "max_drop": Values.fraction_limit,
        "min_agreement": Values.fraction_limit,
        "max_abs_diff": Values.limit,
        "max_bytes": Values.whole_limit,
        "max_error_growth": Values.limit,
    },
    Int8: settings.READERS,
    Qat: QAT_READERS,
    Golden: {"count": Values.whole, "seed": Values.seed},
    Config: {
        "model": Model,
        "name": Values.bundle_name,
        "version": Values.version,
        "output": Values.path,
        "task": Values.task,
        "threshold": Values.fraction,
        "labels": Values.labels,
        "preprocess": Values.preprocess,
        "calibration": DataSource,
        "evaluation": DataSource,
        "train": DataSource,
        "qat": Qat,
        "targets": Values.texts,
        "runtimes": Values.texts,
        "tfjs_weights": Values.weight_rules,
        "int8": Int8,
        "gates": GateLimits,
        "golden": Golden,
        "fold": Values.switch,
        "fused_layers": Values.switch,
        "web": Values.switch,
        "verify": Values.switch,
        "force": Values.switch,
        "cache": Values.switch,
        "jobs": Values.whole,
    },
}
_FLAGS_ONLY = ("force", "cache", "jobs", "allow_unsafe_code", "allow_op", "verify")
# `model: digits.keras` is short for `model: {source: digits.keras}`.
_SHORT_FORMS = {Model: "source", DataSource: "source"}


def _resolved(start: Config, content: object, values: Values) -> Config:
    found: Config = _section(start, content, "", values)
    return found


def _section(start: Any, content: object, key: str, values: Values) -> Any:
    """Returns the dataclass `start` with the checked values of `content` in its place."""
    readers = _READERS[type(start)]
    short = _SHORT_FORMS.get(type(start))
    if short is not None and isinstance(content, (str, Path)):
        content = {short: content}
    if not isinstance(content, dict):
        values.fail(key, f"a mapping with {', '.join(readers)}", content)
    changes = {}
    for name, value in content.items():
        full = f"{key}.{name}" if key else str(name)
        if name not in readers:
            values.unknown(full, str(name), tuple(readers))
        # A key without a value keeps its default.
        if value is not None:
            changes[name] = _field(start, name, value, full, values)
    section = dataclasses.replace(start, **changes)
    if isinstance(section, DataSource) and not section.source:
        values.fail(f"{key}.source", "a path or module:function", None)
    return section


def _field(start: Any, name: str, value: object, key: str, values: Values) -> Any:
    reader = _READERS[type(start)][name]
    if not isinstance(reader, type):
        return reader(values, value, key)
    before = getattr(start, name)
    if before is None:
        before = DataSource("")
    return _section(before, value, key, values)


def _to_mapping(config: Config, folder: Path) -> dict[str, Any]:
    """Returns `config` as it stands in a file in `folder`."""
    found = _plain(config, folder)
    if config.train is None:
        del found["qat"]
    shapes = found["model"]["input_shape"]
    if set(shapes) == {""}:
        found["model"]["input_shape"] = shapes[""]
    # An absent limit means the default; no limit is `false`.
    found["gates"] = {
        key: False if limit is None else limit for key, limit in found["gates"].items()
    }
    cleaned: dict[str, Any] = _without_empty(found)
    return cleaned


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    cleaned = {key: _without_empty(item) for key, item in value.items() if key not in _FLAGS_ONLY}
    return {key: item for key, item in cleaned.items() if item not in (None, "", [], {})}


def _plain(value: Any, folder: Path) -> Any:
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_absolute()):
        path = Path(value)
        return Path(os.path.relpath(path, folder)).as_posix()
    if dataclasses.is_dataclass(value):
        names = [item.name for item in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), folder) for name in names}
    if isinstance(value, (tuple, list)):
        return [_plain(item, folder) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, folder) for key, item in value.items()}
    return value


# What `packager init` writes above each key, and an example for keys without a value.
_COMMENTS: dict[str, tuple[str, str]] = {
    "model": ("The trained model: a file, a SavedModel folder, or module:function.", "model.keras"),
    "name": ("Name of the bundle: dist/NAME/VERSION. Default: the model file's name.", "my-model"),
    "version": ("A positive number, or next for the next free one.", "1"),
    "output": ("Folder of the bundles.", "dist"),
    "task": ("classification, binary, multilabel, regression or none.", "classification"),
    "threshold": ("Score from which a class counts (binary, multilabel).", "0.5"),
    "labels": ("Class labels: a file with one per line, or a list.", "labels.txt"),
    "preprocess": (
        "How pixels become the model's input: 0..1, -1..1, 0..255, keras:FAMILY, or a mapping\n"
        "with preset, width, height, channels, resize, fit, pad_value, scale, offset.",
        "0..1",
    ),
    "calibration": (
        "100 to 500 real samples that set the ranges of the integer models: a folder of images,\n"
        ".npz, .npy, .csv or module:function. Without it there are no int8 models.",
        "{source: calibration.npz, limit: 200}",
    ),
    "evaluation": (
        "Other labelled samples that measure accuracy.",
        "{source: evaluation.npz, limit: 1000}",
    ),
    "train": (
        "Samples, with or without labels, for quantization-aware training: docs/qat.md.",
        "{source: train.npz}",
    ),
    "qat": ("How that training runs.", "{epochs: 3, batch_size: 32, learning_rate: 1e-4}"),
    "targets": ("Artifact ids or kinds. Default: all that can be made.", "[tflite, tfjs/layers]"),
    "runtimes": ("Interpreters that must run every TFLite file.", "[tflite-runtime==2.14]"),
    "tfjs_weights": (
        "Smaller TF.js downloads: float16, uint16 or uint8, alone for all weights with two axes\n"
        "or more, or with a pattern of names.",
        "[float16, 'uint8:conv*/kernel']",
    ),
    "int8": (
        "How int8 files are made: auto: true tries until the gates hold; algorithm, dense, and\n"
        "layers in higher precision.",
        "{auto: true}",
    ),
    "gates": ("Limits that each artifact must keep; false: no limit.", "{max_drop: 0.01}"),
    "fold": ("TF.js: merge normalisations and activations into the layers before them.", "true"),
    "fused_layers": ("TF.js: faster layers, for which pages load packager-layers.js.", "true"),
    "web": ("The web app with its runtimes in the bundle; implies fused_layers.", "true"),
    "golden": ("Samples that the bundle checks itself with on any machine.", "{count: 16}"),
}


def template(config: Config, notes: Mapping[str, str], relative_to: Path | None = None) -> str:
    """Returns a commented `package.yaml` that reproduces `config`.

    Args:
        config: Its values are written; keys without one are commented out, with an example.
        notes: More comments by key: what was recognised in the model.
        relative_to: The folder of the file; default: the current one.
    """
    mapping = _to_mapping(config, relative_to or Path.cwd())
    blocks = []
    for key, (comment, example) in _COMMENTS.items():
        lines = (comment + (f"\n{notes[key]}" if key in notes else "")).split("\n")
        value = f"# {key}: {example}\n"
        if key in mapping:
            value = yaml.safe_dump({key: mapping[key]}, sort_keys=False, allow_unicode=True)
        blocks.append("".join(f"# {line}\n" for line in lines) + value)
    return "\n".join(blocks)
