"""The command `packager qat-worker`."""

from __future__ import annotations

from typing import Any

import click

from packager.console import reporter_of
from packager.flags import build_options, configuration, options, output_options, trust_options


@click.command("qat-worker")
@click.argument("model", required=False)
@build_options
@options(*trust_options)
@output_options
def qat_worker(model: str | None, **flags: Any) -> int:
    """Train with the chief, who runs `packager build … --qat-strategy multiworker`.

    Takes the chief's arguments, and its own TF_CONFIG from the environment. Example:
    packager qat-worker model.keras --train train.npz --qat-checkpoints /shared/qat
    """
    from packager.quantize.qat import remote

    steps = remote.run(configuration(model, flags), reporter_of(flags))
    click.echo(f"trained {steps} steps; the chief writes the bundle")
    return 0
