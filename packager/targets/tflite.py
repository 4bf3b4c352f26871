"""The float TFLite file from which every variant is made: batch 1, builtin operators only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager import runtime_profiles
from packager.bundle import Artifact, ArtifactTensor, Quantization, Runtime, from_json, to_json
from packager.children import Child
from packager.console import human_size
from packager.errors import ConversionError
from packager.quantize import decide
from packager.quantize.decide import RANGES
from packager.quantize.plan import Plan
from packager.targets import Target

if TYPE_CHECKING:
    from packager.children import Pending
    from packager.job import Job

_CONVERTED = "converter.tflite"
_WEIGHTS = "converter-weights"
# A float file from this size on is worth another process for its variants.
_WORTH_A_PROCESS = 20_000_000


def ask(job: Job) -> tuple[Pending, Pending | None, Pending]:
    """Asks for the converter's float file, and for one without loops where integers are wanted.

    Returns:
        Both answers, the second None where it is not asked for, and the names of the layers.
    """
    shapes = job.config.model.input_shape
    base = _ask_float(job, "converting tflite/float32")
    names = job.source.submit("layer_names", "naming the layers", reads=())
    if not any(target.calibrated for target in job.selection.of(__name__)):
        return base, None, names
    unrolled = job.source.submit(
        "convert_unrolled",
        "unrolling the recurrent layers",
        reads=(),
        writes=[job.work / "unrolled-converter.tflite"],
        path=job.work / "unrolled-converter.tflite",
        input_shapes=shapes,
    )
    return base, unrolled, names


def files(job: Job, target: Target) -> list[Path]:
    """The artifact's file."""
    return [job.folder / "tflite" / f"{job.manifest.name}.{target.mode}.tflite"]


def make(job: Job, pending: tuple[Pending, Pending | None, Pending]) -> None:
    """Makes the float file complete, calibrates once, and quantizes every variant from it."""
    targets = job.selection.of(__name__)
    base = job.work / "float32.tflite"
    described: dict[str, Any] = {}
    with job.making(targets, "convert to TFLite") as detail:
        described = _complete_base(job, base, pending[0].result())
        detail.append(human_size(base.stat().st_size))
    integer = [t for t in targets if t.calibrated and not job.lost(t)]
    integer_base = _unroll(job, integer, base, pending[1])
    job.layer_names = tuple(pending[2].result())
    _calibrate(job, [t for t in integer if not job.lost(t)], integer_base)
    plans = decide.plans(job, [t for t in integer if not job.lost(t)], integer_base)
    bases = {t.id: integer_base if t.calibrated else base for t in targets if not job.lost(t)}
    with _quantizers(job, base, len(bases)) as children:
        asked = {
            target.id: _ask_variant(
                job, children[i % len(children)], target, bases[target.id], plans.get(target.id)
            )
            for i, target in enumerate(t for t in targets if t.id in bases)
        }
        for target in targets:
            if target.id in bases and not job.lost(target):
                _make_variant(job, target, bases[target.id], asked[target.id] or described)
    if any(artifact.id == "tflite/edgetpu" for artifact in job.artifacts):
        from packager.edgetpu import build  # reads files with LiteRT's schema

        build.finish(job)


def _ask_float(job: Job, stage: str, inside: Sequence[int] = ()) -> Pending:
    """Asks for the converter's float file; `inside` as in `tflite_convert.convert`."""
    path, values = job.work / _CONVERTED, job.work / _WEIGHTS
    return job.source.submit(
        "convert_tflite",
        stage,
        reads=(),
        writes=[path, values],
        path=path,
        values=values,
        input_shapes=job.config.model.input_shape,
        inside=list(inside),
    )


def _complete_base(job: Job, base: Path, ends: dict[str, Any]) -> dict[str, Any]:
    """Completes the float file; what the converter changed of a weight, it must see after all."""
    described = _filled(job, base, ends)
    if "missing" in described:
        shutil.rmtree(job.work / _WEIGHTS)
        again = _ask_float(job, "converting tflite/float32 again", described["missing"])
        described = _filled(job, base, again.result())
    if "missing" in described:
        raise ConversionError(
            "tflite/float32: the converter changed weights that were to stay as they are",
            hint="please report the model's layers",
        )
    return described


def _filled(job: Job, base: Path, ends: dict[str, Any]) -> dict[str, Any]:
    # Without weights outside there is no folder of theirs.
    given = {**ends, "values": job.work / _WEIGHTS} if ends["weights"] else ends
    return _complete(job, job.work / _CONVERTED, base, given)


