"""Whole models in which layers can be merged, and models in which they must not be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from whole_models import FLAT, IMAGE, STEPS, Case

VOLUME = (5, 6, 4, 3)


def folding_cases() -> Iterator[Case]:
    from keras import layers as k

    for name, shape, layer in (
        ("dense", FLAT, lambda: k.Dense(6, use_bias=False)),
        ("conv1d", STEPS, lambda: k.Conv1D(6, 3)),
        ("conv2d", IMAGE, lambda: k.Conv2D(6, 3, use_bias=False, padding="same")),
        ("conv2d_strided", IMAGE, lambda: k.Conv2D(6, 3, strides=2, padding="same")),
        ("conv3d", VOLUME, lambda: k.Conv3D(6, 2)),
        ("depthwise", IMAGE, lambda: k.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)),
        ("depthwise_dilated", IMAGE, lambda: k.DepthwiseConv2D(3, dilation_rate=2)),
        ("grouped", IMAGE, lambda: k.Conv2D(6, 3, groups=2)),
        ("separable", IMAGE, lambda: k.SeparableConv2D(6, 3, use_bias=False)),
        ("separable_1d", STEPS, lambda: k.SeparableConv1D(6, 3)),
        ("transpose", IMAGE, lambda: k.Conv2DTranspose(6, 3, strides=2, use_bias=False)),
        ("transpose_1d", STEPS, lambda: k.Conv1DTranspose(6, 3, strides=2)),
        ("transpose_3d", VOLUME, lambda: k.Conv3DTranspose(6, 2)),
    ):
        yield Case(f"fold_{name}", lambda s=shape, layer=layer: normalised(s, layer))
    for name in ("relu", "relu6", "hard_silu", "softmax", "swish"):
        yield Case(f"fold_{name}", lambda name=name: activated(name))
    yield Case("fold_padded", padded)
    yield Case("fold_chain", chain)
    yield Case("fold_not_shared", shared)
    yield Case("fold_not_seen", seen)
    yield Case("fold_not_output", output)
    yield Case("fold_not_activated", between)


def normalised(shape: tuple[int, ...], layer: Any) -> Any:
    import keras
    from keras import layers as k

    return keras.Sequential([keras.Input(shape, name="x"), layer(), k.BatchNormalization()])


def activated(name: str) -> Any:
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input(IMAGE, name="x"),
            k.DepthwiseConv2D(3),
            k.BatchNormalization(),
            k.ReLU(6.0) if name == "relu6" else k.Activation(name),
        ]
    )


def padded() -> Any:
    """Through padding: one normalisation without an offset, and one with."""
    import keras
    from keras import layers as k

    model = keras.Sequential(
        [
            keras.Input(IMAGE, name="x"),
            k.Conv2D(4, 3),
            k.ZeroPadding2D(1),
            k.BatchNormalization(center=False, name="zero_mean"),
            k.Conv2D(4, 3),
            k.ZeroPadding2D(1),
            k.BatchNormalization(),
        ]
    )
    return model


def chain() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(IMAGE, name="x")
    y = k.BatchNormalization()(k.Conv2D(8, 1, use_bias=False)(x))
    y = k.BatchNormalization()(y)
    y = k.ReLU(6.0)(y)
    y = k.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
    y = k.ReLU(6.0)(k.BatchNormalization()(y))
    y = k.BatchNormalization()(k.Conv2D(4, 1, use_bias=False)(k.Dropout(0.2)(y)))
    return keras.Model(x, k.Dense(3)(k.GlobalAveragePooling2D()(k.Add()([x, y]))))


def shared() -> Any:
    import keras
    from keras import layers as k

    conv, norm = k.Conv2D(4, 3, padding="same"), k.BatchNormalization()
    x = keras.Input(IMAGE, name="x")
    return keras.Model(x, norm(conv(norm(conv(x)))))


def seen() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(IMAGE, name="x")
    y = k.Conv2D(4, 3)(x)
    return keras.Model(x, k.Add()([k.BatchNormalization()(y), k.ReLU()(y), y]))


def output() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(IMAGE, name="x")
    y = k.Conv2D(4, 3)(x)
    return keras.Model(x, [y, k.BatchNormalization()(y)])


def between() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(IMAGE, name="x")
    y = k.BatchNormalization()(k.Conv2D(4, 3, activation="tanh")(x))
    return keras.Model(x, k.ReLU()(k.Conv2D(4, 3, activation="tanh")(y)))
