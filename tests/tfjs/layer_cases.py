"""One-layer models: every class of keras.layers in the configurations that matter for TF.js."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from whole_models import FLAT, IMAGE, STEPS, Case, one

VOLUME = (5, 6, 4, 3)


def layer_cases() -> Iterator[Case]:
    yield from convolutions()
    yield from transposed()
    yield from norms_and_dense()
    yield from activations()
    yield from pooling()
    yield from shapes()
    yield from identities()
    yield from merges()
    yield from attention()
    yield from preprocessing()
    yield from not_said()


def convolutions() -> Iterator[Case]:
    from keras import layers as k

    yield one("conv1d", STEPS, lambda: k.Conv1D(5, 3, strides=2, activation="relu"))
    yield one("conv1d_same_dilated", STEPS, lambda: k.Conv1D(5, 3, padding="same", dilation_rate=2))
    yield one("conv1d_causal", STEPS, lambda: k.Conv1D(5, 3, padding="causal", dilation_rate=2))
    yield one("conv1d_groups", STEPS, lambda: k.Conv1D(6, 3, groups=3, activation="tanh"))
    yield one("conv1d_causal_groups", STEPS, lambda: k.Conv1D(6, 3, padding="causal", groups=2))
    yield one("conv2d", IMAGE, lambda: k.Conv2D(5, 3, strides=2, padding="same", activation="elu"))
    yield one("conv2d_dilated", IMAGE, lambda: k.Conv2D(5, (3, 2), dilation_rate=2, use_bias=False))
    yield one("conv2d_uneven", IMAGE, lambda: k.Conv2D(5, (2, 3), strides=(1, 2), padding="same"))
    yield one("conv2d_softmax", IMAGE, lambda: k.Conv2D(5, 2, activation="softmax"))
    yield one("conv2d_grouped", IMAGE, lambda: k.Conv2D(8, 3, groups=4, padding="same"))
    yield one("conv2d_groups_2", IMAGE, lambda: k.Conv2D(8, 3, groups=2, activation="relu"))
    yield one("conv2d_groups_dilated", IMAGE, lambda: k.Conv2D(8, 3, groups=4, dilation_rate=2))
    yield one("conv3d", VOLUME, lambda: k.Conv3D(4, 2, strides=2))
    yield one("conv3d_same", VOLUME, lambda: k.Conv3D(4, (3, 2, 1), padding="same"))
    yield one("conv3d_dilated", VOLUME, lambda: k.Conv3D(4, 2, dilation_rate=2))
    yield one("conv3d_groups", VOLUME, lambda: k.Conv3D(6, 2, groups=3, strides=2))
    yield one(
        "conv3d_groups_dilated",
        VOLUME,
        lambda: k.Conv3D(6, 2, groups=3, dilation_rate=2, padding="same", activation="relu"),
    )
    yield one("depthwise", IMAGE, lambda: k.DepthwiseConv2D(3, depth_multiplier=2, strides=2))
    yield one("depthwise_same", IMAGE, lambda: k.DepthwiseConv2D(3, padding="same", use_bias=False))
    yield one("depthwise_dilated", IMAGE, lambda: k.DepthwiseConv2D(3, dilation_rate=2))
    yield one("depthwise_uneven", IMAGE, lambda: k.DepthwiseConv2D((3, 2), padding="same"))
    yield one("depthwise_1d", STEPS, lambda: k.DepthwiseConv1D(3, depth_multiplier=2, strides=2))
    yield one(
        "depthwise_1d_same",
        STEPS,
        lambda: k.DepthwiseConv1D(3, padding="same", activation="relu6"),
    )
    yield one(
        "separable",
        IMAGE,
        lambda: k.SeparableConv2D(6, 3, padding="same", depth_multiplier=2, activation="tanh"),
    )
    yield one("separable_dilated", IMAGE, lambda: k.SeparableConv2D(6, 3, dilation_rate=2))
    yield one("separable_strided", IMAGE, lambda: k.SeparableConv2D(6, 3, strides=2))
    yield one("separable_1d", STEPS, lambda: k.SeparableConv1D(4, 3))
    yield one(
        "separable_1d_dilated",
        STEPS,
        lambda: k.SeparableConv1D(4, 3, padding="same", dilation_rate=2, activation="gelu"),
    )
    yield one("separable_1d_strided", STEPS, lambda: k.SeparableConv1D(4, 3, strides=2))


def transposed() -> Iterator[Case]:
    from keras import layers as k

    yield one("transpose", IMAGE, lambda: k.Conv2DTranspose(3, 3, strides=2, padding="same"))
    yield one("transpose_valid", IMAGE, lambda: k.Conv2DTranspose(3, 2, strides=3))
    yield one("transpose_relu", IMAGE, lambda: k.Conv2DTranspose(3, 3, activation="relu"))
    yield one(
        "transpose_output_padding",
        IMAGE,
        lambda: k.Conv2DTranspose(3, 3, strides=2, output_padding=1),
    )
    yield one(
        "transpose_same_padding",
        IMAGE,
        lambda: k.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=0),
    )
    yield one("transpose_1d", STEPS, lambda: k.Conv1DTranspose(4, 3, strides=2))
    yield one(
        "transpose_1d_same",
        STEPS,
        lambda: k.Conv1DTranspose(4, 3, strides=2, padding="same", activation="swish"),
    )
    yield one("transpose_3d", VOLUME, lambda: k.Conv3DTranspose(2, 2, strides=2))
    yield one("transpose_3d_same", VOLUME, lambda: k.Conv3DTranspose(2, 3, padding="same"))
    yield one(
        "transpose_3d_padding",
        VOLUME,
        lambda: k.Conv3DTranspose(2, 3, strides=(2, 1, 2), output_padding=(1, 0, 1)),
    )


def norms_and_dense() -> Iterator[Case]:
    from keras import layers as k

    yield one("dense", FLAT, lambda: k.Dense(6, activation="selu"))
    yield one("dense_on_steps", STEPS, lambda: k.Dense(6, use_bias=False))
    yield one("dense_on_image", IMAGE, lambda: k.Dense(6, activation="relu"))
    yield one("einsum_dense", STEPS, lambda: k.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"))
    yield one(
        "einsum_dense_heads",
        STEPS,
        lambda: k.EinsumDense("abc,cde->abde", (None, 3, 2), bias_axes="de", activation="relu"),
    )
    yield one("einsum_dense_ellipsis", IMAGE, lambda: k.EinsumDense("...x,xy->...y", 5))
    yield one("einsum_dense_mixed", STEPS, lambda: k.EinsumDense("abc,bd->adc", (4, 6)))
    yield one("batch_norm", IMAGE, lambda: k.BatchNormalization(epsilon=0.01))
    yield one("batch_norm_axis_3", IMAGE, lambda: k.BatchNormalization(axis=3))
    yield one("batch_norm_plain", FLAT, lambda: k.BatchNormalization(center=False, scale=False))
    yield one("batch_norm_steps", STEPS, lambda: k.BatchNormalization(scale=False))
    yield one("batch_norm_axis_1", IMAGE, lambda: k.BatchNormalization(axis=1))
    yield one("batch_norm_axis_1_plain", IMAGE, lambda: k.BatchNormalization(axis=1, scale=False))
    yield one("batch_norm_3d", VOLUME, lambda: k.BatchNormalization())
    yield one("layer_norm", STEPS, lambda: k.LayerNormalization())
    yield one("layer_norm_axes", IMAGE, lambda: k.LayerNormalization(axis=[1, 2], epsilon=0.1))
    yield one("layer_norm_plain", STEPS, lambda: k.LayerNormalization(center=False, scale=False))
    yield one("layer_norm_3d", VOLUME, lambda: k.LayerNormalization())
    yield one("rms_norm", STEPS, lambda: k.RMSNormalization())
    yield one("group_norm", IMAGE, lambda: k.GroupNormalization(2))
    yield one("group_norm_instance", IMAGE, lambda: k.GroupNormalization(-1, epsilon=0.1))
    yield one("group_norm_axis_1", IMAGE, lambda: k.GroupNormalization(3, axis=1))
    yield one("group_norm_plain", STEPS, lambda: k.GroupNormalization(3, center=False, scale=False))
    yield one("unit_norm", STEPS, lambda: k.UnitNormalization())
    yield one("unit_norm_axis_1", STEPS, lambda: k.UnitNormalization(axis=1))
    yield one("spectral_norm", IMAGE, lambda: k.SpectralNormalization(k.Conv2D(4, 3)))
    yield one("spectral_norm_dense", FLAT, lambda: k.SpectralNormalization(k.Dense(4)))
    yield one("batch_norm_masked", STEPS, lambda: Masked(k.BatchNormalization()))
    yield one("multiply_masked", STEPS, lambda: MaskedProduct(), "mask")
    yield one("embedding_computed", (6,), lambda: Embedded(20))
    yield one("reversible_embedding", (6,), lambda: Reversed(tie_weights=True))
    yield one("reversible_untied", (6,), lambda: Reversed(tie_weights=False, logit_soft_cap=2.0))


class Masked:
    """A layer behind Masking."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> Any:
        from keras import layers as k

        return self.layer(k.Masking(0.0)(k.ReLU(threshold=0.8)(x)))


