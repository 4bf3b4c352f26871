"""The bundle format: manifest and card types, reading, writing and hashing.

The format is described in `docs/bundle.md`; every field here is one field there.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from packager.errors import BundleError

SCHEMA = 1
MANIFEST = "manifest.json"
GOLDEN = "golden/samples.json"
SIGNATURE = "manifest.sig"

T = TypeVar("T")


@dataclass(frozen=True)
class ImageSpec:
    """How an image becomes the values of an input tensor (docs/bundle.md, Preprocessing).

    Attributes:
        width: Target width in pixels.
        height: Target height in pixels.
        channels: `gray`, `rgb` or `bgr`.
        resize: `pillow:nearest|bilinear|bicubic|lanczos` or `tf:bilinear|nearest`.
        fit: `stretch`, `crop` or `pad`.
        pad_value: Pixel value (0..255) of the border that `pad` adds.
        scale: One factor, or one per channel: `value = pixel * scale + offset`.
        offset: One summand, or one per channel.
    """

    width: int
    height: int
    channels: str
    resize: str = "pillow:bilinear"
    fit: str = "stretch"
    pad_value: int = 0
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class InputSpec:
    """One input of the model; `shape` has None for the batch axis and other free axes."""

    name: str
    source_name: str
    shape: tuple[int | None, ...]
    dtype: str
    image: ImageSpec | None = None


@dataclass(frozen=True)
class OutputSpec:
    """One output; `activation` is `softmax`, `sigmoid`, `logits` or `none`."""

    name: str
    source_name: str
    shape: tuple[int | None, ...]
    dtype: str
    activation: str = "none"


@dataclass(frozen=True)
class Source:
    """Where the bundle comes from."""

    file: str
    sha256: str
    format: str
    saved_by: str


@dataclass(frozen=True)
class Runtime:
    """What runs an artifact: `min_version` maps packages to the oldest version seen right."""

    kind: str
    min_version: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArtifactTensor:
    """One end of an artifact; `role` is `input` or `output`; floats have no scale."""

    role: str
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()


@dataclass(frozen=True)
class Quantization:
    """How an artifact's numbers are stored and computed.

    Attributes:
        mode: `float32`, `float16`, `dynamic_int8`, `int8`, `int8_float_io`, `int16x8`, ...
        integer_op_share: Share of operators (0..1) that compute on integers.
        float_ops: The operators that compute on floats, by name, each once.
    """

    mode: str
    integer_op_share: float = 0.0
    float_ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateCheck:
    """One comparison of a measured value with its limit."""

    name: str
    status: str
    value: float | None = None
    limit: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Gate:
    """`passed`, `failed` or `skipped`: skipped means that nothing was measured."""

    status: str
    reason: str | None = None
    checks: tuple[GateCheck, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """One file (or folder of files) that a runtime loads.

    Attributes:
        script: For a TF.js model that TF.js' own layers cannot express, the script that registers
            the missing ones; runtimes load it before the model.
        code: For a Keras model that is code, `package.module:function`, which returns it.
        custom_objects: For a Keras model, the modules of its own classes.
    """

    id: str
    path: str
    runtime: Runtime
    io: tuple[ArtifactTensor, ...] = ()
    batch: int | None = None
    quantization: Quantization | None = None
    size_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    gate: Gate = Gate("skipped", "not verified")
    script: str | None = None
    code: str | None = None
    custom_objects: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Refusal:
    """An artifact of the selection that was not made, and why."""

    id: str
    reason: str
    hint: str = ""


@dataclass(frozen=True)
class Golden:
    """Where the golden samples are; `synthetic` means random inputs."""

    path: str
    count: int
    synthetic: bool


@dataclass(frozen=True)
class Calibration:
    """Provenance of the calibration samples."""

    source: str
    count: int
    sha256: str
    algorithm: str


@dataclass(frozen=True)
class GateLimits:
    """Limits of the quality gates; None switches a gate off.

    Attributes:
        max_drop: Largest loss of accuracy against the source, as a fraction.
        min_agreement: Smallest share of samples with the source's answer.
        max_abs_diff: Largest difference of float32 outputs, as a share of the output's range.
        max_bytes: Largest size of an artifact.
        max_error_growth: Largest growth of a regression's mean absolute error, as a share of the
            source's.
    """

    max_drop: float | None = 0.01
    min_agreement: float | None = 0.98
    max_abs_diff: float | None = 1e-5
    max_bytes: int | None = None
    max_error_growth: float | None = 0.1


@dataclass(frozen=True)
class FileEntry:
    """Size and hash of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The authoritative description of a bundle."""

    name: str
    version: int
    created: str
    source: Source
    task: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    labels: tuple[str, ...] = ()
    threshold: float | None = None
    artifacts: tuple[Artifact, ...] = ()
    refused: tuple[Refusal, ...] = ()
    golden: Golden | None = None
    calibration: Calibration | None = None
    tools: dict[str, str] = field(default_factory=dict)
    gates: GateLimits = GateLimits()
    files: dict[str, FileEntry] = field(default_factory=dict)
    checksum: str | None = None
    schema: int = SCHEMA

    def artifact(self, artifact_id: str) -> Artifact:
        """Returns the artifact with this id; BundleError names those that exist."""
        for artifact in self.artifacts:
            if artifact.id == artifact_id:
                return artifact
        known = ", ".join(a.id for a in self.artifacts)
        raise BundleError(
            f"{self.name}/{self.version} has no artifact {artifact_id!r}; it has {known}"
        )

    def ends(self) -> tuple[Any, ...]:
        """Returns what decides how samples are read: inputs, outputs, task and labels."""
        return (self.inputs, self.outputs, self.task, self.labels)

    def card(self) -> dict[str, Any]:
        """Returns what is embedded into single files, so that they explain themselves."""
        keys = (
            "schema", "name", "version", "task", "threshold", "inputs", "outputs", "labels",
            "tools",
        )  # fmt: skip
        everything = to_json(self)
        return {key: everything[key] for key in keys}


def to_json(value: Any) -> Any:
    """Turns dataclasses and tuples into JSON values.

    Raises:
        BundleError: A number is not finite.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        # An absent image or reason is left out; a gate that is switched off is not.
        absent = {f.name for f in dataclasses.fields(value) if f.default is None} - {"threshold"}
        return {k: v for k, v in items.items() if v is not None or k not in absent}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise BundleError("a number that is not finite was about to be written into a manifest")
    return value


