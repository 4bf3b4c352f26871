"""Sets a twin's ranges from real samples, as post-training quantization does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from packager.errors import DataError
from packager.quantize.qat.twin import ranges_of, twin_of

Array = np.ndarray[Any, Any]


def calibrate(twin: Any, samples: Any, batch: int = 64) -> None:
    """Runs the twin without quantization and takes the true minimum and maximum of each tensor.

    Args:
        twin: What `quantize_model` returned.
        samples: The model's input `[N, ...]`, or a structure of several, as `model.predict`
            takes them.
        batch: Samples at a time.

    Raises:
        DataError: No samples, or values that are not finite.
    """
    twin_of(twin)
    arrays = [np.asarray(a) for a in keras.tree.flatten(samples)]
    count = len(arrays[0]) if arrays and arrays[0].ndim else 0
    if not count:
        raise DataError("calibration: no samples", hint="give 100 to 500 typical inputs")
    layers = [layer for layer in twin._flatten_layers() if hasattr(layer, "calibrating")]
    ranges = ranges_of(twin)
    for layer in layers:
        layer.calibrating = True
    try:
        for found in ranges:
            found.start_calibration()
        _run(twin, arrays, count, batch)
    finally:
        for layer in layers:
            layer.calibrating = False
    for found in ranges:
        found.end_calibration()
        if not (np.isfinite(found.low.numpy()) and np.isfinite(found.high.numpy())):
            raise DataError(
                f"calibration: {found.name} takes values that are not finite",
                hint="look for NaN or infinity in the samples or the weights",
            )


def _run(twin: Any, arrays: Sequence[Array], count: int, batch: int) -> None:
    import tensorflow as tf

    # A graph of its own: those of training and inference are traced without these states.
    step = tf.function(lambda x: twin(x, training=False), autograph=False, reduce_retracing=True)
    structure = twin._inputs_struct
    for start in range(0, count, batch):
        rows = [tf.constant(np.ascontiguousarray(a[start : start + batch])) for a in arrays]
        step(keras.tree.pack_sequence_as(structure, rows))
