"""Public files that tests use if they exist; nothing in this repository downloads them."""

import os
import pathlib

import pytest

__all__ = ["needs"]

_BESIDE_THE_REPOSITORY = pathlib.Path(__file__).parents[2] / "shared" / "data"


def needs(name: str) -> tuple[pathlib.Path, pytest.MarkDecorator]:
    """Return the path of a file and the mark that skips a test if the file is missing."""
    path = pathlib.Path(os.environ.get("TEST_DOWNLOADS", _BESIDE_THE_REPOSITORY)) / name
    return path, pytest.mark.skipif(not path.exists(), reason=f"{path} is not here")