def from_json(cls: type[T], value: Any, where: str = "manifest") -> T:
    """Builds a dataclass from JSON values; keys that the class lacks are ignored.

    Raises:
        BundleError: A key is missing or a value has the wrong type; names the place.
    """
    return typing.cast(T, _convert(cls, value, where))


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(hint):
        return _convert_dataclass(hint, value, where)
    if origin is tuple:
        _expect(isinstance(value, list), "a list", value, where)
        return tuple(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where)
        return {k: _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float:
        _expect(type(value) in (int, float), "a number", value, where)
        return float(value)
    _expect(type(value) is hint, hint.__name__, value, where)
    return value


def _convert_dataclass(cls: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), "an object", value, where)
    hints = typing.get_type_hints(cls)
    arguments = {}
    for item in dataclasses.fields(cls):
        if item.name in value:
            arguments[item.name] = _convert(
                hints[item.name], value[item.name], f"{where}.{item.name}"
            )
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise BundleError(f"{where}: the key {item.name!r} is missing")
    return cls(**arguments)


def _expect(condition: bool, expected: str, value: Any, where: str) -> None:
    if not condition:
        raise BundleError(f"{where}: expected {expected}, received {value!r:.80}")


def write_json(value: Any, path: Path) -> None:
    """Writes JSON text (UTF-8, indented) of a value that `to_json` accepts."""
    text = json.dumps(to_json(value), indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads a JSON file of a bundle; BundleError says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(
            f"{path} does not exist",
            hint="a bundle is a folder NAME/VERSION with a manifest.json",
        ) from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from None


def read_manifest(bundle: Path) -> Manifest:
    """Reads `manifest.json` of a bundle folder.

    Raises:
        BundleError: It is missing, damaged, or of a newer schema.
    """
    value = read_json(bundle / MANIFEST)
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise BundleError(
            f"{bundle / MANIFEST} has schema {schema!r}; this packager reads up to {SCHEMA}",
            hint="pip install --upgrade packager",
        )
    return from_json(Manifest, value)


def find_bundle(path: Path) -> Path:
    """Resolves `NAME/VERSION`, or `NAME` to its newest version.

    Raises:
        BundleError: There is no bundle.
    """
    if (path / MANIFEST).is_file():
        return path
    versions = sorted(int(p.name) for p in path.glob("[0-9]*") if p.name.isdecimal() and p.is_dir())
    for version in reversed(versions):
        if (path / str(version) / MANIFEST).is_file():
            return path / str(version)
    raise BundleError(
        f"{path} is not a bundle: no {MANIFEST} in it or in a numbered folder below it",
        hint="name the folder that `packager build` printed, such as dist/digits/1",
    )
