"""The configuration's section `int8`: how int8 files are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.errors import ConfigError
from packager.quantize.plan import ALGORITHMS, DENSE, PRECISIONS, Plan

if TYPE_CHECKING:
    from packager.config import Config
    from packager.values import Values


@dataclass(frozen=True)
class Int8:
    """How int8 files are made.

    Attributes:
        auto: Try ways until the gates hold; training, where there are samples for it, is the last.
        require_integer: `auto` may leave no operator in float.
        algorithm: A key of `plan.ALGORITHMS`.
        dense: A key of `plan.DENSE`.
        layers: Precision by layer: `float` or `int16`.
        edgetpu_io: Type of the inputs and outputs of Edge TPU files: `int8` or `uint8`.
    """

    auto: bool = False
    require_integer: bool = False
    algorithm: str = "min_max"
    dense: str = "per_channel"
    layers: dict[str, str] = field(default_factory=dict)
    edgetpu_io: str = "int8"

    @property
    def plan(self) -> Plan:
        """The plan that these settings mean."""
        return Plan(layers=self.layers, algorithm=self.algorithm, dense=self.dense)


def _layers(values: Values, value: object, key: str) -> dict[str, str]:
    if not isinstance(value, dict):
        values.fail(key, "a mapping of layers to float or int16", value)
    return {
        str(name): values.one_of(given, f"{key}.{name}", PRECISIONS)
        for name, given in value.items()
    }


READERS: dict[str, Callable[[Any, object, str], Any]] = {
    "auto": lambda values, value, key: values.switch(value, key),
    "require_integer": lambda values, value, key: values.switch(value, key),
    "algorithm": lambda values, value, key: values.one_of(value, key, tuple(ALGORITHMS)),
    "dense": lambda values, value, key: values.one_of(value, key, tuple(DENSE)),
    "layers": _layers,
    "edgetpu_io": lambda values, value, key: values.one_of(value, key, ("int8", "uint8")),
}


def section(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags `--auto`, `--require-integer`, `--keep-float` and `--from-search` as a section."""
    found: dict[str, Any] = read_trial(flags["from_search"]) if flags["from_search"] else {}
    names = [name for text in flags["keep_float"] for name in text.split(",") if name]
    layers = {**found.get("layers", {}), **dict.fromkeys(names, "float")}
    return {
        "algorithm": found.get("algorithm"),
        "dense": found.get("dense"),
        "layers": layers or None,
        "auto": flags["auto"] or None,
        "edgetpu_io": flags["edgetpu_io"],
        "require_integer": flags["require_integer"] or None,
    }


def read_trial(text: str) -> dict[str, Any]:
    """Reads a plan from what `packager search --to FILE` wrote: `FILE`, its best, or `FILE#7`.

    Raises:
        ConfigError: The file cannot be read, or has no such trial.
    """
    name, _, number = text.partition("#")
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
        trials = {str(trial["number"]): trial for trial in document["trials"]}
        wanted = number or str(document["best"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--from-search: {name} is no result of a search: {error}",
            hint="packager search BUNDLE --to FILE writes one",
        ) from error
    if wanted not in trials or "plan" not in trials[wanted]:
        raise ConfigError(
            f"--from-search: {name} has no trial {wanted}",
            hint=f"it has {', '.join(trials)}" if trials else "every trial failed; search again",
        )
    plan: dict[str, Any] = trials[wanted]["plan"]
    return plan


def check(config: Config) -> None:
    """Refuses what `--auto` cannot measure or decide.

    Raises:
        ConfigError: It has no samples, or settings contradict each other.
    """
    for name in ("calibration", "evaluation"):
        if config.int8.auto and getattr(config, name) is None:
            raise ConfigError(
                f"--auto needs {name} samples, to measure what it tries",
                hint=f"add --{name} DATA",
            )
    if config.int8.auto and config.train is not None and config.qat.strategy == "multiworker":
        raise ConfigError(
            "--auto trains only where it has to, and the other workers would wait for it",
            hint="build with --auto first, and train without it where that does not keep the gates",
        )
    if config.int8.require_integer and "float" in config.int8.layers.values():
        raise ConfigError(
            "--require-integer, but layers are asked to stay float:"
            f" {', '.join(n for n, p in config.int8.layers.items() if p == 'float')}",
            hint="give one of the two",
        )
