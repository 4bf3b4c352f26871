"""The TensorFlow worker with a converter that takes its process down: tests/test_faults.py."""

import os
import signal

from packager.loaders import worker

USED = ("open", "write_saved_model", "write_warmup", "layer_names", "predict", "predict_nudged")

if __name__ == "__main__":
    held = worker.Worker()

    def crash(**_given: object) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    worker.serve(
        {
            **{name: getattr(held, name) for name in USED},
            "convert_tflite": crash,
        }
    )
