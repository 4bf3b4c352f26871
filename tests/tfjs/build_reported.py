"""Saves the models of public reports about TF.js conversion; run as a child process.

    python build_reported.py FOLDER

writes NAME.keras, NAME.h5, NAME.in.npy and NAME.out.npy. The numbers are issues of
tensorflow/tfjs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

STEPS = 24


def issue_8328() -> Any:
    """A functional model of one input and one Dense: model.json could not be read."""
    import keras

    x = keras.Input((5,), name="x")
    return keras.Model(x, keras.layers.Dense(3, name="dense")(x))


def issue_8321() -> Any:
    """Sequential with a convolution: no target variable sequential/conv2d/kernel."""
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            k.Conv2D(4, 3, activation="relu"),
            k.Flatten(),
            k.Dense(3, activation="softmax"),
        ]
    )


def issue_8489() -> Any:
    """Embedding, convolution, two LSTMs: the weights of the LSTMs found no place."""
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((STEPS,), dtype="int32", name="ids"),
            k.Embedding(30, 8),
            k.Conv1D(8, 3, activation="relu"),
            k.BatchNormalization(),
            k.MaxPooling1D(2),
            k.LSTM(6, return_sequences=True),
            k.LSTM(5),
            k.Dense(2),
        ]
    )


def issue_8266() -> Any:
    """Two Dense of one shape, in another order by name: their weights were exchanged."""
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((6,), name="x"),
            k.Dense(6, name="zebra", activation="tanh"),
            k.Dense(6, name="ape", activation="tanh"),
        ]
    )


REPORTED = (issue_8328, issue_8321, issue_8489, issue_8266)


def main(folder: Path) -> None:
    import keras
    import numpy as np

    for number, make in enumerate(REPORTED):
        keras.utils.clear_session()
        random = np.random.default_rng(number)
        model, name = make(), make.__name__
        for weight in model.weights:
            shift = 1.0 if "variance" in weight.path else 0.0
            weight.assign(
                np.abs(random.normal(0.0, 0.8, weight.shape) + shift)
                if shift
                else random.normal(0.0, 0.8, weight.shape)
            )
        shape = (7, *model.inputs[0].shape[1:])
        values = (
            random.integers(0, 30, shape).astype("int32")
            if model.inputs[0].dtype == "int32"
            else random.normal(size=shape).astype("float32")
        )
        np.save(folder / f"{name}.in.npy", values)
        np.save(folder / f"{name}.out.npy", np.asarray(model(values, training=False)))
        model.save(folder / f"{name}.keras")
        model.save(folder / f"{name}.h5")
    # Issue 8265: the extension says one thing, the content another.
    shutil.copyfile(folder / "issue_8328.keras", folder / "misnamed.h5")
    shutil.copyfile(folder / "issue_8328.h5", folder / "misnamed.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
