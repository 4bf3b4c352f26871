"""Runs Coral's `edgetpu_compiler` where it is installed, and compares it with the prediction."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from packager.edgetpu import log
from packager.edgetpu.checker import CPU, TPU, Prediction
from packager.edgetpu.log import Log
from packager.errors import ConversionError, EnvironmentLacks, UnsupportedError

PROGRAM = "edgetpu_compiler"
TIMEOUT_S = 300.0
HINT = (
    "it is an x86-64 Debian package: https://coral.ai/docs/edgetpu/compiler/; without it, compile"
    " the file tflite/*.edgetpu.tflite elsewhere"
)


@dataclass(frozen=True)
class Compiled:
    """What the compiler made: the file, and what it said."""

    path: Path
    log: Log


def find() -> str | None:
    """The compiler's path, or None where it is not installed."""
    return shutil.which(PROGRAM)


def compile_file(model: Path, folder: Path, *, timeout_s: float = TIMEOUT_S) -> Compiled:
    """Compiles an int8 file; an internal error of the compiler is tried once more.

    Args:
        model: The file.
        folder: An existing folder for `<name>_edgetpu.tflite` and its log.
        timeout_s: Seconds for each run.

    Raises:
        EnvironmentLacks: There is no compiler.
        UnsupportedError: It refuses the model, and says why.
        ConversionError: It crashed, twice, or took too long.
    """
    program = find()
    if program is None:
        raise EnvironmentLacks(f"{PROGRAM} is not installed", hint=HINT)
    code, found = _run(program, model, folder, timeout_s)
    if not found.compiled and (found.worth_a_retry or code < 0):
        code, found = _run(program, model, folder, timeout_s)
    target = folder / f"{model.stem}_edgetpu.tflite"
    if found.compiled and target.is_file():
        return Compiled(target, found)
    if code < 0 or found.worth_a_retry:
        how = f"died with signal {-code}" if code < 0 else found.error
        raise ConversionError(f"{PROGRAM} {how}, twice, on {model.name}", hint=HINT)
    raise UnsupportedError(
        f"{PROGRAM} does not compile {model.name}: {found.error}",
        hint="packager explain --edgetpu FILE says which operator and what to change",
    )


def differences(prediction: Prediction, found: Log) -> list[str]:
    """Says where the compiler decided otherwise than predicted, by kind of operator.

    Unknown operators may go either way.
    """
    ours = {
        place: Counter(o.op for o in prediction.operators if o.where == place)
        for place in (TPU, CPU)
    }
    total = Counter(o.op for o in prediction.operators)
    theirs: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for line in found.mapping:
        if line.mapped:
            theirs[line.op] += line.count
        else:
            reasons[line.op] = line.status
    said = []
    for op in total if found.mapping else ():
        least, most = ours[TPU][op], total[op] - ours[CPU][op]
        if not least <= theirs[op] <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            why = f" ({reasons[op]})" if op in reasons else ""
            said.append(
                f"{op}: predicted {wanted} of {total[op]} on the Edge TPU, the compiler maps"
                f" {theirs[op]}{why}"
            )
    return said


def _run(program: str, model: Path, folder: Path, timeout_s: float) -> tuple[int, Log]:
    command = [program, "--show_operations", "--out_dir", str(folder), str(model)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConversionError(
            f"{PROGRAM} took more than {timeout_s:.0f} s on {model.name}",
            hint="compile it by hand with a longer --timeout_sec",
        ) from None
    written = folder / f"{model.stem}_edgetpu.log"
    operations = written.read_text(encoding="utf-8", errors="replace") if written.is_file() else ""
    return done.returncode, log.parse(f"{done.stdout}\n{done.stderr}", operations)
