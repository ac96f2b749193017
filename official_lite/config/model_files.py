"""The files on which a model depends, such as the architecture that a search has found.

Such a file may change after the run has begun, and the model would then be another one. A run
therefore reads a small file at its start and records the content in place of the name. Of a large
file, such as a vocabulary, it records the checksum. A resume or an evaluation of the run compares
them. This module does not need TensorFlow.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from official_lite.common import files
from official_lite.modeling import hyperparams


def read(params: Any) -> Any:
    """Replace the names of small files on which the model depends by the content of these files.

    Files that do not exist yet are left to the task, because a stage of the run may create them.

    Args:
        params: An experiment's config, locked or not.

    Returns:
        A locked copy, or `params` itself if nothing changes.

    Raises:
        errors.ConfigError: If a file is damaged.
    """
    found = [_contents(task) for _, task in _tasks(params)]
    if not any(found):
        return params
    changed = params.replace()
    for (_, task), contents in zip(_tasks(changed), found, strict=True):
        task.override(contents)
    changed.lock()
    return changed


def checksums(params: Any) -> dict[str, str]:
    """Return the checksum of each file in a field of `TaskConfig.MODEL_FILES`, by the field's path.

    Missing files and files on remote file systems are left out.
    """
    found = {}
    for path, task in _tasks(params):
        for name in getattr(type(task), "MODEL_FILES", ()):
            file = getattr(task, name)
            if file and not files.is_remote(file) and os.path.isfile(file):
                with files.open_file(file, "rb") as opened:
                    found[f"{path}.{name}"] = hashlib.sha256(opened.read()).hexdigest()
    return found


def _tasks(params: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the config of a task, and of each of several tasks."""
    yield "task", params.task
    for index, routine in enumerate(hyperparams.get_by_path(params, "task.task_routines", ())):
        yield f"task.task_routines[{index}].task_config", routine.task_config


def _contents(task: Any) -> dict[str, Any]:
    # The config of a task need not be a `TaskConfig`.
    read_model_files = getattr(type(task), "read_model_files", None)
    return read_model_files(task) if read_model_files else {}
