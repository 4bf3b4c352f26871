"""Cases of whole models for tfjs_models.py: nested, shared, mixed, broken ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Any]
    refused: str = ""


def one(name: str, shape: tuple[int, ...], layer: Callable[[], Any], refused: str = "") -> Case:
    """A model of one layer."""
    import keras

    def build() -> Any:
        inputs = keras.Input(shape, name="x")
        return keras.Model(inputs, layer()(inputs))

    return Case(name, build, refused)


IMAGE = (9, 8, 4)
STEPS = (11, 6)
FLAT = (7,)


def whole_models() -> Iterator[Case]:
    yield Case("digits", digits)
    yield Case("transformer", transformer)
    yield Case("taken_twice", taken_twice)
    yield Case("dtype_mixed", mixed)
    yield Case("uint8_input", uint8_input)
    yield Case("embedding", embedding)
    yield Case("embedding_masked", lambda: embedding(mask_zero=True))
    yield Case("nested", nested)
    yield Case("shared", shared)
    yield Case("nested_shared", nested_shared)
    yield Case("two_outputs", two_outputs)
    yield Case("strange_names", strange_names)
    yield Case("input_is_output", input_is_output)
    yield Case("custom_layer", custom, "custom code")
    yield Case("nan_weight", nan_weight, "NaN")
    yield Case("two_states", two_states)
    yield Case("split", split)
    yield Case("nested_state", nested_state)
    yield Case("several_reasons", several_reasons, "layer 'up' (UpSampling2D)")


def digits() -> Any:
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((28, 28, 1), name="image"),
            k.Rescaling(1 / 255),
            k.Conv2D(8, 3, padding="same", use_bias=False, kernel_regularizer="l2"),
            k.BatchNormalization(),
            k.ReLU(6.0),
            k.MaxPooling2D(),
            k.DepthwiseConv2D(3, activation="relu", depthwise_initializer="lecun_normal"),
            k.GlobalAveragePooling2D(),
            k.Dropout(0.3),
            k.Dense(10, name="digit"),
        ]
    )


def transformer() -> Any:
    """Self-attention of masked tokens with residuals: one tensor goes into a layer three times."""
    import keras
    from keras import layers as k

    ids = keras.Input((11,), dtype="int32", name="ids")
    x = k.Embedding(20, 6, mask_zero=True)(ids % 4)
    x = k.LayerNormalization()(k.Add()([x, k.MultiHeadAttention(2, 4)(x, x)]))
    hidden = k.Dense(6)(k.Dense(12, activation="gelu")(x))
    x = k.LayerNormalization()(k.Add()([x, hidden]))
    return keras.Model(ids, k.Dense(3)(k.GRU(5)(x)))


def taken_twice() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(FLAT, name="x")
    y = k.Dense(7, activation="tanh")(x)
    square = k.Multiply()([y, y])
    return keras.Model(x, k.Concatenate()([square, k.Add()([y, y, y]), y * y]))


def mixed() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input(FLAT, name="x"),
            keras.layers.Dense(6, dtype=keras.DTypePolicy("mixed_float16")),
        ]
    )


def uint8_input() -> Any:
    import keras

    x = keras.Input(IMAGE, dtype="uint8", name="x")
    return keras.Model(x, keras.layers.Conv2D(3, 2)(keras.layers.Rescaling(1 / 255)(x)))


def embedding(mask_zero: bool = False) -> Any:
    import keras

    x = keras.Input((6,), dtype="int32", name="x")
    y = keras.layers.Embedding(20, 4, mask_zero=mask_zero)(x)
    return keras.Model(x, keras.layers.GlobalAveragePooling1D()(y))


def nested() -> Any:
    import keras
    from keras import layers as k

    inside = keras.Sequential([keras.Input(FLAT), k.Dense(5, name="fc"), k.Dropout(0.1)])
    deep_in = keras.Input((5,))
    deep = keras.Model(deep_in, k.Dense(4, name="fc", activation="tanh")(deep_in), name="deep")
    middle_in = keras.Input(FLAT)
    middle = keras.Model(middle_in, deep(inside(middle_in)), name="middle")
    x = keras.Input(FLAT, name="x")
    return keras.Model(x, k.Dense(3, name="fc")(middle(x)))


def shared() -> Any:
    import keras
    from keras import layers as k

    layer, after = k.Dense(7, activation="tanh"), k.Dense(7)
    x = keras.Input(FLAT, name="x")
    once = layer(x)
    twice = layer(after(once))
    return keras.Model(x, k.Concatenate()([layer(twice), once, twice]))


def nested_shared() -> Any:
    import keras
    from keras import layers as k

    a_in, b_in = keras.Input(FLAT), keras.Input(FLAT)
    hidden = k.Dense(6, activation="relu")
    tower = keras.Model([a_in, b_in], [k.Add()([hidden(a_in), hidden(b_in)]), hidden(b_in)])
    a, b = keras.Input(FLAT, name="a"), keras.Input(FLAT, name="b")
    first, second = tower([a, b])
    third, fourth = tower([b, a])
    return keras.Model([a, b], [k.Concatenate()([first, fourth]), k.Add()([second, third])])


def two_outputs() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(IMAGE, name="x")
    y = k.Conv2D(4, 3)(x)
    dropped = k.Dropout(0.2)(y)
    return keras.Model(x, [k.Dense(3)(k.Flatten()(dropped)), dropped, y])


def strange_names() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(FLAT, name="my input")
    y = k.Dense(5, name="block 1-dense")(x)
    y = k.Dense(5, name="block_1_dense")(y)
    return keras.Model(x, k.Dense(3, name="출력")(y))


def input_is_output() -> Any:
    import keras

    x = keras.Input(FLAT, name="x")
    return keras.Model(x, [x, keras.layers.Dense(2)(x)])


def custom() -> Any:
    import keras

    @keras.saving.register_keras_serializable("mine")
    class Doubled(keras.layers.Dense):
        def call(self, x: Any) -> Any:
            return 2 * super().call(x)

    return keras.Sequential([keras.Input(FLAT, name="x"), Doubled(3)])


def nan_weight() -> Any:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input(FLAT, name="x"), keras.layers.Dense(3, name="broken")])
    model.layers[-1].bias.assign(np.array([1, np.nan, 2], "float32"))
    return model


def two_states() -> Any:
    import keras
    from keras import layers as k

    steps = keras.Input(STEPS, name="x")
    sequence, _, state = k.LSTM(4, return_state=True, return_sequences=True, name="memory")(steps)
    return keras.Model(steps, [k.Flatten()(sequence), k.Dense(2)(state)])


def split() -> Any:
    import keras

    x = keras.Input((8,), name="x")
    first, second = keras.ops.split(x, 2, axis=1)
    return keras.Model(x, keras.layers.Add()([first, second]))


def nested_state() -> Any:
    """The nested model's second output is the third output of a layer inside."""
    import keras
    from keras import layers as k

    steps = keras.Input(STEPS, name="s")
    last, _, state = k.LSTM(4, return_state=True, name="memory")(steps)
    inside = keras.Model(steps, [last, state], name="inside")
    x = keras.Input(STEPS, name="x")
    return keras.Model(x, k.Dense(2)(inside(x)[1]))


def several_reasons() -> Any:
    import keras
    from keras import layers as k

    return keras.Sequential(
        [
            keras.Input((4, 4, 3), name="x"),
            k.UpSampling2D(2, interpolation="bicubic", name="up"),
            k.Reshape((8, 8, 3)),
            k.ConvLSTM1D(3, 2, padding="same", return_sequences=True, name="conv"),
            k.BatchNormalization(),
            k.Lambda(lambda x: x * x, name="code"),
        ]
    )
