"""The commands: thin functions over the library. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from packager import __version__, commands, run_commands
from packager.console import reporter_of as _reporter
from packager.errors import PackagerError
from packager.flags import (
    build_options,
    model_section,
    options,
    output_options,
    source_options,
    trust_options,
)
from packager.flags import configuration as _config
from packager.quantize.qat.command import qat_worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="packager")
def cli() -> None:
    """Turn a trained Keras or TensorFlow model into one verified bundle.

    Example: packager build model.keras --preprocess 0..1 --labels labels.txt
    --calibration calibration.npz --evaluation evaluation.npz
    """


@cli.command()
@click.argument("model", required=False)
@build_options
@click.option("--force", is_flag=True, help="Replace a bundle of the same version.")
@options(*trust_options)
@click.option("--jobs", "-j", type=int, metavar="N", help="Processes side by side (one per core).")
@click.option("--no-cache", is_flag=True, help="Take nothing from earlier builds.")
@click.option("--no-verify", is_flag=True, help="Run no artifact; gates are skipped, not passed.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")
@output_options
def build(model: str | None, **flags: Any) -> int:
    """Package MODEL: a .keras or .h5 file, a SavedModel folder, or module:function."""
    from packager import pipeline
    from packager.report import table

    reporter = _reporter(flags)
    config = _config(model, flags)
    if flags["dry_run"]:
        table.show_plan(config, reporter)
        return 0
    result = pipeline.run(config, reporter)
    if flags["as_json"]:
        click.echo(json.dumps(table.result_json(result), ensure_ascii=False))
    else:
        table.show_result(result, reporter)
    return result.exit_code


@cli.command()
@click.argument("model")
@build_options
@click.option("--to", "target", default="package.yaml", help="File to write.", metavar="FILE")
@click.option("--force", is_flag=True, help="Replace the file.")
def init(model: str, target: str, **flags: Any) -> int:
    """Write a commented package.yaml that reproduces a build of MODEL."""
    from packager import initialise

    output = flags["output"] or Path(target).absolute().parent / "dist"
    config = _config(model, {**flags, "output": str(output)})
    written = initialise.write(config, Path(target), force=flags["force"])
    click.echo(f"{written}\nnext: packager build --config {written}")
    return 0


@cli.command()
@click.argument("model")
@options(*source_options, *trust_options)
@output_options
def inspect(model: str, **flags: Any) -> int:
    """Say what MODEL is and which artifacts can be made of it, without converting it."""
    from packager import config, inspection

    given = config.from_flags({"model": model_section(model, flags)})
    reporter = _reporter({**flags, "quiet": True})
    found = inspection.inspect(given.model, reporter=reporter)
    if flags["as_json"]:
        click.echo(json.dumps(inspection.to_json(found), ensure_ascii=False))
    else:
        inspection.show(found, _reporter(flags))
    return 0


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--allow-model-code", is_flag=True, help="Run Python code that BUNDLE names.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="Public key of who must have signed BUNDLE."
)
@output_options
def verify(bundle: Path, allow_model_code: bool, key: Path | None, **flags: Any) -> int:
    """Check every hash of BUNDLE and run every artifact on the golden samples."""
    from packager.verify import bundle_check

    result = bundle_check.verify_bundle(
        bundle, _reporter(flags), allow_code=allow_model_code, key=key
    )
    if flags["as_json"]:
        click.echo(json.dumps(result.to_json(), ensure_ascii=False))
    else:
        bundle_check.show(result, _reporter(flags))
    return result.exit_code


@cli.command()
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Private key: an Ed25519 PEM file.")
@click.option(
    "--new-key", type=click.Path(path_type=Path), metavar="FILE", help="Make a key first."
)
def sign(bundle: Path | None, key: Path | None, new_key: Path | None) -> int:
    """Sign the manifest of BUNDLE, and with it the hashes of all its files."""
    from packager import signing
    from packager.bundle import find_bundle

    if (key is None) == (new_key is None):
        raise click.UsageError("give --key FILE, or --new-key FILE to make one")
    if new_key is not None:
        click.echo(f"{new_key} is yours alone; {signing.new_key(new_key)} is for everybody")
    if bundle is not None:
        written = signing.sign(find_bundle(bundle), key or new_key or Path())
        click.echo(f"{written}\nnext: packager verify {bundle} --key PUBLIC_KEY")
    elif key is not None:
        raise click.UsageError("which bundle is to be signed?")
    return 0


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--merge",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON from a device, a browser or another machine: docs/report.md.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json"]),
    default="html",
    help="html: print where the page is; md: a summary for a pull request; json: report.json.",
)
def report(bundle: Path, merge: tuple[Path, ...], form: str) -> int:
    """Print where BUNDLE's report is, after merging results from other machines."""
    from packager import report as reports
    from packager.bundle import find_bundle

    folder = find_bundle(bundle)
    for file in merge:
        reports.merge(folder, file)
    document = reports.read(folder)
    if form == "json":
        click.echo(json.dumps(document, ensure_ascii=False))
    elif form == "md":
        click.echo(reports.to_markdown(document))
    else:
        click.echo((folder / reports.HTML_NAME).resolve())
    return 0


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="ID", help="Measure these artifacts.")
@click.option("--threads", multiple=True, type=click.IntRange(1), help="Repeatable; default: 1.")
@click.option("--runs", type=click.IntRange(5), default=100, help="Timed inferences (100).")
@click.option("--warm-up", type=click.IntRange(0), default=10, help="Inferences before them (10).")
@click.option("--seconds", type=float, default=10.0, help="Limit for each row (10).")
@click.option("--python", multiple=True, help="Another Python whose TFLite interpreter to time.")
@click.option("--no-browser", is_flag=True, help="Leave Chromium out.")
@click.option("--no-report", is_flag=True, help="Leave the bundle's report as it is.")
@output_options
def bench(bundle: Path, **flags: Any) -> int:
    """Time every artifact of BUNDLE on every runtime of this machine."""
    from packager import bench as benchmark
    from packager import report as reports
    from packager.bundle import find_bundle

    folder = find_bundle(bundle)
    settings = benchmark.Settings(
        threads=flags["threads"] or (1,),
        runs=flags["runs"],
        warm_up=flags["warm_up"],
        seconds=flags["seconds"],
        pythons=flags["python"],
        browser=not flags["no_browser"],
        only=flags["only"],
    )
    if not flags["no_report"]:
        reports.read(folder)  # a bundle without report is refused before the work, not after it
    document = benchmark.measure(folder, settings, _reporter(flags))
    if not flags["no_report"]:
        reports.add(folder, document)
    if flags["as_json"]:
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        benchmark.show(document)
    return 0 if any(row["status"] == "measured" for row in document["artifacts"]) else 1


