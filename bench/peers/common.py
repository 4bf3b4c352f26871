"""What all contenders share: the model as a signature, and as a Keras model."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

FOLDER = os.environ["BENCH_MODEL"]


class Signature:
    """The SavedModel's serving signature."""

    def __init__(self) -> None:
        self._model = tf.saved_model.load(f"{FOLDER}/1")
        self._call = self._model.signatures["serving_default"]
        (self._input,) = self._call.structured_input_signature[1]
        (self._output,) = self._call.structured_outputs

    def __call__(self, images: np.ndarray) -> np.ndarray:
        found = self._call(**{self._input: tf.constant(images)})
        return np.asarray(found[self._output])


def images_of(body: dict[str, list[object]]) -> np.ndarray:
    """Returns the instances of a request as float32."""
    return np.array(body["instances"], np.float32)
