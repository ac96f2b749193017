"""Names of directories that come from a config, and must stay inside of another directory."""

import os

from official_lite.common import errors

__all__ = ["require_subdirectory", "stays_inside"]


def stays_inside(path: str) -> bool:
    """Whether a relative path can't lead out of the directory that it is joined to."""
    is_relative = not os.path.isabs(path) and "://" not in path
    return is_relative and path.isprintable() and ".." not in path.replace("\\", "/").split("/")


def require_subdirectory(path: str, field: str) -> None:
    """Checks that something is the name of a subdirectory, or a relative path to one.

    Raises:
        ConfigValueError: It leads elsewhere, or has control characters.
    """
    if not stays_inside(path):
        raise errors.ConfigValueError(
            f"`{field}` is {path!r}; wanted the name of a subdirectory, without a leading slash, "
            "`..` and control characters."
        )