@cli.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def diff(a: Path, b: Path, as_json: bool) -> int:
    """Say what differs between two bundles, .tflite files or model.json files.

    Exit code 0: the same model; 1: different; 2 and 4: an error.
    """
    from packager import diff as diffs

    found = diffs.compare(diffs.read(a), diffs.read(b))
    text = json.dumps(diffs.to_json(found), ensure_ascii=False) if as_json else diffs.to_text(found)
    click.echo(text)
    return 0 if found.same else 1


@cli.command()
@output_options
def doctor(**flags: Any) -> int:
    """Say which runtimes and programs are here, and how to get those that are missing."""
    from packager import doctor as examination

    findings = examination.examine()
    if flags["as_json"]:
        click.echo(json.dumps([examination.to_json(f) for f in findings]))
    else:
        examination.show(findings, _reporter(flags))
    return examination.exit_code(findings)


for command in (
    *(run_commands.predict, run_commands.serve, run_commands.web, run_commands.deploy),
    *(commands.explain, commands.search, qat_worker),
):
    cli.add_command(command)


class Interrupted(BaseException):
    """Ctrl-C, or a request to end.

    Not KeyboardInterrupt: where a C extension meets that one, Python kills itself with SIGINT at
    the end, whatever the exit code (`unhandled_keyboard_interrupt` in CPython's pythonrun.c).
    """


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _terminate(number: int, frame: FrameType | None) -> None:
    for each in _ENDING:  # a second one must not interrupt the cleaning up
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted


def main() -> None:
    """Runs a command; errors become one message and their exit code."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    for number in _ENDING:
        signal.signal(number, _terminate)
    try:
        code = cli.main(arguments, prog_name="packager", standalone_mode=False)
    except PackagerError as error:
        if debug:
            raise
        _show_error(error)
        if "--json" in arguments:
            document = {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
            click.echo(json.dumps(document, ensure_ascii=False))
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except Interrupted:
        click.echo("\ninterrupted", err=True)
        code = 130
    except BrokenPipeError:
        code = 1
    except Exception as error:
        if debug:
            raise
        _show_bug(error)
        code = 1
    sys.exit(code or 0)


def _show_error(error: PackagerError) -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + error.message, err=True)
    if error.hint:
        click.echo(click.style("  fix: ", fg="cyan") + error.hint, err=True)


def _show_bug(error: Exception) -> None:
    click.echo(
        click.style("error: ", fg="red", bold=True) + f"unexpected {type(error).__name__}: {error}",
        err=True,
    )
    click.echo("  fix: run it again with --debug and report the traceback", err=True)