class MaskedProduct:
    """Multiply puts ones where its inputs are masked."""

    def __call__(self, x: Any) -> Any:
        from keras import layers as k

        return k.Multiply()([Masked(lambda y: y)(x), x])


class Embedded:
    """An Embedding of the input's absolute values as numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, x: Any) -> Any:
        import keras

        ids = keras.ops.cast(keras.ops.clip(keras.ops.abs(x * 5), 0, self.size - 1), "int32")
        return keras.layers.Embedding(self.size, 3)(ids)


class Reversed:
    """A ReversibleEmbedding, forth and back."""

    def __init__(self, **config: Any) -> None:
        self.config = config

    def __call__(self, x: Any) -> Any:
        import keras

        ids = keras.ops.cast(keras.ops.clip(keras.ops.abs(x * 5), 0, 8), "int32")
        layer = keras.layers.ReversibleEmbedding(9, 4, **self.config)
        return layer(layer(ids), reverse=True)


NAMES = (
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu"),
    *("hard_swish", "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish"),
    *("relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus", "softsign"),
    *("sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "swish", "tanh", "tanh_shrink"),
)


def activations() -> Iterator[Case]:
    from keras import layers as k

    for name in NAMES:
        yield one(f"activation_{name}", STEPS, lambda name=name: k.Activation(name))
    for name in ("hard_sigmoid", "hard_silu", "silu", "gelu", "leaky_relu", "celu", "mish"):
        yield one(f"dense_{name}", FLAT, lambda name=name: k.Dense(6, activation=name))
        yield one(f"conv2d_{name}", IMAGE, lambda name=name: k.Conv2D(4, 3, activation=name))
    yield one("dense_lambda", FLAT, lambda: k.Dense(6, activation=squared), "as a function")
    yield one("relu", IMAGE, lambda: k.ReLU())
    yield one("relu_max", IMAGE, lambda: k.ReLU(max_value=1.5))
    yield one("relu_slope", IMAGE, lambda: k.ReLU(negative_slope=0.3))
    yield one("relu_threshold", IMAGE, lambda: k.ReLU(threshold=0.4))
    yield one("relu_max_slope", IMAGE, lambda: k.ReLU(max_value=1, negative_slope=0.1))
    yield one("relu_all", IMAGE, lambda: k.ReLU(max_value=1, negative_slope=0.1, threshold=0.2))
    yield one("leaky_relu", IMAGE, lambda: k.LeakyReLU(negative_slope=0.1))
    yield one("leaky_relu_default", IMAGE, lambda: k.LeakyReLU())
    yield one("elu", IMAGE, lambda: k.ELU())
    yield one("elu_alpha", IMAGE, lambda: k.ELU(alpha=0.5))
    yield one("prelu", IMAGE, lambda: k.PReLU(shared_axes=[1, 2]))
    yield one("prelu_full", STEPS, lambda: k.PReLU())
    yield one("softmax", STEPS, lambda: k.Softmax())
    yield one("softmax_axis_1", STEPS, lambda: k.Softmax(axis=1))
    yield one("softmax_axis_1_image", IMAGE, lambda: k.Softmax(axis=-2))
    yield one("softmax_axes", IMAGE, lambda: k.Softmax(axis=(1, 2)), "Softmax")


def squared(x: Any) -> Any:
    return x * x


def pooling() -> Iterator[Case]:
    from keras import layers as k

    for kind in ("Max", "Average"):
        for n, shape in ((1, STEPS), (2, IMAGE), (3, VOLUME)):
            layer = getattr(k, f"{kind}Pooling{n}D")
            yield one(f"{kind}_pool_{n}d", shape, lambda layer=layer: layer(2))
            yield one(
                f"{kind}_pool_{n}d_same", shape, lambda layer=layer: layer(3, 2, padding="same")
            )
            layer = getattr(k, f"Global{kind}Pooling{n}D")
            yield one(f"global_{kind}_{n}d", shape, lambda layer=layer: layer())
            yield one(f"global_{kind}_{n}d_kept", shape, lambda layer=layer: layer(keepdims=True))
            layer = getattr(k, f"Adaptive{kind}Pooling{n}D")
            yield one(f"adaptive_{kind}_{n}d", shape, lambda layer=layer: layer(2))
    yield one("adaptive_uneven", IMAGE, lambda: k.AdaptiveAveragePooling2D((4, 3)))
    yield one("global_average_masked", STEPS, lambda: Masked(k.GlobalAveragePooling1D()))


def shapes() -> Iterator[Case]:
    from keras import layers as k

    yield one("flatten", IMAGE, lambda: k.Flatten())
    yield one("reshape", IMAGE, lambda: k.Reshape((-1, 16)))
    yield one("reshape_flat", IMAGE, lambda: k.Reshape((288,)))
    yield one("permute", IMAGE, lambda: k.Permute((3, 1, 2)))
    yield one("repeat", FLAT, lambda: k.RepeatVector(3))
    yield one("zero_padding_1d", STEPS, lambda: k.ZeroPadding1D((1, 2)))
    yield one("zero_padding", IMAGE, lambda: k.ZeroPadding2D(((1, 2), (0, 3))))
    yield one("zero_padding_3d", VOLUME, lambda: k.ZeroPadding3D(((1, 2), (0, 3), (2, 1))))
    yield one("cropping_1d", STEPS, lambda: k.Cropping1D((1, 2)))
    yield one("cropping", IMAGE, lambda: k.Cropping2D(((1, 2), (0, 3))))
    yield one("cropping_3d", VOLUME, lambda: k.Cropping3D(((1, 2), (0, 3), (2, 1))))
    yield one("up_sampling_1d", STEPS, lambda: k.UpSampling1D(3))
    yield one("up_sampling", IMAGE, lambda: k.UpSampling2D((2, 3)))
    yield one("up_bilinear", IMAGE, lambda: k.UpSampling2D((2, 3), interpolation="bilinear"))
    yield one("up_bicubic", IMAGE, lambda: k.UpSampling2D(2, interpolation="bicubic"), "bicubic")
    yield one("up_sampling_3d", VOLUME, lambda: k.UpSampling3D((2, 1, 3)))
    yield one("masking", STEPS, lambda: Masked(lambda x: x))
    yield one(
        "channels_first",
        IMAGE,
        lambda: k.ZeroPadding2D(1, data_format="channels_first"),
        "data_form",
    )


def identities() -> Iterator[Case]:
    from keras import layers as k

    for name, layer in (
        ("dropout", lambda: k.Dropout(0.5)),
        ("spatial_dropout_2d", lambda: k.SpatialDropout2D(0.5)),
        ("gaussian_noise", lambda: k.GaussianNoise(0.5)),
        ("gaussian_dropout", lambda: k.GaussianDropout(0.5)),
        ("alpha_dropout", lambda: k.AlphaDropout(0.5)),
        ("activity", lambda: k.ActivityRegularization(0.5)),
        ("identity", lambda: k.Identity()),
        ("random_flip", lambda: k.RandomFlip()),
        ("random_rotation", lambda: k.RandomRotation(0.2)),
        ("random_contrast", lambda: k.RandomContrast(0.2)),
        ("random_brightness", lambda: k.RandomBrightness(0.2)),
        ("random_translation", lambda: k.RandomTranslation(0.2, 0.2)),
        ("random_zoom", lambda: k.RandomZoom(0.2)),
    ):
        yield Case(name, lambda layer=layer: noisy(layer(), (9, 8, 4)))
    for name in (
        *("AugMix", "CutMix", "MixUp", "RandAugment", "Solarization"),
        *("RandomColorDegeneration", "RandomColorJitter", "RandomElasticTransform"),
        *("RandomErasing", "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert"),
        *("RandomPerspective", "RandomSaturation", "RandomSharpness"),
        "RandomShear",
    ):
        yield Case(name, lambda name=name: noisy(augmentation(name), (9, 8, 3)))
    yield Case("posterization", lambda: noisy(k.RandomPosterization(4), (9, 8, 3)))
    yield one("spatial_dropout_1d", STEPS, lambda: k.SpatialDropout1D(0.5))
    yield one("spatial_dropout_3d", VOLUME, lambda: k.SpatialDropout3D(0.5))
    yield one("random_crop", IMAGE, lambda: k.RandomCrop(9, 8))


def augmentation(name: str) -> Any:
    import inspect

    import keras

    layer = getattr(keras.layers, name)
    known = {
        "value_range": (0, 1),
        "factor": 0.2,
        "x_factor": 0.2,
        "y_factor": 0.2,
        "brightness_factor": 0.2,
    }
    taken = inspect.signature(layer.__init__).parameters
    return layer(**{key: value for key, value in known.items() if key in taken})


def noisy(layer: Any, shape: tuple[int, ...]) -> Any:
    import keras

    inputs = keras.Input(shape, name="x")
    x = keras.layers.Conv2D(shape[-1], 3)(inputs)
    return keras.Model(inputs, keras.layers.Conv2D(3, 2)(layer(x)))


def merges() -> Iterator[Case]:
    from keras import layers as k

    for name in ("Add", "Multiply", "Average", "Maximum", "Minimum", "Subtract"):
        yield Case(name.lower(), lambda name=name: merged(getattr(k, name)()))
    yield Case("concatenate", lambda: merged(k.Concatenate(axis=1)))
    yield Case("concatenate_last", lambda: merged(k.Concatenate()))
    yield Case("dot", lambda: merged(k.Dot(axes=2), STEPS))
    yield Case("dot_middle", lambda: merged(k.Dot(axes=1), STEPS))
    yield Case("dot_normalized", lambda: merged(k.Dot(axes=(1, 1), normalize=True), FLAT))
    yield Case("add_three", lambda: three(k.Add()))
    yield Case("add_ranks", lambda: ranks(k.Add()), "one rank")
    yield Case("broadcast", broadcast)


def merged(layer: Any, shape: tuple[int, ...] = IMAGE) -> Any:
    import keras

    a, b = keras.Input(shape, name="a"), keras.Input(shape, name="b")
    return keras.Model([b, a], layer([a, b]))


def three(layer: Any) -> Any:
    import keras

    ends = [keras.Input(IMAGE, name=name) for name in "abc"]
    return keras.Model(ends, layer(ends))


def ranks(layer: Any) -> Any:
    import keras

    a, b = keras.Input(STEPS, name="a"), keras.Input((6,), name="b")
    return keras.Model([a, b], layer([a, b]))


def broadcast() -> Any:
    import keras

    x = keras.Input(IMAGE, name="x")
    gate = keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = keras.layers.Conv2D(4, 1, activation="sigmoid")(gate)
    y = keras.layers.Multiply()([x, gate])
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.Flatten()(y)))


def attention() -> Iterator[Case]:
    from keras import layers as k

    yield Case("mha", lambda: attends(k.MultiHeadAttention(2, 3)))
    yield Case("mha_key", lambda: attends(k.MultiHeadAttention(2, 3, value_dim=4), key=True))
    yield Case(
        "mha_causal", lambda: attends(k.MultiHeadAttention(2, 3), use_causal_mask=True, itself=True)
    )
    yield Case("mha_no_bias", lambda: attends(k.MultiHeadAttention(2, 3, use_bias=False)))
    yield Case("mha_output", lambda: attends(k.MultiHeadAttention(2, 3, output_shape=5)))
    yield Case("mha_dropout", lambda: attends(k.MultiHeadAttention(2, 3, dropout=0.2)))
    yield Case("mha_window", lambda: attends(k.MultiHeadAttention(2, 3, sliding_window=2)))
    yield Case("mha_gate", lambda: attends(k.MultiHeadAttention(2, 3, use_gate=True)))
    yield Case("mha_masked", lambda: attends(k.MultiHeadAttention(2, 3), masked=True))
    yield Case(
        "mha_scores", lambda: attends(k.MultiHeadAttention(2, 3), return_attention_scores=True)
    )
    yield Case("mha_given_mask", given_mask)
    yield Case("mha_axes", lambda: attends_image(), "MultiHeadAttention")
    yield Case("gqa", lambda: attends(k.GroupQueryAttention(3, 4, 2)))
    yield Case("gqa_causal", lambda: attends(k.GroupQueryAttention(3, 4, 1), use_causal_mask=True))
    yield Case("attention", lambda: attends_list(k.Attention()))
    yield Case("attention_scaled", lambda: attends_list(k.Attention(use_scale=True), key=True))
    yield Case(
        "attention_concat", lambda: attends_list(k.Attention(score_mode="concat", use_scale=True))
    )
    yield Case("attention_causal", lambda: attends_list(k.Attention(), use_causal_mask=True))
    yield Case("attention_masked", lambda: attends_list(k.Attention(), masked=True))
    yield Case(
        "attention_scores", lambda: attends_list(k.Attention(), return_attention_scores=True)
    )
    yield Case("additive", lambda: attends_list(k.AdditiveAttention()))
    yield Case("additive_plain", lambda: attends_list(k.AdditiveAttention(use_scale=False)))


def ends(masked: bool) -> Any:
    import keras

    a, b = keras.Input(STEPS, name="a"), keras.Input((7, 6), name="b")
    return [a, b], [Masked(lambda x: x)(x) if masked else x for x in (a, b)]


def attends(
    layer: Any, *, key: bool = False, masked: bool = False, itself: bool = False, **call: Any
) -> Any:
    import keras

    inputs, (query, value) = ends(masked)
    value = query if itself else value
    further = {"key": keras.layers.Dense(6)(value)} if key else {}
    return keras.Model(inputs[: 1 if itself else 2], layer(query, value, **further, **call))


def attends_image() -> Any:
    import keras

    x = keras.Input(IMAGE, name="x")
    return keras.Model(x, keras.layers.MultiHeadAttention(2, 3, attention_axes=(1, 2))(x, x))


def given_mask() -> Any:
    import keras

    x, mask = keras.Input(STEPS, name="x"), keras.Input((11, 11), name="mask")
    layer = keras.layers.MultiHeadAttention(2, 3)
    return keras.Model([x, mask], layer(x, x, attention_mask=mask > 0.1))


def attends_list(layer: Any, *, key: bool = False, masked: bool = False, **call: Any) -> Any:
    import keras

    inputs, (query, value) = ends(masked)
    tensors = [query, value, keras.layers.Dense(6)(value)] if key else [query, value]
    return keras.Model(inputs, layer(tensors, **call))


def preprocessing() -> Iterator[Case]:
    from keras import layers as k

    yield one("normalization", IMAGE, lambda: adapted(axis=-1))
    yield one("normalization_scalar", IMAGE, lambda: adapted(axis=None))
    yield one("normalization_inverse", IMAGE, lambda: adapted(axis=-1, invert=True))
    yield one("normalization_axis_1", IMAGE, lambda: adapted(axis=1))
    yield one("normalization_axes", IMAGE, lambda: adapted(axis=(1, 3)))
    yield one(
        "normalization_given",
        FLAT,
        lambda: k.Normalization(mean=[1.0, 2, 3, 4, 5, 6, 7], variance=[2.0] * 7),
    )
    yield one("rescaling", IMAGE, lambda: k.Rescaling(1 / 127.5, offset=-1))
    yield one("rescaling_list", IMAGE, lambda: k.Rescaling([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]))
    yield one("resizing", IMAGE, lambda: k.Resizing(13, 5))
    yield one("resizing_smaller", IMAGE, lambda: k.Resizing(4, 3))
    yield one("resizing_nearest", IMAGE, lambda: k.Resizing(13, 5, "nearest"))
    yield one("resizing_crop", IMAGE, lambda: k.Resizing(12, 5, crop_to_aspect_ratio=True))
    yield one("resizing_pad", IMAGE, lambda: k.Resizing(12, 5, pad_to_aspect_ratio=True))
    yield one("resizing_bicubic", IMAGE, lambda: k.Resizing(12, 5, "bicubic"), "bicubic")
    yield one("resizing_antialias", IMAGE, lambda: k.Resizing(4, 3, antialias=True), "antialias")
    yield one("center_crop", IMAGE, lambda: k.CenterCrop(4, 5))
    yield one("center_crop_larger", IMAGE, lambda: k.CenterCrop(12, 5))
    yield one("auto_contrast", (9, 8, 3), lambda: k.AutoContrast(value_range=(0, 1)))
    yield one("pipeline", IMAGE, lambda: k.Pipeline([k.Rescaling(2.0), k.RandomFlip()]))
    for mode in ("one_hot", "multi_hot", "count"):
        yield one(
            f"category_{mode}",
            (6,) if mode != "one_hot" else (1,),
            lambda mode=mode: Whole(k.CategoryEncoding(9, output_mode=mode)),
        )
    yield Case("category_weights", weighted_count)
    for mode in ("int", "one_hot", "multi_hot", "count"):
        yield one(
            f"discretization_{mode}",
            (6,) if mode != "one_hot" else (1,),
            lambda mode=mode: k.Discretization([-1.0, 0.0, 0.5, 1.5], output_mode=mode),
        )
    yield one("max_boxes", IMAGE, lambda: k.MaxNumBoundingBoxes(3))
    yield one("stft", (64, 1), lambda: k.STFTSpectrogram(frame_length=16), "STFTSpectrogram")
    yield one("mel", (600,), lambda: k.MelSpectrogram(fft_length=64), "MelSpectrogram")
    yield one("integer_lookup", (6,), lambda: Whole(k.IntegerLookup(vocabulary=[3, 1, 7])))


class Whole:
    """A layer on whole numbers made of the input."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> Any:
        import keras

        return self.layer(keras.ops.cast(keras.ops.clip(keras.ops.abs(x * 4), 0, 8), "int32"))


def weighted_count() -> Any:
    import keras

    x, weights = keras.Input((6,), dtype="int32", name="x"), keras.Input((6,), name="w")
    hot = keras.layers.CategoryEncoding(20, output_mode="count")
    return keras.Model([x, weights], hot(x, count_weights=weights))


def adapted(**config: Any) -> Any:
    import keras
    import numpy as np

    layer = keras.layers.Normalization(**config)
    layer.adapt(np.random.default_rng(5).normal(100.0, 3.0, (64, *IMAGE)).astype("float32"))
    return layer


def not_said() -> Iterator[Case]:
    """Layers that run code or hash text."""
    from keras import layers as k

    yield one("lambda", FLAT, lambda: k.Lambda(squared), "Lambda")
    yield one("hashing", (6,), lambda: Whole(k.Hashing(5)), "Hashing")
    yield Case("hashed_crossing", crossed, "HashedCrossing")


def crossed() -> Any:
    import keras

    a, b = (keras.Input((1,), dtype="int32", name=name) for name in "ab")
    return keras.Model([a, b], keras.layers.HashedCrossing(5)((a, b)))
