"""Which interpreter versions run a `.tflite` file and get the right numbers.

Every entry was found by running the operators of tests/quantize: on the current ai-edge-litert
and tflite-runtime 2.14 in the tests, on the versions between by hand (bench/README.md). An
interpreter that refuses a file
does no harm; the entries of `_WRONG_BELOW` are those that load it and compute something else.
"""

from __future__ import annotations

from collections.abc import Iterable

OpUse = tuple[str, int, str]

# ai-edge-litert 1.2.0 loads float16 convolutions and is wrong by factors of 60 to 1200; 2.0.3 is
# the oldest 2.x that was tried. tflite-runtime ended at 2.14.0.
_SEEN_RIGHT = {"ai-edge-litert": "2.0.3", "tflite-runtime": "2.14.0", "tensorflow": "2.21.0"}

# (operator, activation type) -> the oldest version that is right; None: no version is.
_WRONG_BELOW: dict[tuple[str, str], dict[str, str | None]] = {
    # 9 % of the output's range off on 2.0.3 to 2.1.2 and in TensorFlow 2.21's own interpreter,
    # right on 2.2.0 and 2.3.0.
    ("BATCH_MATMUL", "int8"): {"ai-edge-litert": "2.2.0", "tensorflow": None},
    # "Only float32, int8 and uint8 supported currently, got INT16".
    ("GELU", "int16"): {"tflite-runtime": None},
    # Between layers of 8 and of 16 bits: "output->type == kTfLiteUInt8 || output->type ==
    # kTfLiteInt8 was not true", also on ai-edge-litert 2.0.3. 2.1 and 2.2 were not tried.
    ("QUANTIZE", "int8 to int16"): {
        "ai-edge-litert": "2.3.0",
        "tflite-runtime": None,
        "tensorflow": None,
    },
}
# The first operator version that tflite-runtime 2.14 does not know, from TensorFlow Lite's
# `runtime_version.cc`.
_UNKNOWN_TO_2_14 = {
    "CAST": 6,
    "CONV_2D": 8,
    "DEQUANTIZE": 6,
    "DILATE": 1,
    "DYNAMIC_UPDATE_SLICE": 2,
    "EMBEDDING_LOOKUP": 4,
    "FULLY_CONNECTED": 11,
    "GATHER": 7,
    "GATHER_ND": 5,
    "LOG": 2,
    "REDUCE_WINDOW": 1,
    "RSQRT": 3,
    "TRANSPOSE": 7,
    "TRANSPOSE_CONV": 5,
}


def min_versions(ops: Iterable[OpUse]) -> dict[str, str]:
    """Returns the oldest right version by package; a package that is left out must not run it.

    Args:
        ops: Name, version and activation type of each operator: `("CONV_2D", 3, "int8")`; of a
            QUANTIZE between integers both types, `int8 to int16`.
    """
    found: dict[str, str | None] = dict(_SEEN_RIGHT)
    for name, version, dtype in ops:
        found.update(_WRONG_BELOW.get((name, dtype), {}))
        unknown = version >= _UNKNOWN_TO_2_14.get(name, version + 1)
        if unknown or name.startswith("STABLEHLO_"):
            found["tflite-runtime"] = None
    return {package: version for package, version in found.items() if version is not None}
