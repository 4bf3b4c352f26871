"""The command line's flags of quantization-aware training."""

from __future__ import annotations

from typing import Any

import click

from packager.quantize.qat.settings import LOSSES, PRECISIONS, STRATEGIES

qat_options = (
    click.option(
        "--train",
        metavar="DATA",
        help="Quantization-aware training on these samples: a folder, .npz, .csv or"
        " module:function.",
    ),
    click.option("--train-limit", type=int, help="Use at most so many of them."),
    click.option("--qat-epochs", type=int, help="Passes over the training samples (default: 3)."),
    click.option("--qat-batch-size", type=int, help="Samples of one step (default: 32)."),
    click.option("--qat-learning-rate", type=float, help="Of Adam (default: 1e-4)."),
    click.option(
        "--qat-loss",
        type=click.Choice(LOSSES),
        help="labels, or distill from the float model, which needs none (default: auto).",
    ),
    click.option("--qat-seed", type=int, help="Order of the samples, dropout (default: 0)."),
    click.option(
        "--qat-freeze-bn-epoch", type=int, help="Normalizations keep their statistics after it."
    ),
    click.option(
        "--qat-strategy", type=click.Choice(STRATEGIES), help="Of tf.distribute (default: none)."
    ),
    click.option("--qat-precision", type=click.Choice(PRECISIONS), help="Of the training only."),
    click.option("--qat-checkpoints", metavar="DIR", help="Where to go on after an interruption."),
    click.option("--qat-checkpoint-steps", type=int, help="Steps between two (default: 100)."),
    click.option("--qat-worker-timeout", type=int, metavar="S", help="Without a step (300)."),
    click.option("--gpus", metavar="0,1", help="QAT: which of the visible GPUs."),
    click.option("--gpu-memory-limit", type=int, metavar="MB", help="QAT: on each GPU."),
    click.option("--gpu-memory-growth", is_flag=True, help="QAT: take memory as it is needed."),
    click.option("--log-device-placement", is_flag=True, help="QAT: with -v, where operators run."),
)
_PLAIN = (
    "epochs", "batch_size", "learning_rate", "loss", "seed", "freeze_bn_epoch", "strategy",
    "precision", "checkpoints", "checkpoint_steps", "worker_timeout",
)  # fmt: skip
_SWITCHES = ("require_integer", "gpu_memory_growth", "log_device_placement")


def qat_section(flags: dict[str, Any]) -> dict[str, Any]:
    """Arranges the flags as `package.yaml` does; None stands for a flag that was not given."""
    return {
        **{name: flags[f"qat_{name}"] for name in _PLAIN},
        **{name: flags[name] or None for name in _SWITCHES},
        "gpus": flags["gpus"],
        "gpu_memory_limit": flags["gpu_memory_limit"],
    }
