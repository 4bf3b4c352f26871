"""The post-training recipes, as data for `litert-quantizer`.

A recipe is a list of rules; of those that match an operator the last one wins.
"""

from __future__ import annotations

from typing import Any

Rule = dict[str, Any]


def _weights(granularity: str) -> dict[str, Any]:
    return {"num_bits": 8, "symmetric": True, "granularity": granularity, "dtype": "INT"}


def rule(
    operation: str, algorithm: str, config: dict[str, Any] | None = None, *, regex: str = ".*"
) -> Rule:
    """One rule for an operation (`*`: all) whose output tensors' names match."""
    found: Rule = {"regex": regex, "operation": operation, "algorithm_key": algorithm}
    if config is not None:
        found["op_config"] = config
    return found


def _dynamic(operation: str, granularity: str) -> Rule:
    return rule(
        operation,
        "min_max_uniform_quantize",
        {
            "weight_tensor_config": _weights(granularity),
            "compute_precision": "INTEGER",
            "explicit_dequantize": False,
        },
    )


def static(
    activation_bits: int,
    operation: str = "*",
    granularity: str = "CHANNELWISE",
    *,
    algorithm: str = "min_max_uniform_quantize",
    regex: str = ".*",
) -> Rule:
    """A rule for 8-bit weights and integer activations with calibrated scales."""
    return rule(
        operation,
        algorithm,
        {
            "activation_tensor_config": {
                "num_bits": activation_bits,
                "symmetric": activation_bits == 16,
                "granularity": "TENSORWISE",
                "dtype": "INT",
            },
            "weight_tensor_config": _weights(granularity),
            "compute_precision": "INTEGER",
            "explicit_dequantize": False,
        },
        regex=regex,
    )


_FLOAT16 = rule(
    "*",
    "float_casting",
    {
        "weight_tensor_config": {"num_bits": 16, "dtype": "FLOAT"},
        "compute_precision": "FLOAT",
        "explicit_dequantize": True,
    },
)
FLOAT_ENDS = [rule("INPUT", "no_quantize"), rule("OUTPUT", "no_quantize")]

RECIPES: dict[str, list[Rule]] = {
    "float16": [_FLOAT16],
    # Dense weights per tensor: a per-channel FULLY_CONNECTED with float or int16 activations is
    # wrong on tflite-runtime 2.14 (error as large as the output, no message); with int8 it is
    # right. Convolutions must stay per channel: a per-tensor dynamic DEPTHWISE_CONV_2D reads
    # past its scales on every runtime tried. tests/quantize runs all of this on both runtimes.
    "dynamic_int8": [
        _dynamic("CONV_2D", "CHANNELWISE"),
        _dynamic("DEPTHWISE_CONV_2D", "CHANNELWISE"),
        _dynamic("FULLY_CONNECTED", "TENSORWISE"),
    ],
    "int8": [static(8)],
    "int8_float_io": [static(8), *FLOAT_ENDS],
    "int16x8": [static(16), static(16, "FULLY_CONNECTED", "TENSORWISE")],
}
CALIBRATED = ("int8", "int8_float_io", "int16x8")
