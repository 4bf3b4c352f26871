"""Commands that run a bundle: here, on a server, in a browser, on a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from packager.console import reporter_of
from packager.flags import output_options


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def predict(bundle: Path, arguments: tuple[str, ...]) -> int:
    """Answer label and score for images: packager predict BUNDLE IMAGE... [--top K] [--json]."""
    import os
    import subprocess

    from packager import sandbox
    from packager.verify import runners

    if not arguments:
        raise click.UsageError("give at least one image, folder, .npy file, or -")
    command = [*runners.edge().command, "predict", str(bundle), *arguments]
    confined = sandbox.command(command)
    return subprocess.run(confined, check=False, env=sandbox.environment(os.environ)).returncode


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(bundle: Path, flags: tuple[str, ...]) -> int:
    """Serve BUNDLE (NAME or NAME/VERSION) over HTTP and gRPC; FLAGS go to the server.

    Example: packager serve dist/digits --rest_api_port=8501 --enable_batching
    """
    import importlib.util
    import os

    from packager.bundle import find_bundle
    from packager.errors import EnvironmentLacks

    found = find_bundle(bundle)
    if importlib.util.find_spec("granian") is None:
        hint = "pip install 'packager[server]'"
        raise EnvironmentLacks("serving needs packages that are not installed", hint=hint)
    base = found if found.samefile(bundle) else bundle
    server = [sys.executable, "-m", "packager_server"]
    given = [f"--model_base_path={base.absolute()}", f"--model_name={found.parent.resolve().name}"]
    # The server takes this process over: signals reach it, and no parent waits beside it.
    os.execv(sys.executable, [*server, *given, *flags])


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--export",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write what a browser needs, for a static host, and stop.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=8080, show_default=True, help="Port; 0 takes a free one.")
def web(bundle: Path, target: Path | None, host: str, port: int) -> int:
    """Show BUNDLE (NAME or NAME/VERSION) in the browser, or export it for a static host.

    Example: packager web dist/digits
    """
    from packager import web as app
    from packager.bundle import find_bundle

    folder = find_bundle(bundle)
    if target is not None:
        app.export(folder, target)
        click.echo(f"{target.resolve()}\nnext: serve this folder over https, or on localhost")
        return 0
    with app.server(folder, host, port) as server:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{server.server_port}/web/  (Ctrl-C ends it)")
        server.serve_forever()
    return 0


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="[BUNDLE] user@host:dir")
@click.option("--rollback", is_flag=True, help="Make the previous bundle the current one.")
@click.option("--ssh", default="ssh", help="The ssh command, with its options.")
@click.option("--transport", type=click.Choice(["auto", "rsync", "tar"]), default="auto")
@click.option("--python", default="", help="Python on the device (default: dir/venv's, python3).")
@output_options
def deploy(arguments: tuple[str, ...], **flags: Any) -> int:
    """Send BUNDLE to a device, verify it there, and make it dir/current.

    Example: packager deploy dist/digits pi@raspberrypi:digits
    """
    from packager import deploy as deployment
    from packager.bundle import find_bundle

    *bundles, target = arguments
    if len(bundles) != (0 if flags["rollback"] else 1):
        raise click.UsageError("give BUNDLE user@host:dir, or --rollback user@host:dir")
    where = deployment.Target.parse(target)
    if flags["rollback"]:
        click.echo(deployment.rollback(where, ssh=flags["ssh"]))
        return 0
    given = {key: flags[key] for key in ("ssh", "transport", "python")}
    answer = deployment.deploy(find_bundle(Path(bundles[0])), where, reporter_of(flags), **given)
    if flags["as_json"]:
        click.echo(json.dumps(answer, ensure_ascii=False))
    return 0
