"""Inputs whose columns differ by orders of magnitude: one scale for all destroys the small ones.

Tables and sensor readings come like that, and the model's first operators scale each column. When
these stay float, with a float input, every column keeps its resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packager.bundle import Manifest
from packager.quantize.op_layers import OpLayer, by_layer

# A column that takes fewer of the 256 steps of the input's scale is lost.
FEW_STEPS = 4
_SCALING = ("ADD", "SUB", "MUL", "DIV", "MINIMUM", "MAXIMUM", "RESHAPE")


def lost(manifest: Manifest, inputs: Path) -> dict[str, list[int]]:
    """Columns that an int8 input would lose, by input name.

    Args:
        manifest: The manifest's inputs; images have no columns.
        inputs: Folder of the calibration samples, `<input name>.npy`, `[N, columns]`.
    """
    found = {}
    for spec in manifest.inputs:
        values = np.load(inputs / f"{spec.name}.npy", mmap_mode="r")
        if spec.image is not None or values.ndim != 2 or values.dtype.kind != "f":
            continue
        low, high = values.min(axis=0), values.max(axis=0)
        step = max(float(high.max()), 0.0) - min(float(low.min()), 0.0)
        steps = (high - low) / (step / 255) if step > 0 else np.full(len(low), 255.0)
        columns = [int(i) for i in np.flatnonzero((steps < FEW_STEPS) & (high > low))]
        if columns:
            found[spec.name] = columns
    return found


def first_layers(ops: Sequence[OpLayer], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Layers that may stay float: the scaling in front, and the same with the layers after it.

    Args:
        ops: The float file's operators.
        names: The inputs.
    """
    reached = set(names)
    scaling: list[str] = []
    after: list[str] = []
    for op in ops:
        if reached & set(op.inputs):
            if op.op in _SCALING and op.layer not in after:
                scaling.append(op.layer)
                reached |= set(op.outputs)
            else:
                after.append(op.layer)
    # A layer that also computes something else stays float as a whole.
    members = by_layer(ops)
    scaling = [name for name in dict.fromkeys(scaling) if name in members]
    both = tuple(dict.fromkeys((*scaling, *after)))
    return [tuple(scaling), both] if scaling else [both]


def described(columns: dict[str, list[int]]) -> str:
    """Names the columns: `columns 0, 3 of the input 'x'`."""
    return "; ".join(
        f"columns {', '.join(map(str, numbers[:8]))}{' ...' if len(numbers) > 8 else ''}"
        f" of the input {name!r}"
        for name, numbers in columns.items()
    )
