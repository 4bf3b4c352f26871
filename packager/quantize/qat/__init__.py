"""Quantization-aware training of Keras 3 models for TFLite.

    from packager.quantize import qat

    twin = qat.quantize_model(model)        # a keras.Model
    qat.calibrate(twin, samples)            # starts at the accuracy of post-training quantization
    twin.compile(...); twin.fit(...)        # or a loop of your own
    qat.export(twin, "model.int8.tflite")   # 100 % integer
    model = qat.strip(twin)                 # the float model with the trained weights

These functions import TensorFlow when they are called.
"""

from __future__ import annotations

from typing import Any

__all__ = ["calibrate", "export", "quantize_model", "strip"]

_PLACES = {
    "quantize_model": "packager.quantize.qat.twin",
    "calibrate": "packager.quantize.qat.calibration",
    "export": "packager.quantize.qat.exporting",
    "strip": "packager.quantize.qat.exporting",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
