"""Golden samples: a few inputs with the outputs that every runtime must reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import GOLDEN, Artifact, InputSpec, OutputSpec, read_json, write_json
from packager.errors import PackagerError
from packager.verify.gates import LARGEST_SHARE, ROUNDING_FACTOR

Array = np.ndarray[Any, Any]

# Larger outputs go into a .npy file beside samples.json.
INLINE_ELEMENTS = 4096
# Share of the output's range by which an artifact's values may differ on another machine. The
# float kernels of different runtimes sum in different orders; dynamic-range kernels also round
# activations differently (2 % seen between XNNPACK and tflite-runtime 2.14).
_FLOAT_TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "dynamic_int8": 5e-2}
_DEFAULT_FLOAT_TOLERANCE = 1e-5
# Steps of 16 bits are 256 times finer; 32-bit ARM was seen to be 2 of them off.
_INT16_STEPS = 4


@dataclass(frozen=True)
class Sample:
    """One golden sample: its files by input name, and its class number if there is one."""

    id: str
    files: dict[str, str]
    label: int | None = None


_WORDS = np.array(["a", "the", "yes", "no", "good", "red", "large", "hello world"])
# Length of a free axis in random samples; short enough for any model, long enough for its layers.
FREE_AXIS = 32


def choose(count: int, targets: Array | None, wanted: int, seed: int) -> list[int]:
    """Chooses sample numbers at random, in turn from each class where there are classes.

    Args:
        count: How many samples there are.
        targets: Class numbers `[count]`, or None.
        wanted: How many to choose.
        seed: Seed of the random order.
    """
    order = np.random.default_rng(seed).permutation(count)
    if targets is None or targets.ndim != 1 or targets.dtype.kind not in "iu":
        return [int(i) for i in order[:wanted]]
    seen: dict[int, int] = {}
    ranked = []
    for position, index in enumerate(order):
        label = int(targets[index])
        ranked.append((seen.get(label, 0), position, int(index)))
        seen[label] = seen.get(label, 0) + 1
    return [index for _, _, index in sorted(ranked)[:wanted]]


def synthetic(
    spec: InputSpec, shape: Sequence[int | None], count: int, seed: Sequence[int]
) -> Array:
    """Random inputs: pixels `uint8[count, h, w, c]` for an image, else values of the dtype.

    Floats are standard normal; integers are 0 or 1, which every vocabulary has; texts are words.

    Args:
        spec: The input.
        shape: Its shape with the batch axis; free axes get the length `FREE_AXIS`.
        count: How many.
        seed: Seed of the random numbers; each input needs its own, else two inputs of one shape
            get equal values and swapping them goes unseen.
    """
    generator = np.random.default_rng(seed)
    if spec.image is not None:
        channels = 1 if spec.image.channels == "gray" else 3
        pixels = (count, spec.image.height, spec.image.width, channels)
        return generator.integers(0, 256, pixels, dtype=np.uint8)
    size: tuple[int, ...] = (count, *(n if n is not None else FREE_AXIS for n in shape[1:]))
    if spec.dtype == "string":
        return generator.choice(_WORDS, size)
    if np.dtype(spec.dtype).kind == "f":
        return generator.standard_normal(size).astype(spec.dtype)
    return generator.integers(0, 2, size).astype(spec.dtype)


def write_raw(bundle: Path, sample_id: str, name: str, raw: Array, *, is_pixels: bool) -> str:
    """Stores one raw input and returns its path in the bundle.

    Args:
        bundle: The bundle's folder.
        sample_id: The sample's id.
        name: The input's name.
        raw: Pixels `uint8[h, w]` or `[h, w, 1|3]`, stored as PNG, or the model's input without
            the batch axis, stored as `.npy`.
        is_pixels: Which of both: a model's input may be uint8 `[h, w, 3]` too.
    """
    path = f"golden/{sample_id}.{name}.{'png' if is_pixels else 'npy'}"
    (bundle / "golden").mkdir(exist_ok=True)
    if is_pixels:
        from PIL import Image

        squeezed = raw[..., 0] if raw.ndim == 3 and raw.shape[-1] == 1 else raw
        Image.fromarray(squeezed).save(bundle / path, optimize=False)
    else:
        # Texts are stored no wider than needed.
        np.save(bundle / path, np.array(raw.tolist()) if raw.dtype.kind == "S" else raw)
    return path


def tolerances(
    artifact: Artifact,
    outputs: Sequence[OutputSpec],
    spread: Mapping[str, float],
    rounding: Mapping[str, float],
    kernels: Mapping[str, float],
) -> dict[str, float]:
    """Largest allowed difference of an artifact's outputs on another machine, by output.

    Args:
        artifact: The artifact.
        outputs: The model's outputs.
        spread: The `metrics.output_range` of each output of the source model.
        rounding: How much each output moves when the inputs move to neighbouring floats.
        kernels: How much each output of an integer artifact differs between kernels.
    """
    steps = {end.name: end.scale for end in artifact.io if end.role == "output"}
    mode = artifact.quantization.mode if artifact.quantization else "float32"
    found = {}
    for spec in outputs:
        if steps.get(spec.name):
            # A little more, for the rounding of the stored decimal numbers.
            step = max(steps[spec.name]) * (_INT16_STEPS if mode == "int16x8" else 1)
            found[spec.name] = (step + kernels.get(spec.name, 0.0)) * 1.001
        elif mode.startswith("int8"):
            found[spec.name] = (spread[spec.name] / 255 + kernels.get(spec.name, 0.0)) * 1.001
        else:
            share = _FLOAT_TOLERANCE.get(mode, _DEFAULT_FLOAT_TOLERANCE)
            widened = min(ROUNDING_FACTOR * rounding[spec.name], LARGEST_SHARE * spread[spec.name])
            found[spec.name] = max(spread[spec.name] * share, widened)
    return found


def arrays(
    recorded: Mapping[str, Mapping[str, Sequence[float | None]]],
    samples: Sequence[Sample],
    source: Mapping[str, Array],
) -> dict[str, Array]:
    """Returns the values that a runner recorded for one artifact as float32 `[N, ...]` by output.

    Args:
        recorded: Flat values by sample id and output name; JSON's null is NaN.
        samples: The samples, in the order of the rows.
        source: The source model's outputs, for their names and shapes.

    Raises:
        PackagerError: A sample or an output is missing, or has another number of values.
    """
    found = {}
    for name, wanted in source.items():
        rows = [recorded.get(sample.id, {}).get(name, ()) for sample in samples]
        sizes = {len(row) for row in rows}
        if sizes != {wanted[0].size}:
            raise PackagerError(
                f"output {name!r}: expected {wanted[0].size} values for each of {len(samples)}"
                f" samples, the runner recorded {sorted(sizes)}"
            )
        found[name] = np.array(rows, dtype=np.float32).reshape(wanted.shape)
    return found


def write(
    bundle: Path,
    samples: Sequence[Sample],
    source: Mapping[str, Array],
    recorded: Mapping[str, Mapping[str, Array]],
    tolerance: Mapping[str, dict[str, float]],
    *,
    is_synthetic: bool,
) -> None:
    """Writes `golden/samples.json`.

    Args:
        bundle: The bundle's folder.
        samples: The samples.
        source: The source model's outputs, `[N, ...]` by output name, in the samples' order.
        recorded: Each artifact's outputs, by artifact id. One with NaN or infinite values is
            left out: JSON cannot hold them, and nothing can be compared with them.
        tolerance: By artifact id and output name.
        is_synthetic: The inputs are random.
    """
    stored = {artifact: found for artifact, found in recorded.items() if is_finite(found)}
    entries = []
    for row, sample in enumerate(samples):
        entry: dict[str, Any] = {"id": sample.id, "inputs": sample.files}
        if sample.label is not None:
            entry["label"] = sample.label
        entry["outputs"] = {n: _stored(bundle, "source", n, a, row) for n, a in source.items()}
        entry["artifacts"] = {
            artifact: {n: _stored(bundle, artifact, n, a, row) for n, a in found.items()}
            for artifact, found in stored.items()
        }
        entries.append(entry)
    document = {
        "schema": 1,
        "synthetic": is_synthetic,
        "samples": entries,
        "tolerances": {artifact: tolerance[artifact] for artifact in stored},
    }
    write_json(document, bundle / GOLDEN)


def forget(bundle: Path, artifacts: Sequence[str]) -> None:
    """Takes artifacts that leave the bundle out of `golden/samples.json`."""
    document = read_json(bundle / GOLDEN)
    for name in artifacts:
        document["tolerances"].pop(name, None)
        for entry in document["samples"]:
            entry["artifacts"].pop(name, None)
        for path in (bundle / "golden" / "outputs").glob(f"{name.replace('/', '_')}.*.npy"):
            path.unlink()
    write_json(document, bundle / GOLDEN)


def is_finite(outputs: Mapping[str, Array]) -> bool:
    """Whether no value of any output is NaN or infinite."""
    return all(bool(np.isfinite(array).all()) for array in outputs.values())


def _stored(bundle: Path, owner: str, name: str, values: Array, row: int) -> Any:
    flat = values[row].reshape(-1)
    if flat.size <= INLINE_ELEMENTS:
        return [float(v) for v in flat]
    path = f"golden/outputs/{owner.replace('/', '_')}.{name}.npy"
    if row == 0:
        (bundle / "golden" / "outputs").mkdir(parents=True, exist_ok=True)
        np.save(bundle / path, values.reshape(len(values), -1))
    return {"npy": path, "index": row}
