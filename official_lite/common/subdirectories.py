"""Checks that paths from a config stay inside another directory."""

import os

from official_lite.common import errors

__all__ = ["require_subdirectory", "stays_inside"]


def stays_inside(path: str) -> bool:
    """Return whether a path is relative and stays inside the directory that it is joined to."""
    is_relative = not os.path.isabs(path) and "://" not in path
    return is_relative and path.isprintable() and ".." not in path.replace("\\", "/").split("/")


def require_subdirectory(path: str, field: str) -> None:
    """Check that a path is the name of a subdirectory or a relative path to one.

    Raises:
        ConfigValueError: The path leads out of the directory or has control characters.
    """
    if not stays_inside(path):
        raise errors.ConfigValueError(
            f"`{field}` is {path!r}; wanted the name of a subdirectory, without a leading slash, "
            "`..` and control characters."
        )
