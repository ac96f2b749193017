"""A text file as numbers of characters."""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official_lite.common import errors
from official_lite.data import file_patterns

__all__ = ["Text", "load_text"]


class Text(NamedTuple):
    """A text and its alphabet.

    Attributes:
        characters: The characters that occur, each once, in the order of their code points.
        tokens: The index in `characters` of each character of the text.
    """

    characters: str
    tokens: np.ndarray


# Cached, because a trainer requests its data more than once.
@functools.lru_cache(maxsize=1)
def load_text(input_path: str) -> Text:
    """Read one or several texts and concatenate them.

    Raises:
        ConfigValueError: If no path is given.
        DataError: If a file is missing or is not UTF-8 text.
    """
    if not input_path:
        raise errors.ConfigValueError(
            "No text is configured. Set `task.input_path` to a text file, such as "
            "--set=task.input_path=/data/tinyshakespeare.txt."
        )
    text = "".join(_read(path) for path in file_patterns.match_files(input_path))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    characters, tokens = np.unique(points, return_inverse=True)
    dtype = np.uint8 if len(characters) <= 256 else np.int32
    return Text("".join(map(chr, characters)), tokens.astype(dtype))


def _read(path: str) -> str:
    try:
        # Line endings are not converted, so a Windows line ending counts as two characters.
        return tf.io.gfile.GFile(path, "rb").read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise errors.DataError(
            f"{path} is not UTF-8 text: {error}. Convert it to UTF-8."
        ) from error
