"""Commands about precision: `explain`, and those that go on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from packager.console import reporter_of
from packager.flags import options, output_options


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@options(
    click.option("--calibration", metavar="DATA", help="Inputs that set the int8 ranges."),
    click.option("--evaluation", metavar="DATA", help="Labelled inputs that measure accuracy."),
    click.option("--samples", type=click.IntRange(1), help="Evaluate at most so many (500)."),
    click.option(
        "--overlay",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write node data for Model Explorer.",
    ),
    click.option("--edgetpu", is_flag=True, help="Say what an Edge TPU would run of BUNDLE."),
)
@output_options
def explain(bundle: Path, **flags: Any) -> int:
    """Say which layers of BUNDLE lose accuracy under int8, and what to leave in float.

    With --edgetpu, BUNDLE may be a .tflite file.
    """
    if flags["edgetpu"]:
        return _explain_edgetpu(bundle, as_json=flags["as_json"])
    from packager import bundle as bundles
    from packager import explain as explanation
    from packager.explain import show
    from packager.explain.data import Given

    folder = bundles.find_bundle(bundle)
    given = Given(flags["calibration"], flags["evaluation"], flags["samples"])
    document = explanation.explain(folder, given, reporter_of(flags))
    if flags["overlay"] is not None:
        bundles.write_json(explanation.overlay(document), flags["overlay"])
    if flags["as_json"]:
        click.echo(json.dumps(bundles.to_json(document), ensure_ascii=False))
    else:
        show.show(document)
    return 0


def _explain_edgetpu(path: Path, *, as_json: bool) -> int:
    from packager.edgetpu import show

    document = show.document(show.find_file(path))
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        show.show(document)
    return 0
