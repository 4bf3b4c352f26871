"""`packager verify`: every hash, and every artifact on the golden samples."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager import bundle, hashes, signing
from packager.bundle import Manifest
from packager.console import Reporter
from packager.errors import GateFailed, PackagerError
from packager.verify import runners


@dataclass(frozen=True)
class BundleCheck:
    """What was found.

    Attributes:
        path: The bundle's folder.
        checked: How many files were compared with their hashes.
        problems: Pairs of path and problem.
        artifacts: The runners' answers: id, status, reason, max_abs_diff, worst_sample.
    """

    path: Path
    checked: int
    problems: tuple[tuple[str, str], ...]
    artifacts: tuple[dict[str, Any], ...]

    @property
    def exit_code(self) -> int:
        """0, 1 for a wrong hash or an artifact that does not run, 3 outside a tolerance."""
        bad = [a for a in self.artifacts if a["status"] in ("error", "missing", "failed")]
        # Without a sample that was run, nothing is known about the tolerances.
        if self.problems or any(not a.get("samples") for a in bad):
            return PackagerError.exit_code
        return GateFailed.exit_code if bad else 0

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "bundle": str(self.path.resolve()),
            "exit_code": self.exit_code,
            "files": {
                "checked": self.checked,
                "problems": [{"path": p, "problem": what} for p, what in self.problems],
            },
            "artifacts": list(self.artifacts),
        }


def verify_bundle(
    path: Path, reporter: Reporter, *, allow_code: bool = False, key: Path | None = None
) -> BundleCheck:
    """Checks a bundle on this machine.

    Args:
        path: The bundle, or the folder of its versions.
        reporter: Where the stages are shown.
        allow_code: Run code that the bundle names; a Keras model that is code is skipped else.
        key: The public key of who must have signed it.

    Raises:
        BundleError: There is no bundle, its manifest is damaged, or not signed by that key.
    """
    folder = bundle.find_bundle(path)
    if key is not None:
        with reporter.stage("check the signature"):
            signing.check(folder, key)
    manifest = bundle.read_manifest(folder)
    with reporter.stage("compare hashes") as detail:
        problems = tuple(hashes.check_files(folder, manifest))
        detail.append(f"{len(manifest.files)} files")
    found: tuple[dict[str, Any], ...] = ()
    if not problems:  # a changed file is not run
        with reporter.stage("run the golden samples"):
            found = _run(folder, manifest, allow_code)
    return BundleCheck(folder, len(manifest.files), problems, found)


def show(result: BundleCheck, reporter: Reporter) -> None:
    """Prints what was found."""
    out = reporter.rich
    for name, problem in result.problems:
        out.print(f"{problem}: {name}", style="red", markup=False)
    if result.problems:
        out.print(
            "The bundle is not what was built; the artifacts were not run. Copy it again, or"
            " build it again with --force.",
            style="red",
        )
    for answer in result.artifacts:
        colour = {"passed": "green", "skipped": "yellow"}.get(answer["status"], "red")
        difference = answer.get("max_abs_diff")
        text = "" if difference is None else f"max diff {difference:.3g}"
        line = f"{answer['id']:<24}[{colour}]{answer['status']:<9}[/{colour}]{text}"
        out.print(line, end="  ")
        out.print(answer.get("reason") or "", markup=False)


def _run(folder: Path, manifest: Manifest, allow_code: bool) -> tuple[dict[str, Any], ...]:
    kinds = list(dict.fromkeys(a.runtime.kind for a in manifest.artifacts))
    with runners.pool(os.cpu_count() or 1) as pool:
        answers = list(pool.map(lambda kind: _run_kind(folder, manifest, kind, allow_code), kinds))
    found = {answer["id"]: answer for group in answers for answer in group}
    return tuple(
        found.get(a.id, {"id": a.id, "status": "missing", "reason": "the runner left it out"})
        for a in manifest.artifacts
    )


def _run_kind(
    folder: Path, manifest: Manifest, kind: str, allow_code: bool
) -> list[dict[str, Any]]:
    ids = [a.id for a in manifest.artifacts if a.runtime.kind == kind]
    try:
        runner = runners.for_kind(kind)
        answers: list[dict[str, Any]] = runner.verify(folder, allow_code=allow_code)["artifacts"]
    except PackagerError as error:
        lacking = error.exit_code == 4
        reason = f"{error.message} {error.hint}".strip()
        status = "skipped" if lacking else "error"
        return [{"id": name, "status": status, "reason": reason} for name in ids]
    return [a for a in answers if a["id"] in ids]
