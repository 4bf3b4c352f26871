"""Writes models for tests/soak/test_precision.py: python precision_models.py FOLDER WHAT..."""

import json
import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np

SCALES = np.array([1e-3, 1.0, 30.0, 2e4, 5.0, 1e-2], np.float32)


def table(folder):
    """A regression on six columns of very different sizes, with a Normalization in front."""
    random = np.random.default_rng(0)
    x = (random.normal(size=(3000, 6)) * SCALES + SCALES).astype(np.float32)
    z = (x - SCALES) / SCALES
    y = (np.sin(z[:, 0]) + z[:, 1] * z[:, 5] + 0.3 * z[:, 3] + 0.5 * z[:, 2]).astype(np.float32)
    keras.utils.set_random_seed(0)
    normalise = keras.layers.Normalization(name="normalise")
    normalise.adapt(x)
    model = keras.Sequential(
        [
            keras.Input((6,), name="row"),
            normalise,
            keras.layers.Dense(48, "relu", name="first"),
            keras.layers.Dense(48, "relu", name="second"),
            keras.layers.Dense(1, name="answer"),
        ]
    )
    model.compile("adam", "mse")
    model.fit(x[:2400], y[:2400], epochs=60, batch_size=32, verbose=0)
    model.save(folder / "table.keras")
    np.savez(folder / "table-calibration.npz", x=x[:200])
    np.savez(folder / "table-evaluation.npz", x=x[2400:], y=y[2400:])


def application(folder, name):
    """A float TFLite file of a keras.applications family, its layers and their weights."""
    from packager.loaders.keras3 import open_model
    from packager.targets import tflite_convert

    size = 128 if name in ("InceptionV3", "Xception") else 96
    model = getattr(keras.applications, name)(
        weights=None, include_top=False, input_shape=(size, size, 3)
    )
    opened = open_model(model, name, "callable", "keras")
    tflite_convert.convert(opened, folder / f"{name}.tflite", {})
    layers = list(model._flatten_layers(include_self=False))
    names = list(dict.fromkeys(layer.name for layer in layers))
    kinds = {layer.name: type(layer).__name__ for layer in layers}
    (folder / f"{name}.json").write_text(json.dumps({"names": names, "kinds": kinds}))
    weights = {f"{x.name}|{w.name}": w.numpy() for x in layers for w in x.weights}
    np.savez(folder / f"{name}.npz", **weights)


def main(folder, *wanted):
    for name in wanted:
        if name == "table":
            table(folder)
        else:
            application(folder, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
