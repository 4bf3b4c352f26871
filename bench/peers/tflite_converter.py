"""int8 by TensorFlow's own converter: python tflite_converter.py SAVED_MODEL SAMPLES OUT.tflite.

SAMPLES is a folder of `<input name>.npy`. Prints the seconds that converting took.
"""

import os
import sys
import time
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import tensorflow as tf


def main(model: str, samples: str, target: str) -> None:
    """Converts and writes."""
    arrays = {path.stem: np.load(path) for path in Path(samples).glob("*.npy")}

    def representative() -> object:
        for row in range(len(next(iter(arrays.values())))):
            yield {name: array[row : row + 1] for name, array in arrays.items()}

    start = time.perf_counter()
    converter = tf.lite.TFLiteConverter.from_saved_model(model, signature_keys=["serving_default"])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    content = converter.convert()
    print(time.perf_counter() - start)
    Path(target).write_bytes(content)


main(*sys.argv[1:])
