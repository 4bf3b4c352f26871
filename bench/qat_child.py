"""One way of training of `bench.qat`; Keras 3, or tf-keras with tfmot."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 30
ALL = 3800
# The uneven network is broken by rounding: it is to be repaired, which takes longer.
LONGER, RATE = 6, 3e-3


def data(count: int) -> tuple[Any, Any]:
    """Training digits and their classes."""
    with np.load(ROOT / "examples/digits/data/train.npz") as stored:
        return stored["x"][:count].astype(np.float32)[..., None] / 255, stored["y"][:count]


def network(keras: Any, name: str) -> Any:
    """The same layers in either Keras."""
    layers = keras.layers
    x = image = keras.Input((28, 28, 1), name="image")

    def conv(x: Any, filters: int, size: int = 3, strides: int = 1, act: float | None = 6) -> Any:
        x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        return x if act is None else layers.ReLU(act or None)(x)

    def depthwise(x: Any, strides: int = 1) -> Any:
        x = layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(x)
        return layers.ReLU(6.0)(layers.BatchNormalization(momentum=0.9)(x))

    if name == "digits":
        x = conv(conv(x, 12, strides=2, act=0), 24, strides=2, act=0)
    elif name == "mobilenet":
        x = conv(x, 16, strides=2)
        for filters, strides in ((16, 1), (24, 2), (24, 1)):
            y = conv(depthwise(conv(x, 4 * x.shape[-1], 1), strides), filters, 1, act=None)
            x = layers.Add()([x, y]) if y.shape == x.shape else y
        x = conv(x, 64, 1)
    elif name == "resnet8":
        x = conv(x, 16, act=0)
        for filters, strides in ((16, 2), (32, 2), (64, 2)):
            y = conv(conv(x, filters, strides=strides, act=0), filters, act=None)
            short = conv(x, filters, 1, strides, act=None)
            x = layers.ReLU()(layers.Add()([y, short]))
    else:
        # ReLU without an upper end: channels can be scaled against each other afterwards.
        x = conv(x, 16, strides=2, act=0)
        x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = conv(x, 32, 1, strides=2, act=0)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10, activation="softmax", name="digit")(x), name=name)


def make_uneven(model: Any) -> None:
    """Makes channels differ by up to 256 times without changing what the model computes."""
    norm = next(layer for layer in model.layers if "batch_normalization" in layer.name)
    depthwise = next(layer for layer in model.layers if "depthwise" in layer.name)
    scale = 2.0 ** np.linspace(-8, 0, norm.gamma.shape[0])
    norm.gamma.assign(np.asarray(norm.gamma) * scale)
    norm.beta.assign(np.asarray(norm.beta) * scale)
    kernel = np.asarray(depthwise.kernel) / scale[:, None]
    depthwise.kernel.assign(kernel)


def write_floats(folder: Path) -> None:
    """Trains the float models, which all ways start from."""
    import keras
    import tensorflow as tf

    x, y = data(ALL)
    for name in ("digits", "mobilenet", "resnet8", "uneven"):
        keras.utils.set_random_seed(0)
        model = network(keras, name)
        # To the end of what it can learn: further training is then about int8 alone.
        steps = EPOCHS * -(-len(x) // 64)
        rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=EPOCHS, batch_size=64, verbose=0)
        if name == "uneven":
            make_uneven(model)
        np.savez(folder / f"{name}.npz", *model.get_weights())
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        (folder / f"{name}.float.0.tflite").write_bytes(converter.convert())


def start(keras: Any, folder: Path, name: str) -> Any:
    """A network with the float model's weights."""
    model = network(keras, name)
    with np.load(folder / f"{name}.npz") as stored:
        model.set_weights([stored[key] for key in stored.files])
    return model


