"""Tiny files in the format of Fashion-MNIST."""

import gzip
import pathlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_IMAGES = {"train": 90, "t10k": 37}


def write(directory: pathlib.Path) -> None:
    """Write files with four classes: horizontal stripes, vertical ones, both, and none."""
    directory.mkdir()
    for name, num_images in NUM_IMAGES.items():
        rng = np.random.default_rng(len(name))
        labels = rng.integers(4, size=num_images, dtype=np.uint8)
        images = rng.integers(60, size=(num_images, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            if label & 1:
                image[::4] = 240
            if label & 2:
                image[:, ::4] = 240
        write_idx(directory / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(directory / f"{name}-labels-idx1-ubyte.gz", labels)


def write_idx(path: pathlib.Path, array: npt.NDArray[Any]) -> None:
    """Write an array of bytes as a compressed IDX file."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))
