"""Modules of installed packages that ask to be imported, for what they register.

A package names them in its `pyproject.toml`, in a group that says what they register::

    [project.entry-points."official_lite.experiments"]
    acme = "acme_experiments.configs"
"""

import functools
from importlib import metadata

from absl import logging

__all__ = ["import_group"]


@functools.cache
def import_group(group: str) -> tuple[str, ...]:
    """Imports the modules that installed packages name in a group, once in a process.

    One that can't be imported is left out with a warning, since it is no concern of a run that
    wants nothing of it.

    Returns:
        A sentence on each that was left out.
    """
    left_out = []
    for entry_point in sorted(metadata.entry_points(group=group), key=_origin):
        try:
            entry_point.load()
        # Whatever it is: other people's code, which may even try to end the process.
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
