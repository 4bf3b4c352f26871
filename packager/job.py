"""One build under way: what the artifact kinds share while they are made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packager.bundle import Artifact, Manifest, Refusal
from packager.cache import Cache
from packager.children import Child
from packager.config import Config
from packager.console import Reporter
from packager.errors import PackagerError, UnsupportedError
from packager.quantize.ladder import Climb
from packager.samples import Samples
from packager.targets import Selection, Target


@dataclass(frozen=True)
class Failure:
    """An artifact that could not be made or verified."""

    id: str
    error: PackagerError


@dataclass
class Job:
    """Inputs, folders and child processes of a build, and what it has made so far.

    Attributes:
        config: The configuration.
        reporter: Where stages and warnings are shown.
        selection: The artifacts to make.
        manifest: What is known of the bundle before the artifacts are.
        folder: The bundle's folder, not yet published.
        work: A scratch folder.
        source: The TensorFlow child, with the model open.
        litert: The LiteRT child.
        cache: Results of earlier builds.
        data: The samples; None until they are prepared.
        artifacts: What was made.
        refused: What has no exact form in its format.
        failures: What should have been made and was not.
        operators: Of each TFLite artifact the operators with their counts, by artifact id.
        float_files: Of each TFLite artifact the float file that it was made from.
        layer_names: Names of the Keras model's layers, for TFLite artifacts.
        edgetpu: What is predicted for the Edge TPU, and what its compiler said.
        integer_base: The float file that integer artifacts are made from.
        climbs: What `--auto` tried, by artifact id.
    """

    config: Config
    reporter: Reporter
    selection: Selection
    manifest: Manifest
    folder: Path
    work: Path
    source: Child
    litert: Child
    cache: Cache
    data: Samples | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    float_files: dict[str, Path] = field(default_factory=dict)
    layer_names: tuple[str, ...] = ()
    edgetpu: dict[str, Any] = field(default_factory=dict)
    integer_base: Path | None = None
    climbs: dict[str, Climb] = field(default_factory=dict)

    @contextlib.contextmanager
    def making(self, targets: Sequence[Target], stage: str, *files: Path) -> Iterator[list[str]]:
        """As `losing`, with a stage of this name on the console."""
        with self.losing(targets, *files), self.reporter.stage(stage) as detail:
            yield detail

    @contextlib.contextmanager
    def losing(self, targets: Sequence[Target], *files: Path) -> Iterator[None]:
        """Makes an error the refusal or failure of these targets, and goes on.

        Args:
            targets: What is lost when this fails.
            *files: Files and folders that must not stay in the bundle then.
        """
        try:
            yield
        except PackagerError as error:
            for path in files:
                remove(path)
            self.lose(targets, error)

    def lost(self, target: Target) -> bool:
        """Whether a target has been refused or has failed."""
        return target.id in {r.id for r in self.refused} | {f.id for f in self.failures}

    def lose(self, targets: Sequence[Target], error: PackagerError) -> None:
        """Records that targets were refused, or have failed, and says so."""
        refused = isinstance(error, UnsupportedError)
        for target in targets:
            if refused:
                self.refused.append(Refusal(target.id, error.message, error.hint))
            if not refused or self.selection.explicit:
                self.failures.append(Failure(target.id, error))
        if targets:
            names = ", ".join(target.id for target in targets)
            self.reporter.warn(f"{names} {'refused' if refused else 'failed'}: {error.message}")


def remove(path: Path) -> None:
    """Removes a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
