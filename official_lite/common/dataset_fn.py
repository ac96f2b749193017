"""The dataset class for each file type, which reads what `core.file_writers` writes."""

import functools
from collections.abc import Callable

import tensorflow as tf

from official_lite.common import errors, suggestions

PossibleDatasetType = Callable[..., tf.data.Dataset]

# Maps each file type to TensorFlow's name for its compression. The value is None for Riegeli, whose
# dataset takes no such argument.
FILE_TYPES: dict[str, str | None] = {
    "tfrecord": "",
    "tfrecords": "",
    "tfrecord_compressed": "GZIP",
    "tfrecords_gzip": "GZIP",
    "riegeli": None,
}


def pick_dataset_fn(file_type: str) -> PossibleDatasetType:
    """Return a function that builds a dataset of serialized records from one or more files.

    Args:
        file_type: A key of `FILE_TYPES`, in any case.

    Raises:
        ConfigValueError: The file type is unknown, or Riegeli is not installed.
    """
    file_type = checked_file_type(file_type)
    if file_type == "riegeli":
        return _riegeli_dataset()
    compression_type = FILE_TYPES[file_type]
    if not compression_type:
        return tf.data.TFRecordDataset
    return functools.partial(tf.data.TFRecordDataset, compression_type=compression_type)


def checked_file_type(file_type: str) -> str:
    """Return `file_type` in lower case.

    Raises:
        ConfigValueError: The file type is unknown.
    """
    if file_type.lower() not in FILE_TYPES:
        raise errors.ConfigValueError(
            f"Unrecognized file_type: {file_type!r}. "
            f"{suggestions.did_you_mean(file_type, FILE_TYPES)}"
        )
    return file_type.lower()


def _riegeli_dataset() -> Callable[..., tf.data.Dataset]:
    # Import Riegeli only on request, because it is not on PyPI and rarely needed.
    try:
        from riegeli.tensorflow import RiegeliDataset
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "Reading `riegeli` files requires Riegeli with TensorFlow support; see "
            "https://github.com/google/riegeli. `tfrecord` files need no extra package."
        ) from error
    return RiegeliDataset
