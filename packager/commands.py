"""Commands about precision: `explain`, and those that go on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from packager.console import reporter_of
from packager.flags import options, output_options

_data_options = options(
    click.option("--calibration", metavar="DATA", help="Inputs that set the int8 ranges."),
    click.option("--evaluation", metavar="DATA", help="Labelled inputs that measure accuracy."),
    click.option("--samples", type=click.IntRange(1), help="Evaluate at most so many."),
)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@options(
    _data_options,
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


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@_data_options
@click.option("--max-drop", type=click.FloatRange(0), default=0.01, help="Largest loss (0.01).")
@click.option("--max-bytes", type=click.IntRange(1), help="Largest file.")
@click.option("--max-latency-ms", type=click.FloatRange(0), help="Largest median time here.")
@click.option("--trials", type=click.IntRange(1), default=60, help="Configurations to try (60).")
@click.option("--seconds", type=click.FloatRange(0), default=600.0, help="Time limit (600).")
@click.option(
    "--storage",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep what was tried; a later search goes on from it.",
)
@click.option("--to", "target", type=click.Path(path_type=Path), metavar="FILE", help="Result.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Plot, as SVG.")
@output_options
def search(bundle: Path, **flags: Any) -> int:
    """Search mixed precision for BUNDLE: the smallest int8 file within the limits.

    Example: packager search dist/digits --max-drop 0.005 --to found.json
    """
    from packager import bundle as bundles
    from packager.errors import GateFailed
    from packager.explain import search as searching
    from packager.explain.data import Given
    from packager.quantize.search import Limits, write

    given = Given(flags["calibration"], flags["evaluation"], flags["samples"])
    names = ("max_drop", "max_bytes", "max_latency_ms", "trials", "seconds")
    limits = Limits(**{name: flags[name] for name in names})
    folder = bundles.find_bundle(bundle)
    document = searching.run(folder, given, limits, flags["storage"], reporter_of(flags))
    if flags["target"] is not None:
        write(document, flags["target"])
    if flags["plot"] is not None:
        flags["plot"].write_text(searching.draw(document), encoding="utf-8")
    if flags["as_json"]:
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        searching.show(document, flags["target"])
    return 0 if document["best"] is not None else GateFailed.exit_code
