"""One-layer models of recurrent layers and wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layer_cases import Masked
from whole_models import IMAGE, STEPS, Case, one

SEQUENCE_OF_IMAGES = (4, 6, 5, 3)


def recurrent_cases() -> Iterator[Case]:
    from keras import layers as k

    for name in ("SimpleRNN", "LSTM", "GRU"):
        layer = getattr(k, name)
        low = name.lower()
        yield one(low, STEPS, lambda layer=layer: layer(4))
        yield one(f"{low}_sequences", STEPS, lambda layer=layer: layer(4, return_sequences=True))
        yield one(
            f"{low}_backwards",
            STEPS,
            lambda layer=layer: layer(4, return_sequences=True, go_backwards=True, use_bias=False),
        )
        yield one(f"{low}_masked", STEPS, lambda layer=layer: Masked(layer(4)))
        yield one(
            f"{low}_masked_sequences",
            STEPS,
            lambda layer=layer: Masked(layer(4, return_sequences=True)),
        )
        yield one(
            f"{low}_zero_masked",
            STEPS,
            lambda layer=layer: Masked(
                layer(4, return_sequences=True, zero_output_for_mask=True, go_backwards=True)
            ),
        )
        yield Case(f"{low}_state", lambda layer=layer: with_states(layer))
        yield Case(f"{low}_initial", lambda layer=layer: with_initial_state(layer))
        yield one(
            f"{low}_bidirectional",
            STEPS,
            lambda layer=layer: k.Bidirectional(layer(4, return_sequences=True)),
        )
        yield one(
            f"{low}_bidirectional_last",
            STEPS,
            lambda layer=layer: k.Bidirectional(layer(4), merge_mode="sum"),
        )
        yield one(
            f"{low}_bidirectional_masked",
            STEPS,
            lambda layer=layer: Masked(k.Bidirectional(layer(4, return_sequences=True))),
        )
        yield one(
            f"{low}_relu", STEPS, lambda layer=layer: layer(4, activation="relu", unroll=True)
        )
    yield from gru_cases()
    yield from wrapper_cases()
    yield from cell_cases()


def gru_cases() -> Iterator[Case]:
    from keras import layers as k

    yield one("gru_before", STEPS, lambda: k.GRU(4, reset_after=False))
    yield one(
        "gru_before_masked",
        STEPS,
        lambda: Masked(k.GRU(4, reset_after=False, return_sequences=True)),
    )
    yield one("gru_no_bias", STEPS, lambda: k.GRU(4, use_bias=False))
    yield one("lstm_hard_sigmoid", STEPS, lambda: k.LSTM(4, recurrent_activation="hard_sigmoid"))
    yield one("gru_hard_silu", STEPS, lambda: k.GRU(4, activation="hard_silu"))
    yield one("lstm_dropout", STEPS, lambda: k.LSTM(4, dropout=0.3, recurrent_dropout=0.2))
    yield one("lstm_free_steps", (None, 6), lambda: k.LSTM(4))
    yield one("gru_free_steps", (None, 6), lambda: k.GRU(4, return_sequences=True))


def wrapper_cases() -> Iterator[Case]:
    from keras import layers as k

    yield one(
        "bidirectional_two",
        STEPS,
        lambda: k.Bidirectional(k.LSTM(4), backward_layer=k.GRU(4, go_backwards=True)),
    )
    for mode in ("mul", "ave", "concat"):
        yield one(
            f"bidirectional_{mode}",
            STEPS,
            lambda mode=mode: k.Bidirectional(k.GRU(4, return_sequences=True), merge_mode=mode),
        )
    yield one("bidirectional_none", STEPS, lambda: k.Bidirectional(k.LSTM(4), merge_mode=None))
    yield Case("bidirectional_state", bidirectional_state)
    yield one("time_dense", STEPS, lambda: k.TimeDistributed(k.Dense(4, activation="tanh")))
    yield one("time_conv", SEQUENCE_OF_IMAGES, lambda: k.TimeDistributed(k.Conv2D(4, 3)))
    yield one("time_pool", SEQUENCE_OF_IMAGES, lambda: k.TimeDistributed(k.MaxPooling2D()))
    yield one("time_flatten", SEQUENCE_OF_IMAGES, lambda: k.TimeDistributed(k.Flatten()))
    yield one("time_norm", SEQUENCE_OF_IMAGES, lambda: k.TimeDistributed(k.BatchNormalization()))
    yield one(
        "time_hard_silu", STEPS, lambda: k.TimeDistributed(k.Dense(4, activation="hard_silu"))
    )
    yield one("time_leaky", STEPS, lambda: k.TimeDistributed(k.Dense(4, activation="leaky_relu")))
    yield one("time_gru", SEQUENCE_OF_IMAGES[:-1], lambda: k.TimeDistributed(k.GRU(4)))
    yield one("time_pool_global", SEQUENCE_OF_IMAGES, lambda: k.TimeDistributed(pool()))
    yield one("time_free_norm", (None, 6), lambda: k.TimeDistributed(k.BatchNormalization()))
    yield one("time_free", (None, 6), lambda: k.TimeDistributed(k.Dense(4)))


def pool() -> Any:
    import keras

    return keras.layers.GlobalAveragePooling2D()


def cell_cases() -> Iterator[Case]:
    from keras import layers as k

    for name in ("SimpleRNNCell", "LSTMCell", "GRUCell"):
        cell = getattr(k, name)
        yield one(f"rnn_{name}", STEPS, lambda cell=cell: k.RNN(cell(4), return_sequences=True))
    yield one("rnn_stacked", STEPS, lambda: k.RNN([k.LSTMCell(4), k.GRUCell(3)]))
    yield one(
        "rnn_stacked_backwards",
        STEPS,
        lambda: k.RNN(
            k.StackedRNNCells([k.LSTMCell(4), k.SimpleRNNCell(3)]),
            return_sequences=True,
            go_backwards=True,
        ),
    )
    yield one("conv_lstm", SEQUENCE_OF_IMAGES, lambda: k.ConvLSTM2D(4, 3))
    yield one(
        "conv_lstm_sequences",
        SEQUENCE_OF_IMAGES,
        lambda: k.ConvLSTM2D(4, 3, padding="same", return_sequences=True, use_bias=False),
    )
    yield one(
        "conv_lstm_hard",
        SEQUENCE_OF_IMAGES,
        lambda: k.ConvLSTM2D(4, 3, recurrent_activation="hard_sigmoid"),
    )
    yield one("conv_lstm_1d", IMAGE, lambda: k.ConvLSTM1D(4, 3), "ConvLSTM1D")
    yield one("conv_lstm_3d", (3, 5, 6, 4, 2), lambda: k.ConvLSTM3D(3, 2), "ConvLSTM3D")


def with_states(layer: Any) -> Any:
    import keras

    x = keras.Input(STEPS, name="x")
    output, *states = layer(4, return_sequences=True, return_state=True)(x)
    return keras.Model(x, [output, *states])


def with_initial_state(layer: Any) -> Any:
    import keras

    x = keras.Input(STEPS, name="x")
    _, *states = layer(4, return_state=True)(x)
    return keras.Model(x, layer(4, return_sequences=True)(x, initial_state=states))


def bidirectional_state() -> Any:
    import keras
    from keras import layers as k

    x = keras.Input(STEPS, name="x")
    results = k.Bidirectional(k.LSTM(4, return_sequences=True, return_state=True))(x)
    return keras.Model(x, results)
