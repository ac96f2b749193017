"""The output directory of a hook."""

import os

from official_lite.common import errors, files
from official_lite.orbit.hooks.hook import Hook


def output_directory(hook: Hook, directory: str) -> str:
    """Return an absolute or remote `directory` unchanged, otherwise join it to `model_dir`.

    Raises:
      errors.ConfigValueError: The path is relative and leads out of `model_dir`, or the controller
        has no `model_dir`.
    """
    directory = files.expand_home(directory)
    if os.path.isabs(directory) or "://" in directory:
        return directory
    files.require_subdirectory(directory, f"directory of {type(hook).__name__}")
    model_dir = hook.controller.model_dir
    if model_dir is None:
        raise errors.ConfigValueError(
            f"{type(hook).__name__} writes to `{directory}` in the `model_dir` of the run, but "
            "`model_dir` is not set. Pass `model_dir` to `Controller`, or an absolute path to the "
            "hook."
        )
    return os.path.join(model_dir, directory)
