"""Checks that a model rebuilt from a Keras 2 file computes what tf-keras does on that file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from packager.children import Child
from packager.console import Reporter
from packager.errors import ConversionError

# Both compute in float32, but not in the same order of operations.
MAX_DIFF = 1e-5
# A file saved with a mixed policy is computed in float16 or bfloat16 by tf-keras, and in float32
# here: a float16 has eleven significant bits.
MAX_DIFF_MIXED = 1e-2


def check(
    file: str, opened: dict[str, Any], source: Child, old: Child, work: Path, reporter: Reporter
) -> str:
    """Runs both on the same seeded inputs and compares every output.

    Args:
        file: The Keras 2 file, for messages.
        opened: Describes the rebuilt model's ends.
        source: The TensorFlow child, with the rebuilt model open.
        old: The tf-keras child, with the file open.
        work: A scratch folder.
        reporter: For the warning that there is nothing to compare.

    Returns:
        The largest difference, for the console.

    Raises:
        ConversionError: An output differs by more than 1e-5 of its largest magnitude.
    """
    reference, rebuilt = work / "tf-keras", work / "rebuilt"
    reference.mkdir()
    rebuilt.mkdir()
    inputs, outputs = ([end["name"] for end in opened[kind]] for kind in ("inputs", "outputs"))
    found = old.call(
        "run",
        "running the Keras 2 model in tf-keras",
        reads=(),
        writes=[reference],
        inputs=inputs,
        outputs=outputs,
        folder=reference,
    )
    if not found["samples"]:
        reporter.warn(
            "the rebuilt model was not compared with tf-keras: its outputs on random inputs are not"
            " finite"
        )
        return "not compared"
    source.call(
        "predict",
        "running the rebuilt model",
        reads=["inputs"],
        writes=[rebuilt],
        inputs=reference / "inputs",
        outputs=rebuilt,
    )
    limit = MAX_DIFF_MIXED if found["mixed"] else MAX_DIFF
    worst = 0.0
    for name in outputs:
        theirs = np.load(reference / "outputs" / f"{name}.npy")
        ours = np.load(rebuilt / f"{name}.npy")
        share = _difference(theirs, ours)
        if not share <= limit:
            raise ConversionError(
                f"{file}: the output {name!r} of the model rebuilt for Keras 3 differs"
                f" from tf-keras' by {share:.2g} of its largest magnitude (limit {limit:g})",
                hint="export it with the Keras that saved it, model.export('saved_model'), and give"
                " that folder; please report the file's layers",
            )
        worst = max(worst, share)
        if len(theirs) > 1 and (theirs == theirs[:1]).all():
            reporter.warn(
                f"the output {name!r} is the same for all random inputs, so comparing it with"
                " tf-keras says little; evaluation data measures it"
            )
    return f"{found['samples']} samples, largest difference {worst:.1g} of the magnitude"


def _difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """The largest difference as a share of the largest magnitude; 0 for equal integers."""
    if theirs.shape != ours.shape:
        return float("inf")
    if theirs.dtype.kind in "iub":
        return 0.0 if np.array_equal(theirs, ours) else float("inf")
    theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
    return float(np.abs(theirs - ours).max(initial=0.0) / (np.abs(theirs).max(initial=0.0) or 1.0))
