"""Preprocessing layers inside a model: scaling, resizing, categories, augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.targets.tfjs_parts import (
    TENSOR,
    Chain,
    Config,
    Part,
    Refused,
    Rule,
    Site,
    custom,
    numbers,
    operator,
    rescaling,
    short,
)
from packager.targets.tfjs_shapes import Shape

# Layers that do nothing at inference.
IDENTITIES = (
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout"),
    *("GaussianDropout", "GaussianNoise", "ActivityRegularization", "Identity"),
    *("AugMix", "CutMix", "MixUp", "RandAugment", "Equalization", "Solarization"),
    *("MaxNumBoundingBoxes", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter"),
    *("RandomContrast", "RandomCrop", "RandomElasticTransform", "RandomErasing", "RandomFlip"),
    *("RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
    *("RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
    *("RandomShear", "RandomTranslation", "RandomZoom"),
    "ContrastLimitedAdaptiveHistogramEqualization",
)


def _identity(_site: Site) -> Chain:
    return ()


def _rescaling(site: Site) -> Chain:
    return (rescaling(numbers(site.config["scale"]), numbers(site.config["offset"])),)


def _normalization(site: Site) -> Chain:
    config, rank = site.config, len(site.shape)
    axes = config["axis"]
    mean, variance = (
        np.asarray(site.weights[key] if key in site.weights else numbers(config[key]))
        for key in ("mean", "variance")
    )
    # Keras computes (x - mean) / max(sqrt(variance), epsilon). Two steps keep its order of
    # operations: one multiplication and addition would cancel digits when the mean is large.
    deviation = np.maximum(np.sqrt(variance.astype(np.float32)), np.float32(1e-7))
    mean, inverse = mean.astype(np.float32), 1.0 / deviation.astype(np.float64)
    listed = [axes] if isinstance(axes, int) else list(axes or [])
    if [axis % rank for axis in listed] not in ([], [rank - 1]):
        return _broadcast_normalization(config, mean, deviation, listed, rank)
    mean, deviation, inverse = mean.ravel(), deviation.ravel(), inverse.ravel()
    if config.get("invert"):
        return (rescaling(short(deviation), 0.0), rescaling(1.0, short(mean)))
    return (rescaling(1.0, short(-mean)), rescaling(short(inverse), 0.0))


def _broadcast_normalization(
    config: Config,
    mean: np.ndarray[Any, Any],
    deviation: np.ndarray[Any, Any],
    axes: list[int],
    rank: int,
) -> Chain:
    """Normalises other axes than the last: Rescaling has one number per channel only."""
    kept = sorted(axis % rank for axis in axes)
    sizes = iter(mean.squeeze().shape if mean.squeeze().ndim == len(kept) else mean.shape)
    shape = [next(sizes) if i in kept else 1 for i in range(rank)]
    mean, deviation = mean.reshape(shape), deviation.reshape(shape)
    weight = {"weight": "values"}
    if config.get("invert"):
        return (
            operator("mul", TENSOR, weight, weights={"values": deviation}),
            operator("add", TENSOR, weight, weights={"values": mean}),
        )
    return (
        operator("sub", TENSOR, weight, weights={"values": mean}),
        operator("div", TENSOR, weight, weights={"values": deviation}),
    )


def _image(shape: Shape) -> tuple[int, int]:
    if len(shape) != 4 or shape[1] is None or shape[2] is None:
        raise Refused("its images have a free size", "give the input a fixed height and width")
    return shape[1], shape[2]


def _resizing(site: Site) -> Chain:
    config = site.config
    method, wanted = config["interpolation"], (config["height"], config["width"])
    if method not in ("bilinear", "nearest") or config.get("antialias"):
        raise Refused(
            f"TF.js does not resize with interpolation={method!r}, antialias="
            f"{bool(config.get('antialias'))}",
            "use bilinear or nearest without antialias",
        )
    if site.output.dtype not in ("float32", "float16", "bfloat16"):
        raise Refused("TF.js resizes to float32, the layer to integers", "use dtype='float32'")
    settings: Config = {"method": method, "size": list(wanted)}
    if config.get("crop_to_aspect_ratio"):
        settings["crop"] = _crop_box(_image(site.shape), wanted)
    if config.get("pad_to_aspect_ratio"):
        if config.get("fill_mode", "constant") != "constant":
            raise Refused("TF.js pads with one value here", "use fill_mode='constant'")
        settings["pad"] = _pad_box(_image(site.shape), wanted)
        settings["fill"] = config.get("fill_value", 0.0)
    return (custom("Resize", settings, outputs=[site.output.shape]),)


def _crop_box(image: tuple[int, int], wanted: tuple[int, int]) -> list[int]:
    """Top, left, height and width of what Keras cuts out, in its arithmetic of floats."""
    height, width = image
    crop_height = max(min(height, _scaled(width, wanted[0], wanted[1])), 1)
    crop_width = max(min(width, _scaled(height, wanted[1], wanted[0])), 1)
    return [(height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width]


def _scaled(size: int, times: int, by: int) -> int:
    return int(np.float32(size * times) / np.float32(by))


def _pad_box(image: tuple[int, int], wanted: tuple[int, int]) -> list[list[int]]:
    """Rows and columns that Keras adds: as many before as after, an odd one is left out."""
    height, width = image
    top = (max(height, _scaled(width, wanted[0], wanted[1])) - height) // 2
    left = (max(width, _scaled(height, wanted[1], wanted[0])) - width) // 2
    return [[top, top], [left, left]]


def _center_crop(site: Site) -> Chain:
    height, width = _image(site.shape)
    wanted = (site.config["height"], site.config["width"])
    if height >= wanted[0] and width >= wanted[1]:
        top, left = (height - wanted[0]) // 2, (width - wanted[1]) // 2
        bottom, right = height - wanted[0] - top, width - wanted[1] - left
        return (Part("Cropping2D", {"cropping": [[top, bottom], [left, right]]}),)
    settings = {
        "method": "bilinear",
        "size": list(wanted),
        "crop": _crop_box((height, width), wanted),
    }
    return (custom("Resize", settings, outputs=[site.output.shape]),)


def _auto_contrast(site: Site) -> Chain:
    low, high = site.config["value_range"]
    return (custom("AutoContrast", {"low": low, "high": high}),)


_MODES = {"int": "int", "one_hot": "oneHot", "multi_hot": "multiHot", "count": "count"}


def _encoding(site: Site, depth: int) -> Config:
    mode = _MODES.get(site.config["output_mode"])
    if mode is None or site.config.get("sparse"):
        raise Refused(
            f"TF.js has no output_mode={site.config['output_mode']!r} here, or no sparse output",
            "use one_hot, multi_hot or count, dense",
        )
    return {"mode": mode, "depth": depth}


def _category_encoding(site: Site) -> Chain:
    settings = _encoding(site, site.config["num_tokens"])
    return (custom("CategoryEncoding", settings, outputs=[site.output.shape]),)


def _discretization(site: Site) -> Chain:
    boundaries = site.config.get("bin_boundaries")
    if boundaries is None:
        raise Refused("its bins are not known", "adapt it, or give bin_boundaries")
    settings = _encoding(site, len(boundaries) + 1)
    weights = {"boundaries": np.asarray(boundaries, np.float32)}
    return (custom("Discretization", settings, weights, outputs=[site.output.shape]),)


def _integer_lookup(site: Site) -> Chain:
    config = site.config
    listed = config.get("vocabulary")
    if config.get("invert") or config.get("num_oov_indices", 1) > 1 or not listed:
        raise Refused(
            "TF.js has no such look-up: inverted, with hashed unknown values, or of a file",
            "use num_oov_indices=1 and a vocabulary of integers",
        )
    has_mask = config.get("mask_token") is not None
    unknown = config.get("num_oov_indices", 1)
    mode = config["output_mode"]
    # Keras leaves the mask token's place out of encodings.
    offset = (1 if has_mask and mode == "int" else 0) + unknown
    if has_mask and mode != "int":
        raise Refused("TF.js encodes no mask token here", "use mask_token=None")
    settings = _encoding(site, len(listed) + offset)
    settings |= {"offset": offset, "unknown": offset - 1 if unknown else -1}
    weights = {"vocabulary": np.asarray(listed, np.int32)}
    if has_mask:
        raise Refused("TF.js looks up no mask token here", "use mask_token=None")
    return (custom("IntegerLookup", settings, weights, outputs=[site.output.shape]),)


def _pipeline(site: Site) -> Chain:
    """Its layers one after another, as far as they need no shapes."""
    chain: list[Part] = []
    for described in site.config["layers"]:
        if described["class_name"] not in (*IDENTITIES, "Rescaling", "AutoContrast"):
            raise Refused(
                f"TF.js has no Pipeline with {described['class_name']}",
                "put its layers into the model one by one",
            )
        chain += site.inner(
            site.with_layer(
                class_name=described["class_name"],
                config=described["config"],
                module=described.get("module") or "",
            )
        )
    return tuple(chain)


PREPROCESSING_RULES: dict[str, Rule] = {
    **dict.fromkeys(IDENTITIES, _identity),
    "Rescaling": _rescaling,
    "Normalization": _normalization,
    "Resizing": _resizing,
    "CenterCrop": _center_crop,
    "AutoContrast": _auto_contrast,
    "CategoryEncoding": _category_encoding,
    "Discretization": _discretization,
    "IntegerLookup": _integer_lookup,
    "Pipeline": _pipeline,
}
