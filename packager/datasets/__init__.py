"""Calibration and evaluation sets: folders of images, `.npz`, `.npy`, `.csv`, Python functions."""

from packager.datasets.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
