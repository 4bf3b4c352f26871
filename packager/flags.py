"""The command line's flags, and what they mean as `package.yaml` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packager.quantize import settings
from packager.quantize.qat.flags import qat_options, qat_section

if TYPE_CHECKING:
    from packager.config import Config

_GATES = ("max_drop", "min_agreement", "max_abs_diff", "max_bytes", "max_error_growth")

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*chosen: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Joins options of click to one decorator, which keeps their order in the help."""

    def add(function: Command) -> Command:
        for option in reversed(chosen):
            function = option(function)
        return function

    return add


output_options = options(
    click.option("--quiet", is_flag=True, help="Print warnings, errors and the result only."),
    click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output."),
    click.option("-v", "--verbose", is_flag=True, help="Show what TensorFlow and LiteRT print."),
)

# What a model may do beside computing; for one command only, never in a file.
trust_options = (
    click.option("--allow-unsafe-code", is_flag=True, help="Open a model that embeds Python code."),
    click.option(
        "--allow-op",
        multiple=True,
        metavar="NAME",
        help="Open a SavedModel that holds this operation, which can do more than compute.",
    ),
)

precision_options = options(
    click.option(
        "--auto", is_flag=True, help="int8: try algorithms, layers in float, then --train."
    ),
    click.option("--require-integer", is_flag=True, help="int8, --auto, --train: all integer."),
    click.option("--keep-float", multiple=True, metavar="LAYER", help="int8: these stay float."),
    click.option(
        "--edgetpu-io",
        type=click.Choice(["int8", "uint8"]),
        help="--only edgetpu: type of inputs and outputs (int8).",
    ),
    click.option(
        "--from-search", metavar="FILE[#N]", help="int8: as trial N of `packager search`."
    ),
)

source_options = (
    click.option("--no-fold", is_flag=True, help="TF.js: keep normalisations as layers."),
    click.option("--fused-layers", is_flag=True, help="TF.js: faster classes of packager-layers."),
    click.option("--signature", help="Which signature of a SavedModel."),
    click.option("--custom-objects", metavar="MODULE", help="Module with the model's own classes."),
    click.option(
        "--architecture",
        metavar="FILE|FUNCTION",
        help="For a file of weights: model.to_json()'s file, or module:function.",
    ),
)

build_options = options(
    click.option("--config", "config_file", type=click.Path(), help="A package.yaml."),
    click.option("--name", help="Name of the bundle (default: the model file's name)."),
    click.option("--version", help="A positive number, or `next`.", metavar="N|next"),
    click.option("--output", "-o", help="Folder of the bundles (default: dist)."),
    click.option("--labels", help="File with one label per line.", metavar="FILE"),
    click.option("--task", help="classification, binary, multilabel, regression or none."),
    click.option("--threshold", type=float, help="Probability from which a class counts."),
    click.option(
        "--preprocess",
        metavar="PRESET",
        help="How pixels become model input: 0..1, -1..1, 0..255 or keras:FAMILY.",
    ),
    click.option(
        "--calibration",
        metavar="DATA",
        help="Typical inputs for int8: a folder, .npz, .npy, .csv or module:function.",
    ),
    click.option("--calibration-limit", type=int, help="Use at most so many of them."),
    click.option("--evaluation", metavar="DATA", help="Labelled inputs that measure accuracy."),
    precision_options,
    click.option("--evaluation-limit", type=int, help="Use at most so many of them."),
    *qat_options,
    click.option(
        "--only", multiple=True, metavar="ID", help="Make these artifacts: tflite, tfjs/layers."
    ),
    click.option(
        "--runtime",
        multiple=True,
        metavar="PACKAGE[==VERSION]",
        help="Only TFLite files that this interpreter runs: tflite-runtime==2.14, tflite-micro.",
    ),
    click.option(
        "--tfjs-weights",
        multiple=True,
        metavar="DTYPE[:PATTERN]",
        help="Store TF.js weights as float16, uint16 or uint8: all, or those with a name like"
        " 'conv*/kernel'.",
    ),
    *source_options,
    click.option("--with-web", is_flag=True, help="Add the web app with its runtimes (22 MB)."),
    click.option(
        "--input-shape",
        multiple=True,
        metavar="[NAME=]1,60,36",
        help="Fixed shape of an input for device files.",
    ),
    click.option("--max-drop", type=float, help="Gate: largest loss of accuracy, a fraction."),
    click.option("--min-agreement", type=float, help="Gate: smallest agreement with the source."),
    click.option(
        "--max-abs-diff",
        type=float,
        help="Gate: largest difference of float32 outputs, a share of the output's range.",
    ),
    click.option("--max-bytes", type=int, help="Gate: largest size of an artifact."),
    click.option(
        "--max-error-growth",
        type=float,
        help="Gate: largest growth of a regression's mean error, a share of the source's.",
    ),
)


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
        "train": data("train"),
        "qat": qat_section(flags),
        "targets": list(flags["only"]) or None,
        "runtimes": list(flags["runtime"]) or None,
        "tfjs_weights": list(flags["tfjs_weights"]) or None,
        "int8": settings.section(flags),
        "gates": {key: flags[key] for key in _GATES},
        "fold": False if flags["no_fold"] else None,
        "fused_layers": flags["fused_layers"] or None,
        "web": flags["with_web"] or None,
        "verify": False if flags.get("no_verify") else None,
        "force": flags.get("force") or None,
        "cache": False if flags.get("no_cache") else None,
        "jobs": flags.get("jobs"),
    }


def configuration(model: str | None, flags: dict[str, Any]) -> Config:
    """The configuration that a command's flags make, over that of its --config file."""
    from packager import config

    given = mapping(model, flags)
    if flags["config_file"] is not None:
        return config.merge(config.load(Path(flags["config_file"])), given)
    if model is None:
        raise click.UsageError("name a model, or a --config file that does")
    return config.from_flags(given)


def model_section(model: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that say what the model is."""
    return {
        "source": model,
        "architecture": flags["architecture"],
        "signature": flags["signature"],
        "custom_objects": _list(flags["custom_objects"]),
        "allow_unsafe_code": flags.get("allow_unsafe_code") or None,
        "allow_op": list(flags.get("allow_op") or ()) or None,
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
