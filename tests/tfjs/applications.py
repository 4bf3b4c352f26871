"""Builds nets of keras.applications at small inputs; run as a child process.

    python applications.py FOLDER NAME…

writes for each FOLDER/NAME/ with the layer graph, in.0.npy and out.0.npy: the logits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SIZES = {
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "MobileNetV3Large": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "DenseNet121": 64,
    "NASNetMobile": 64,
    "Xception": 75,
    "InceptionV3": 107,  # at 75 its last maps are 1 x 1, and rounding grows to 1.8e-4
    "VGG16": 48,
    "ConvNeXtTiny": 64,
}
SAMPLES = 3


def net(name: str, size: int) -> Any:
    import keras

    return getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=50, classifier_activation=None
    )


def calibrate(model: Any, images: Any, random: Any) -> None:
    """Gives weights the size, and normalisations the statistics, that training would give.

    With statistics of 0 and 1 features fade or explode from layer to layer, and the outputs of all
    samples become the same: a comparison of them would say nothing.
    """
    import keras
    import numpy as np

    for weight in model.weights:
        name = weight.path.rpartition("/")[2]
        if name in ("gamma",) and "layer_scale" not in weight.path:
            weight.assign(random.uniform(0.8, 1.2, weight.shape))
        elif name in ("bias", "beta"):
            weight.assign(random.normal(0.0, 0.1, weight.shape))
        elif name == "moving_variance" or len(weight.shape) < 2:
            continue
        else:
            fan_in = (
                np.prod(weight.shape[:-1])
                if "depthwise" not in weight.path
                else (np.prod(weight.shape[:2]))
            )
            weight.assign(random.normal(0.0, np.sqrt(2.0 / fan_in), weight.shape))
    # A training step with momentum 0 puts the batch's own statistics in place.
    norms = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
    kept = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    model(images, training=True)
    for layer, momentum in zip(norms, kept, strict=True):
        layer.momentum = momentum
        # Channels that hardly vary over so few samples would magnify rounding.
        spread = np.asarray(layer.moving_variance)
        layer.moving_variance.assign(np.maximum(spread, 0.1 * spread.mean()))


def main(folder: Path, names: list[str]) -> None:
    import keras
    import numpy as np

    from packager.loaders import keras_graph, layer_graph

    for name in names:
        keras.utils.clear_session()
        random = np.random.default_rng(len(name))
        size = SIZES[name]
        model = net(name, size)
        images = random.uniform(0, 255, (16, size, size, 3)).astype("float32")
        if "MobileNetV3" not in name and "Efficient" not in name and "ConvNeXt" not in name:
            images = images / 127.5 - 1
        calibrate(model, images, random)
        target = folder / name
        layer_graph.save(keras_graph.layer_graph(model), target)
        model.save(target / "model.keras")
        np.save(target / "in.0.npy", images[:SAMPLES])
        np.save(target / "out.0.npy", model.predict(images[:SAMPLES], verbose=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
