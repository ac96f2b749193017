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
        characters: Each that occurs, once, in the order of their code points.
        tokens: The place of each character of the text among these.
    """

    characters: str
    tokens: np.ndarray


# A trainer asks for its data more than once.
@functools.lru_cache(maxsize=1)
def load_text(input_path: str) -> Text:
    """Reads a text, or several, one after the other.

    Raises:
        ConfigValueError: No path is given.
        DataError: There is no such file, or it is no text in UTF-8.
    """
    if not input_path:
        raise errors.ConfigValueError(
            "There is no text: set `task.input_path` to a text file, such as "
            "--set=task.input_path=/data/tinyshakespeare.txt."
        )
    text = "".join(_read(path) for path in file_patterns.match_files(input_path))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    characters, tokens = np.unique(points, return_inverse=True)
    dtype = np.uint8 if len(characters) <= 256 else np.int32
    return Text("".join(map(chr, characters)), tokens.astype(dtype))


def _read(path: str) -> str:
    try:
        # As it is: a Windows line ending is two characters.
        return tf.io.gfile.GFile(path, "rb").read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise errors.DataError(f"{path} is no text in UTF-8: {error}.") from error
