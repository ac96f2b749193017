"""Reading and writing of weights as safetensors, the format of Hugging Face.

Requires the extra `safetensors`. A file maps names to arrays, in no order, and holds no code.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_lite.checkpoint import keras2_checkpoint
from official_lite.common import errors, files

__all__ = ["EXTENSION", "SafetensorsFile", "is_safetensors", "write"]

EXTENSION = ".safetensors"


def is_safetensors(path: str) -> bool:
    """Return whether a path names a safetensors file, by its extension."""
    return path.endswith(EXTENSION)


class SafetensorsFile:
    """A safetensors file, open for reading.

    Args:
        path: The file.

    Attributes:
        prefix: The path, under the name that a checkpoint has for it.
        metadata: The texts that the file holds beside the arrays.
        tensors: The names and shapes of the arrays.

    Raises:
        errors.CheckpointError: The file is missing or damaged.
        errors.ConfigValueError: The package `safetensors` is not installed.
    """

    def __init__(self, path: str) -> None:
        safetensors = _import()
        self.prefix = path
        try:
            self._file = safetensors.safe_open(path, framework="np")
        except FileNotFoundError as error:
            raise errors.CheckpointError(f"The file {path} does not exist.") from error
        except (safetensors.SafetensorError, OSError) as error:
            raise errors.CheckpointError(f"{path} is not a safetensors file: {error}.") from error
        self.metadata: Mapping[str, str] = self._file.metadata() or {}
        self.tensors = [
            keras2_checkpoint.Tensor(
                key=name, full_name=name, shape=tuple(self._file.get_slice(name).get_shape())
            )
            for name in sorted(self._file.keys())
        ]

    def read(self, tensor: keras2_checkpoint.Tensor) -> npt.NDArray[Any]:
        """Return the array of a tensor."""
        array: npt.NDArray[Any] = self._file.get_tensor(tensor.key)
        return array


def write(
    path: str,
    arrays: Sequence[tuple[str, npt.NDArray[Any]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a file atomically.

    Args:
        path: The file, which ends in `.safetensors`.
        arrays: Names and arrays.
        metadata: Further texts to store in the file.

    Raises:
        errors.ConfigValueError: The path has another extension, two arrays have the same name, or
            the package `safetensors` is not installed.
    """
    safetensors = _import()
    if not is_safetensors(path):
        raise errors.ConfigValueError(
            f"{path!r} is not a path for safetensors; expected a file that ends in {EXTENSION}."
        )
    names = [name for name, _ in arrays]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise errors.ConfigValueError(
            f"Several weights are named {', '.join(twice)}, but a safetensors file needs unique "
            "names. Give the layers of the model names of their own."
        )
    # A scalar may be a NumPy number.
    named = {name: np.asarray(array) for name, array in arrays}
    files.makedirs(os.path.dirname(path) or os.curdir)
    files.write_bytes(path, safetensors.numpy.save(named, metadata=dict(metadata or {})))


def _import() -> Any:
    if importlib.util.find_spec("safetensors") is None:
        raise errors.ConfigValueError(
            "Safetensors files need the package safetensors, which is not installed: pip install "
            "'official-lite[safetensors]'"
        )
    import safetensors
    import safetensors.numpy

    return safetensors
