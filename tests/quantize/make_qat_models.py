"""Writes small float models for the training tests: python make_qat_models.py FOLDER."""

import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
from keras import layers

DATA = Path(__file__).parents[2] / "examples" / "digits" / "data"


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), name="image"),
            layers.Conv2D(8, 3, strides=2, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.DepthwiseConv2D(3),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(6.0),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax", name="digit"),
        ]
    )


def samples(name):
    with np.load(DATA / f"{name}.npz") as stored:
        return stored["x"].astype(np.float32)[..., None] / 255, stored["y"].astype(np.int64)


def main(folder):
    x, y = samples("train")
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    model.fit(x, y, epochs=6, batch_size=64, verbose=0)
    model.save(folder / "tiny.keras")
    few = folder / "samples"
    few.mkdir()
    np.save(few / "image.npy", x[:220])
    np.save(few / "targets.npy", y[:220])
    np.savez(folder / "train.npz", x=x[:220], y=y[:220])
    np.savez(folder / "unlabelled.npz", x=x[:220])
    np.savez(folder / "out_of_range.npz", x=x[:220], y=y[:220] + 1)
    np.savez(folder / "wrong_shape.npz", x=x[:220, :20], y=y[:220])
    custom = keras.Sequential(
        [keras.Input((28, 28, 1), name="image"), layers.Conv2D(4, 3), layers.ELU(),
         layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax", name="digit")]
    )  # fmt: skip
    custom.save(folder / "elu.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
