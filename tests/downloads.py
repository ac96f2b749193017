"""Public files that a test can use and nothing here fetches."""

import os
import pathlib

import pytest

__all__ = ["needs"]

_BESIDE_THE_REPOSITORY = pathlib.Path(__file__).parents[2] / "shared" / "data"


def needs(name: str) -> tuple[pathlib.Path, pytest.MarkDecorator]:
    """Where a file would be, and the mark that skips a test without it."""
    path = pathlib.Path(os.environ.get("TEST_DOWNLOADS", _BESIDE_THE_REPOSITORY)) / name
    return path, pytest.mark.skipif(not path.exists(), reason=f"{path} is not here")