def _complete(job: Job, source: Path, target: Path, ends: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job.litert.call(
        "complete",
        f"completing {target.name}",
        reads=["source", "values"],
        writes=[target],
        source=source,
        target=target,
        **ends,
    )
    return found


def _unroll(job: Job, targets: Sequence[Target], base: Path, pending: Pending | None) -> Path:
    """The file that integers are made from: one without loops where the model is recurrent."""
    if pending is None or not targets or job.data is None:
        return base
    unrolled = job.work / "unrolled.tflite"
    with job.making(targets, "unroll the recurrent layers") as detail:
        ends = pending.result()
        if ends is None:
            detail.append("the model has none")
            return base
        _complete(job, job.work / "unrolled-converter.tflite", unrolled, ends)
        job.litert.call(
            "compare",
            "comparing the unrolled file with the one with loops",
            reads=["model", "other", "samples"],
            model=base,
            other=unrolled,
            samples=job.data.golden_inputs,
        )
        detail.append(human_size(unrolled.stat().st_size))
    return unrolled


def _calibrate(job: Job, targets: Sequence[Target], base: Path) -> None:
    if not targets or job.data is None:
        return
    with job.making(targets, "calibrate") as detail:
        constant = job.litert.call(
            "calibrate",
            "calibrating",
            reads=["model", "samples"],
            writes=[job.work / RANGES],
            model=base,
            samples=job.data.calibration_inputs,
            ranges=job.work / RANGES,
        )
        detail.append("true minimum and maximum of every tensor")
        if constant:
            job.reporter.warn(
                f"{len(constant)} tensors never change over the calibration samples (the first:"
                f" {constant[0]}); integer files are right only where that stays so"
            )


@contextlib.contextmanager
def _quantizers(job: Job, base: Path, wanted: int) -> Iterator[list[Child]]:
    """LiteRT children: one more for each core where a file is so large that it pays."""
    size = base.stat().st_size if base.exists() else 0
    count = min(job.config.jobs, wanted) if size >= _WORTH_A_PROCESS else 1
    with contextlib.ExitStack() as stack:
        more = [
            stack.enter_context(
                Child(
                    "packager.quantize.worker",
                    verbose=job.reporter.verbose,
                    temporary=job.work,
                    cache=job.cache,
                )
            )
            for _ in range(1, count)
        ]
        yield [job.litert, *more]


def _ask_variant(
    job: Job, child: Child, target: Target, base: Path, plan: Plan | None
) -> Pending | None:
    """Asks for a quantized variant; None for the float file itself."""
    (path,) = files(job, target)
    path.parent.mkdir(exist_ok=True)
    if target.mode == "float32":
        return None
    with job.losing([target]):
        return child.submit(
            "quantize",
            f"quantizing {target.id}",
            reads=["model", "ranges"],
            writes=[path],
            model=base,
            target=path,
            mode=target.mode,
            ranges=decide.ranges(job, plan) if target.calibrated else None,
            plan=None if plan is None else plan.to_json(),
            layers=list(job.layer_names),
        )
    return None


def _make_variant(job: Job, target: Target, base: Path, made: Pending | dict[str, Any]) -> None:
    """Finishes a variant.

    Args:
        job: The build.
        target: The artifact.
        base: The float file that it is made from.
        made: The pending description of the quantized file, or that of the float file.
    """
    (path,) = files(job, target)
    with job.making([target], target.id, path) as detail:
        if isinstance(made, dict):
            path.write_bytes(base.read_bytes())
            described = made
        else:
            described = made.result()
        runtime_profiles.check(job.config.runtimes, described)
        runtime = Runtime("tflite", described["min_version"])
        # The runtime is part of a lone file's card: it has no manifest to keep old ones away.
        card = {**job.manifest.card(), "runtime": to_json(runtime)}
        embed_card(job, target, path, card)
        artifact = describe(job.manifest.name, target.mode, path, described, runtime)
        detail.append(human_size(artifact.size_bytes))
        if target.calibrated:
            detail.append(f"{described['integer_op_share']:.0%} integer operators")
            if described["float_ops"]:
                names = ", ".join(described["float_ops"])
                job.reporter.warn(f"{target.id}: these operators stay float: {names}")
        job.artifacts.append(artifact)
        job.operators[target.id] = described["ops"]
        job.float_files[target.id] = base


def embed_card(job: Job, target: Target, path: Path, card: dict[str, Any]) -> None:
    """Stores the card in a finished file."""
    stage = f"embedding the card of {target.id}"
    job.litert.call("embed_card", stage, reads=["path"], writes=[path], path=path, card=card)


def describe(
    name: str, mode: str, path: Path, description: dict[str, Any], runtime: Runtime
) -> Artifact:
    """The manifest's entry of a finished file, from what the LiteRT child said of it."""
    io = tuple(from_json(ArtifactTensor, end, f"tflite/{mode}") for end in description["io"])
    return Artifact(
        id=f"tflite/{mode}",
        path=f"tflite/{name}.{mode}.tflite",
        runtime=runtime,
        io=io,
        batch=1,
        quantization=Quantization(
            "int8" if mode == "edgetpu" else mode,
            description["integer_op_share"],
            tuple(description["float_ops"]),
        ),
        size_bytes=path.stat().st_size,
    )
