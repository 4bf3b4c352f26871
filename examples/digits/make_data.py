"""Splits the 5,000 MNIST digits of a source file into the example's three data sets.

    python make_data.py SOURCE.npz

The source is sorted by class, so the order is shuffled with a fixed seed first. An image that
occurs twice is kept once: no image can be in two of the sets.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SEED = 20261130
EVALUATION_COUNT = 1000
CALIBRATION_COUNT = 200
DATA = Path(__file__).resolve().parent / "data"


def without_duplicates(images: np.ndarray, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `images` uint8 [N, 28, 28] and `digits` uint8 [N] with equal images kept once."""
    _, first = np.unique(images.reshape(len(images), -1), axis=0, return_index=True)
    kept = np.sort(first)
    return images[kept], digits[kept]


def split(images: np.ndarray, digits: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the images and digits of each data set, by the name of its file."""
    images, digits = without_duplicates(images, digits)
    order = np.random.default_rng(SEED).permutation(len(images))
    ends = (EVALUATION_COUNT, EVALUATION_COUNT + CALIBRATION_COUNT)
    parts = np.split(order, ends)
    names = ("evaluation", "calibration", "train")
    return {name: (images[part], digits[part]) for name, part in zip(names, parts, strict=True)}


def main() -> None:
    """Writes `data/train.npz`, `data/calibration.npz` and `data/evaluation.npz`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="x: uint8 [N, 28, 28]; y: uint8 [N]")
    with np.load(parser.parse_args().source, allow_pickle=False) as source:
        sets = split(source["x"], source["y"])
    for name, (images, digits) in sets.items():
        np.savez_compressed(DATA / f"{name}.npz", x=images, y=digits)
        print(f"{name}.npz: {len(images)} digits, per class {np.bincount(digits).tolist()}")


if __name__ == "__main__":
    main()
