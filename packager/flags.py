"""What the command line's flags mean as `package.yaml` does."""

from __future__ import annotations

from typing import Any

import click

_GATES = ("max_drop", "min_agreement", "max_abs_diff", "max_bytes")


def mapping(model: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Arranges the flags as `package.yaml` does; None stands for a flag that was not given."""

    def data(name: str) -> dict[str, Any]:
        return {"source": flags[name], "limit": flags[f"{name}_limit"]}

    version = flags["version"]
    return {
        "model": {
            **model_section(model, flags),
            "input_shape": _input_shapes(flags["input_shape"]),
        },
        "name": flags["name"],
        "version": int(version) if version and version.isdecimal() else version,
        "output": flags["output"],
        "task": flags["task"],
        "threshold": flags["threshold"],
        "labels": flags["labels"],
        "preprocess": flags["preprocess"],
        "calibration": data("calibration"),
        "evaluation": data("evaluation"),
        "targets": list(flags["only"]) or None,
        "tfjs_weights": list(flags["tfjs_weights"]) or None,
        "gates": {key: flags[key] for key in _GATES},
        "fold": False if flags["no_fold"] else None,
        "fused_layers": flags["fused_layers"] or None,
        "web": flags["with_web"] or None,
        "verify": False if flags.get("no_verify") else None,
        "force": flags.get("force") or None,
    }


def model_section(model: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that say what the model is."""
    return {
        "source": model,
        "architecture": flags["architecture"],
        "signature": flags["signature"],
        "custom_objects": _list(flags["custom_objects"]),
        "allow_unsafe_code": flags.get("allow_unsafe_code") or None,
    }


def _list(value: str | None) -> list[str] | None:
    return None if value is None else value.split(",")


def _input_shapes(given: tuple[str, ...]) -> dict[str, list[int]] | list[int] | None:
    """Reads `1,60,36` (the only input) or `name=1,60,36`, repeated."""
    shapes: dict[str, list[int]] = {}
    for text in given:
        name, _, sizes = text.rpartition("=")
        try:
            shapes[name] = [int(size) for size in sizes.split(",")]
        except ValueError:
            raise click.UsageError(
                f"--input-shape: expected [NAME=]1,60,36, received {text!r}"
            ) from None
    return shapes.get("", shapes) or None if set(shapes) <= {""} else shapes
