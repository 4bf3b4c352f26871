"""Converts models with and without their weights: `python tests/quantize/make_large.py FOLDER`.

For each model: `NAME.whole.tflite`, `NAME.outside.tflite` with `NAME.weights/`, and of the latter
again, with what the converter must see, `NAME.again.tflite`; `answers.json` holds what `convert`
returned.
"""

import json
import sys
from pathlib import Path

import keras
from keras import layers

from packager.loaders import keras3
from packager.targets import tflite_convert, tflite_weights


# The converter writes constants of more than some 50,000 numbers as FILL.
def mixed():
    x = image = keras.Input((16, 16, 32), name="x")
    x = layers.Conv2D(96, 5, activation="relu")(x)
    x = layers.DepthwiseConv2D(28, padding="same", use_bias=False)(x)
    x = layers.Conv2D(768, 1, strides=4, padding="same", activation="relu6")(x)
    x = layers.Dense(96, activation="relu")(layers.GlobalAveragePooling2D()(x))
    return image, layers.Dense(800, use_bias=False)(x)


def embedding():
    words = keras.Input((12,), dtype="int32", name="x")
    x = layers.Embedding(1000, 80)(words)
    return words, layers.Dense(1000)(layers.GlobalAveragePooling1D()(x))


def shared():
    x = features = keras.Input((280,), name="x")
    square = layers.Dense(280, activation="tanh")
    return features, square(square(x))


def normalised():
    """The converter multiplies normalisations into the weights."""
    x = image = keras.Input((16, 16, 32), name="x")
    x = layers.Conv2D(96, 5, use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dense(800)(layers.GlobalAveragePooling2D()(x))
    return image, layers.BatchNormalization()(layers.Dense(100)(x))


MODELS = {f.__name__: f for f in (mixed, embedding, shared, normalised)}


def main(folder: Path) -> None:
    keras.utils.set_random_seed(0)
    tflite_weights.LEAST_BYTES = tflite_weights._LEAST_WEIGHT_BYTES = 280_000
    answers = {}
    for name, make in MODELS.items():
        model = keras.Model(*make(), name=name)
        for layer in model.layers:
            if isinstance(layer, layers.BatchNormalization):
                layer.gamma.assign(keras.random.uniform(layer.gamma.shape, 0.5, 2.0))
                layer.moving_mean.assign(keras.random.normal(layer.gamma.shape))
        path = folder / f"{name}.keras"
        model.save(path)
        opened = keras3.open_file(str(path), "keras3", "keras", [], False)
        # What only `filled.fill` finds out.
        tflite_weights._FOLDED = () if name == "normalised" else ("FusedBatchNormV3", "Mul")
        tflite_convert.convert(opened, folder / f"{name}.whole.tflite", {})
        answers[name] = tflite_convert.convert(
            opened, folder / f"{name}.outside.tflite", {}, folder / f"{name}.weights"
        )
        if name == "normalised":
            answers["again"] = tflite_convert.convert(
                opened, folder / "again.outside.tflite", {}, folder / "again.weights", [0, 2]
            )
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