def train_ours(folder: Path, kind: str, seeds: int, epochs: int, count: int, rate: float) -> None:
    """Keras 3 with packager."""
    import keras
    import tensorflow as tf

    from packager.quantize import qat
    from packager.quantize.qat import losses
    from packager.quantize.qat.data import Data
    from packager.quantize.qat.settings import Qat
    from packager.quantize.qat.training import Training

    for name in ("digits", "mobilenet", "resnet8", "uneven"):
        x, y = data(ALL if name == "uneven" else count)
        took = []
        for seed in range(seeds):
            model = start(keras, folder, name)
            objective = losses.labelled("classification", "softmax", None)
            wanted = y.astype(np.int64)
            if kind == "distill":
                objective = losses.distilled(["softmax"], "classification", None)
                wanted = model.predict(x, batch_size=256, verbose=0)
            settings = Qat(
                epochs=epochs if name != "uneven" else LONGER * epochs,
                learning_rate=rate if name != "uneven" else RATE,
                seed=seed,
                freeze_bn_epoch=epochs if name != "uneven" else LONGER * epochs * 3 // 4,
            )
            strategy = tf.distribute.get_strategy()
            training = Training(model, settings, Data([x], [wanted]), objective, strategy)
            if kind == "ours" and seed == 0 and name == "uneven":
                qat.export(training._plain, folder / f"{name}.ptq.0.tflite")
            outcome = training.run()
            qat.export(outcome.twin, folder / f"{name}.{kind}.{seed}.tflite", require_integer=True)
            took += [1000 * e["seconds"] / e["steps"] for e in outcome.history[2:]]
        (folder / f"{name}.{kind}.json").write_text(json.dumps(float(np.median(took))))


def train_tfmot(folder: Path, seeds: int, epochs: int, count: int, rate: float) -> None:
    """Keras 2 with tfmot."""
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot
    import tf_keras as keras

    for name in ("digits", "mobilenet", "resnet8", "uneven"):
        x, y = data(ALL if name == "uneven" else count)
        took: list[float] = []

        class Times(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.start = time.perf_counter()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch:
                    steps = self.params["steps"]
                    took.append(1000 * (time.perf_counter() - self.start) / steps)  # noqa: B023

        longer = LONGER if name == "uneven" else 1
        for seed in range(seeds):
            keras.utils.set_random_seed(seed)
            model = tfmot.quantization.keras.quantize_model(start(keras, folder, name))
            adam = keras.optimizers.Adam(rate if longer == 1 else RATE)
            model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
            # The tenth that the other loop holds out.
            part = int(len(x) * 0.9)
            model.fit(x[:part], y[:part], epochs=epochs * longer, verbose=0, callbacks=[Times()])
            spec = tf.TensorSpec((1, 28, 28, 1), name="image")
            function = tf.function(lambda image: model(image, training=False))  # noqa: B023
            fixed = function.get_concrete_function(spec)
            converter = tf.lite.TFLiteConverter.from_concrete_functions([fixed], model)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.inference_input_type = converter.inference_output_type = tf.int8
            raw = folder / "tfmot.raw"
            raw.write_bytes(converter.convert())
            complete(raw, folder / f"{name}.tfmot.{seed}.tflite")
        (folder / f"{name}.tfmot.json").write_text(json.dumps(float(np.median(took))))


def complete(raw: Path, target: Path) -> None:
    """Gives the file's ends their names, as in packager's files."""
    from packager.children import Child

    with Child("packager.quantize.worker") as child:
        child.call(
            "complete", "naming", source=raw, target=target, inputs=["image"], outputs=["digit"],
            mode="qat_int8",
        )  # fmt: skip


def main() -> None:
    """Runs one way."""
    kind, folder, *numbers = sys.argv[1:]
    if kind == "float":
        write_floats(Path(folder))
        return
    seeds, epochs, count = (int(n) for n in numbers[:3])
    if kind == "tfmot":
        train_tfmot(Path(folder), seeds, epochs, count, float(numbers[3]))
    else:
        train_ours(Path(folder), kind, seeds, epochs, count, float(numbers[3]))


if __name__ == "__main__":
    main()
