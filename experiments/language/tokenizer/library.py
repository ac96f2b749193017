"""Functions that load a tokenizer and convert text to tokens."""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from official_lite.common import errors

__all__ = ["encode_lines", "import_library", "load_tokenizer", "read_lines", "require_token"]

# The number of lines encoded in one call, which uses all cores.
_LINES_AT_ONCE = 10_000


def import_library() -> ModuleType:
    """Import the library `tokenizers`.

    Raises:
        DataError: If the library is not installed.
    """
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise errors.DataError(
            "Tokenization requires the library `tokenizers`, which is not installed. Run "
            "`pip install 'official-lite[language]'`."
        ) from error
    return tokenizers


@functools.lru_cache(maxsize=2)
def load_tokenizer(path: str) -> Any:
    """Load a `tokenizers.Tokenizer` of any kind from a file `tokenizer.json`.

    Raises:
        ConfigValueError: If no path is given.
        DataError: If the file is missing or is not a tokenizer.
    """
    if not path:
        raise errors.ConfigValueError(
            "No tokenizer is configured. Set `task.tokenizer_path` to a `tokenizer.json`. To "
            "train one on your text, run `python -m experiments.language.tokenizer.train`."
        )
    if not os.path.isfile(path):
        raise errors.DataError(
            f"`task.tokenizer_path` is {path!r}, which does not exist. Set it to a "
            "`tokenizer.json`."
        )
    try:
        return import_library().Tokenizer.from_file(path)
    except Exception as error:  # The library raises a plain `Exception` for a bad file.
        if type(error) is not Exception:
            raise
        raise errors.DataError(
            f"{path} is not a tokenizer file of the library `tokenizers`: {error}. Set "
            "`task.tokenizer_path` to a `tokenizer.json`."
        ) from error


def require_token(tokenizer: Any, *names: str) -> int:
    """Return the id of the first of these tokens that the tokenizer has.

    Raises:
        DataError: If the tokenizer has none of them.
    """
    for name in names:
        number = tokenizer.token_to_id(name)
        if number is not None:
            return int(number)
    raise errors.DataError(
        f"The tokenizer has no token {' or '.join(names)}. Use a tokenizer that was trained with "
        "this special token."
    )


def read_lines(paths: Iterable[str]) -> Iterator[str]:
    """Yield the lines of text files, including their line endings."""
    for path in paths:
        with tf.io.gfile.GFile(path, "rb") as file:
            for line in file:
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise errors.DataError(
                        f"{path} is not UTF-8 text: {error}. Convert it to UTF-8."
                    ) from error


def encode_lines(tokenizer: Any, lines: Iterable[str]) -> Iterator[np.ndarray]:
    """Yield the tokens of each line, int32."""
    lines = iter(lines)
    while batch := list(itertools.islice(lines, _LINES_AT_ONCE)):
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            yield np.array(encoding.ids, np.int32)
