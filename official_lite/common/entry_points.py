"""Import of modules that installed packages declare for registration.

A package declares them in its `pyproject.toml`, in a group for what they register::

    [project.entry-points."official_lite.experiments"]
    acme = "acme_experiments.configs"
"""

import functools
from importlib import metadata

from absl import logging

__all__ = ["import_group"]


@functools.cache
def import_group(group: str) -> tuple[str, ...]:
    """Import the modules that installed packages declare in a group, once per process.

    A module that cannot be imported is skipped with a warning, because the run may not need it.

    Returns:
        One sentence about each module that was skipped.
    """
    left_out = []
    for entry_point in sorted(metadata.entry_points(group=group), key=_origin):
        try:
            entry_point.load()
        # Catch everything: this is third-party code, which may even try to exit the process.
        except (Exception, SystemExit) as error:
            left_out.append(
                f"The entry point `{entry_point.name} = {entry_point.value}` of "
                f"{_origin(entry_point)} can't be imported: {type(error).__name__}: {error}."
            )
            logging.warning("%s", left_out[-1])
    return tuple(left_out)


def _origin(entry_point: metadata.EntryPoint) -> str:
    distribution = entry_point.dist
    return f"{distribution.name} {distribution.version}" if distribution else "an unknown package"
