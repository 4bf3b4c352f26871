"""`packager init`: a commented package.yaml for a model."""

from __future__ import annotations

from pathlib import Path

from packager import config as configuration
from packager import inspection
from packager.config import Config
from packager.console import Reporter
from packager.errors import ConfigError


def write(config: Config, target: Path, *, force: bool = False) -> Path:
    """Writes the file, with what was recognised in the model as comments.

    Raises:
        ConfigError: The file exists and `force` is not given, or cannot be written.
    """
    if target.exists() and not force:
        raise ConfigError(f"{target} exists already", hint="--force replaces it")
    found = inspection.inspect(config.model, reporter=Reporter(quiet=True))
    ends = [f"{e['name']} {e['dtype']} {e['shape']}" for e in (*found.inputs, *found.outputs)]
    refused = [v for v in found.verdicts if v.verdict == "no"]
    notes = {
        "model": f"{found.file.format}, saved by {found.file.saved_by}: {', '.join(ends)}",
        "targets": "\n".join(f"{v.target} cannot be made: {v.reason}" for v in refused),
    }
    text = configuration.template(
        config, {k: v for k, v in notes.items() if v}, target.absolute().parent
    )
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    return target
