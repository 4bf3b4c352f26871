"""Devices and strategies of `tf.distribute`; runs first in the training process."""

from __future__ import annotations

import json
import os
from typing import Any

from packager.errors import ConfigError, EnvironmentLacks
from packager.quantize.qat.settings import Qat


def cluster() -> dict[str, Any]:
    """Returns `TF_CONFIG` as TensorFlow defines it; empty where it is not set.

    Raises:
        ConfigError: It is no JSON, or lacks its parts.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return {}
    hint = (
        'for example {"cluster": {"worker": ["host1:12345", "host2:12345"]},'
        ' "task": {"type": "worker", "index": 0}}'
    )
    try:
        found = json.loads(text)
        workers = [*found["cluster"].get("chief", []), *found["cluster"].get("worker", [])]
        kind, index = found["task"]["type"], int(found["task"]["index"])
        addresses = found["cluster"][kind]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"TF_CONFIG cannot be used ({type(error).__name__}: {error})", hint=hint
        ) from error
    if kind not in ("chief", "worker") or not 0 <= index < len(addresses):
        raise ConfigError(
            f"TF_CONFIG: there is no task {kind} {index} among {', '.join(workers)}", hint=hint
        )
    answer: dict[str, Any] = found
    return answer


def is_chief(strategy: str) -> bool:
    """Whether this process writes: alone, the `chief`, or worker 0 where there is none."""
    if strategy != "multiworker":
        return True
    found = cluster()
    if not found:
        return True
    kind, index = found["task"]["type"], int(found["task"]["index"])
    return bool(kind == "chief" or (index == 0 and not found["cluster"].get("chief")))


def start(settings: Qat) -> tuple[Any, list[str]]:
    """Sets the devices up and makes the strategy.

    Must run before anything else that computes with TensorFlow in this process.

    Returns:
        The strategy, and the names of the devices.

    Raises:
        ConfigError: The devices or the strategy cannot be had as wanted.
    """
    import tensorflow as tf

    tf.config.set_soft_device_placement(True)
    tf.debugging.set_log_device_placement(settings.log_device_placement)
    _set_gpus(settings)
    if settings.logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * settings.logical_cpus
        tf.config.set_logical_device_configuration(cpu, parts)
    strategy = _strategy(settings.strategy)
    return strategy, [device.name for device in tf.config.list_logical_devices()]


def _set_gpus(settings: Qat) -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if settings.gpus:
        missing = [n for n in settings.gpus if n >= len(gpus)]
        if missing:
            raise EnvironmentLacks(
                f"--gpus: there is no GPU {missing[0]}; TensorFlow sees {len(gpus)}",
                hint="see `packager doctor`, and CUDA_VISIBLE_DEVICES",
            )
        gpus = [gpus[n] for n in settings.gpus]
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        if settings.gpu_memory_limit is not None:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=settings.gpu_memory_limit)
            tf.config.set_logical_device_configuration(gpu, [part])
        elif settings.gpu_memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)


def _strategy(name: str) -> Any:
    import tensorflow as tf

    if name == "none":
        return tf.distribute.get_strategy()
    if name == "multiworker":
        if not cluster():
            raise ConfigError(
                "strategy multiworker: TF_CONFIG is not set",
                hint="set it on every machine, as docs/qat.md shows; on one machine use mirrored",
            )
        return tf.distribute.MultiWorkerMirroredStrategy()
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0")
