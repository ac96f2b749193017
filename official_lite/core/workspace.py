"""`{workspace}`, which stands for a directory in any text of a config.

A config file that names what lies beside it (`"{workspace}/hooks.py:InfoHook"`) can so be copied
together with its neighbours. Nothing here needs TensorFlow.
"""

import os
from typing import Any

from official_lite.common import errors, files
from official_lite.modeling import hyperparams

__all__ = ["PLACEHOLDER", "expand", "place", "uses_workspace"]

PLACEHOLDER = "{workspace}"


def uses_workspace(values: Any) -> bool:
    """Whether a text in a config, or in a dict from a config file, has the placeholder."""
    return any(PLACEHOLDER in text for text in hyperparams.texts(values))


def expand(params: Any, default: str = "") -> Any:
    """The config with the workspace, absolute, in the place of the placeholder and in `workspace`.

    Args:
        params: The config. One without the field `workspace` may use the placeholder, too.
        default: The workspace if the config names none.

    Returns:
        An unlocked copy; or `params` itself if it uses no workspace and names none.

    Raises:
        errors.ConfigValueError: If there is a placeholder, but no workspace.
    """
    given = getattr(params, "workspace", "")
    is_used = uses_workspace(params)
    if not is_used and not given:
        return params
    if PLACEHOLDER in given:
        raise errors.ConfigValueError(f"`workspace` is {given!r}; wanted a directory.")
    directory = place(given or default)
    if not directory:
        raise errors.ConfigValueError(
            f"The config uses {PLACEHOLDER} and names no workspace. Set it, as in "
            "--set=workspace=path/to/directory, or put what uses it into a --config_file, whose "
            "directory is then the workspace."
        )
    expanded = hyperparams.map_texts(params, lambda text: text.replace(PLACEHOLDER, directory))
    if hasattr(expanded, "workspace"):
        expanded.workspace = directory
    return expanded


def place(directory: str, relative_to: str = "") -> str:
    """The directory as an absolute path; empty if it is."""
    if not directory or files.is_remote(directory):
        return directory
    return os.path.abspath(os.path.join(relative_to, os.path.expanduser(directory)))
