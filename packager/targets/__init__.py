"""The artifact kinds: one line each in `TARGETS`, one module each beside this one.

A module has three functions. `ask(job)` sends the TensorFlow child what only it can do and
returns the pending answer; `make(job, pending)` adds the finished artifacts to the job;
`files(job, target)` names what belongs to an artifact, which goes when it fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from packager.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """An artifact kind.

    Attributes:
        id: Its id in the manifest.
        module: The module that makes it, imported when it is needed.
        mode: Quantization mode; `float32` where nothing is quantized.
        calibrated: It needs calibration samples.
        trained: It needs training samples.
        on_request: Made when it is named by its id, or in place of another.
    """

    id: str
    module: str
    mode: str = "float32"
    calibrated: bool = False
    trained: bool = False
    on_request: bool = False


TARGETS = {
    target.id: target
    for target in (
        Target("saved_model", "packager.targets.saved_model"),
        Target("keras", "packager.targets.keras", on_request=True),
        Target("tflite/float32", "packager.targets.tflite"),
        Target("tflite/float16", "packager.targets.tflite", "float16"),
        Target("tflite/dynamic_int8", "packager.targets.tflite", "dynamic_int8"),
        Target("tflite/int8", "packager.targets.tflite", "int8", calibrated=True),
        Target("tflite/int8_float_io", "packager.targets.tflite", "int8_float_io", calibrated=True),
        Target("tflite/int16x8", "packager.targets.tflite", "int16x8", calibrated=True),
        Target(
            "tflite/edgetpu",
            "packager.targets.tflite",
            "edgetpu",
            calibrated=True,
            on_request=True,
        ),
        Target(
            "tflite/int8_edgetpu",
            "packager.targets.tflite",
            "int8_edgetpu",
            calibrated=True,
            on_request=True,
        ),
        Target("tflite/qat_int8", "packager.targets.qat", "qat_int8", trained=True),
        Target("tfjs/layers", "packager.targets.tfjs"),
        Target("tfjs/graph", "packager.targets.tfjs_graph", on_request=True),
    )
}


# Other names: by what it runs on, and by what the compiler makes of it where it is installed.
_SHORT = {"edgetpu": "tflite/edgetpu", "tflite/int8_edgetpu": "tflite/edgetpu"}


@dataclass(frozen=True)
class Selection:
    """The artifacts of one build.

    Attributes:
        targets: What to make, in the table's order.
        explicit: The user named them, so that a refusal is a failure.
        falls_back: A TF.js graph may take the place of TF.js layers; not when the user named one
            of the two by its id.
    """

    targets: tuple[Target, ...]
    explicit: bool
    falls_back: bool = True

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that make them, each once."""
        return tuple(dict.fromkeys(target.module for target in self.targets))

    def of(self, module: str) -> tuple[Target, ...]:
        """Returns the selected targets that a module makes."""
        return tuple(target for target in self.targets if target.module == module)


def as_python(selection: Selection) -> Selection:
    """Returns what can be made of a model that no graph holds: the Keras model."""
    return Selection((TARGETS["keras"],), selection.explicit)


def select(only: Sequence[str], *, calibrated: bool, trained: bool = False) -> Selection:
    """Expands `--only` (ids, or kinds such as `tflite`) to targets.

    Args:
        only: What the user named; nothing means everything.
        calibrated: There are calibration samples.
        trained: There are training samples.

    Raises:
        ConfigError: A name is unknown, or needs samples that are not given.
    """

    def has_samples(target: Target) -> bool:
        return (calibrated or not target.calibrated) and (trained or not target.trained)

    if not only:
        chosen = [t for t in TARGETS.values() if not t.on_request and has_samples(t)]
        return Selection(tuple(chosen), explicit=False)
    wanted: set[str] = set()
    for name in (_SHORT.get(name, name) for name in only):
        matches = [t for t in TARGETS.values() if name == t.id or _is_of_kind(t, name)]
        if not matches:
            _refuse(name)
        if name in TARGETS and not has_samples(TARGETS[name]):
            _refuse_without_samples(TARGETS[name])
        wanted |= {t.id for t in matches if has_samples(t)}
    return Selection(
        tuple(t for t in TARGETS.values() if t.id in wanted),
        explicit=True,
        falls_back=not {"tfjs/layers", "tfjs/graph"} & set(only),
    )


def _refuse_without_samples(target: Target) -> None:
    if target.trained:
        raise ConfigError(
            f"{target.id} needs training samples",
            hint="add --train DIR_OR_NPZ; labels in it are used, but need not be there",
        )
    raise ConfigError(
        f"{target.id} needs calibration samples",
        hint="add --calibration DIR_OR_NPZ with 100 to 500 typical inputs",
    )


def _is_of_kind(target: Target, kind: str) -> bool:
    return target.id.partition("/")[0] == kind and not target.on_request


def _refuse(name: str) -> None:
    known = [*TARGETS, "tflite", "tfjs"]
    close = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"--only: unknown artifact {name!r}" + (f", did you mean {close[0]!r}?" if close else ""),
        hint=f"known: {', '.join(known)}",
    )
