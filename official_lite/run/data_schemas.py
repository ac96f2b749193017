"""The check of a run's data against their schema files; see `data.sources.schema`."""

import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from official_lite.common import errors, files, flags, plugins, suggestions
from official_lite.config import phase_configs
from official_lite.core import config_definitions
from official_lite.data import file_patterns
from official_lite.data.sources import registry, schema
from official_lite.modeling import hyperparams

_DATA = ("train_data", "validation_data", "test_data", "predict_data")


def task_configs(
    task: config_definitions.TaskConfig,
) -> Iterator[tuple[str, config_definitions.TaskConfig]]:
    """Yield the config path and the config of the task, and of the tasks that it contains."""
    yield "task", task
    for index, routine in enumerate(hyperparams.get_by_path(task, "task_routines", ())):
        yield f"task.task_routines[{index}].task_config", routine.task_config


def data_blocks(task: config_definitions.TaskConfig, mode: str) -> Iterator[tuple[str, Any]]:
    """Yield the config path and the config of all data that a mode reads, of one or several tasks.

    A config need not be a `DataConfig`.
    """
    kind = flags.Mode(mode)
    for path, part in task_configs(task):
        found = {name: hyperparams.get_by_path(part, name) for name in _DATA}
        lacks_own = kind.predicts and found["predict_data"] is None
        validates = lacks_own or (kind.evaluates and not kind.tests)
        is_read = (kind.trains, validates, kind.tests, kind.predicts)
        for (name, block), reads in zip(found.items(), is_read, strict=True):
            if reads and block is not None:
                yield f"{path}.{name}", block


def check(
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    earlier_phases: Sequence[str] = (),
) -> None:
    """Compare the data with the schema files that exist, before anything is written.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        earlier_phases: The directories of phases that may write files before the run starts.

    Raises:
        errors.DataError: If a column is missing, new or changed, or a file can't be read.
        errors.ConfigValueError: If `label_column` is not a column, or a schema file is damaged.
    """
    for place, block in _blocks_with_source(params.task, mode):
        given = list(hyperparams.texts(block.input_path))
        if any(phase_configs.lies_in(text, phase) for text in given for phase in earlier_phases):
            continue
        # The input files may not exist yet, because the task may create them.
        if not block.NAMES_FILES and not all(map(_exists, given)):
            continue
        for _, known, found in _describe(params.task, place, block, model_dir):
            if known:
                schema.require_match(found, known, place)
            elif flags.Mode(mode).trains and found.columns:
                _refuse_schema_outside(place, block, model_dir)


def enforce(
    params: config_definitions.ExperimentConfig, mode: str, model_dir: str, *, is_chief: bool
) -> None:
    """Compare the data with the schema files, and write those that do not exist.

    Only a run that trains writes schema files, and only if the data files already exist.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        is_chief: Whether this process writes files.

    Raises:
        errors.OfficialLiteError: See `check`.
    """
    for place, block in _blocks_with_source(params.task, mode):
        if not all(map(_exists, hyperparams.texts(block.input_path))):
            continue
        for path, known, found in _describe(params.task, place, block, model_dir):
            writes = is_chief and flags.Mode(mode).trains
            if known:
                schema.require_match(found, known, place)
                if writes and known != path:
                    files.rename(known, path)
            elif writes and found.columns:
                _refuse_schema_outside(place, block, model_dir)
                schema.write(path, found, block.label_column)


def _refuse_schema_outside(
    place: str, block: config_definitions.DataConfig, model_dir: str
) -> None:
    """Raise an error under a restriction if a schema would be written outside `model_dir`."""
    path = block.schema
    if path and not phase_configs.lies_in(os.path.abspath(path), os.path.abspath(model_dir)):
        plugins.refuse(
            path,
            f"`{place}.schema` is {path!r}, which would be written outside the model directory",
            "Name a file that exists, or a file in the model directory.",
        )


def _blocks_with_source(
    task: config_definitions.TaskConfig, mode: str
) -> Iterator[tuple[str, config_definitions.DataConfig]]:
    # Ignore unknown sources: a subclass may use the field for something else, and otherwise
    # `InputReader` reports the unknown name.
    sources = list(registry.SOURCES)
    for place, block in data_blocks(task, mode):
        is_data = isinstance(block, config_definitions.DataConfig)
        if is_data and block.source in sources and block.input_path:
            yield place, block


def _describe(
    task: config_definitions.TaskConfig,
    place: str,
    block: config_definitions.DataConfig,
    model_dir: str,
) -> Iterator[tuple[str, str, schema.DataSchema]]:
    """Yield the file and the current schema of each source of a data config block.

    Yields:
        The path of the schema file, the path of the file that exists (empty if there is none), and
        the current schema.
    """
    names = _names_in_file(task, place)
    given = block.input_path
    inputs: dict[str, Any] = {"": given}
    if isinstance(given, config_definitions.base_config.Config):
        inputs = given.as_dict()
    for key, input_path in inputs.items():
        paths = file_patterns.match_files(
            input_path, directories=block.source in registry.OF_DIRECTORIES
        )
        found = schema.describe(registry.open_source(block.source, paths, block.columns))
        if block.label_column and block.label_column not in found.columns:
            raise errors.ConfigValueError(
                f"`{place}.label_column` is {block.label_column!r}, which is not a column. "
                f"{suggestions.did_you_mean(block.label_column, found.columns)}".rstrip()
            )
        parts = [["data_schema", name, key, "json"] for name in names]
        paths = [os.path.join(model_dir, ".".join(filter(None, part))) for part in parts]
        paths = [block.schema] if block.schema else paths
        yield paths[0], next(filter(files.exists, paths), ""), found


# Matches the path of a task in a multi-task config, which contains the task's index.
_ROUTINE = re.compile(r"^task_routines\[(\d+)\]\.task_config")


def _names_in_file(task: config_definitions.TaskConfig, place: str) -> list[str]:
    """Return a data config block's name in file names, followed by the name in earlier versions."""
    # Compare test data with the schema file of the validation data. Test data have no schema file
    # of their own, because only training writes these files, and training never reads test data.
    name = place.removeprefix("task.").replace("test_data", "validation_data")
    routine = _ROUTINE.match(name)
    if routine is None:
        return [name]
    # Use the name of the task, because a run may evaluate only some of the tasks. Earlier versions
    # used the position. The name may contain `/`.
    index, block = int(routine[1]), name.removeprefix(routine[0])
    task_name = hyperparams.get_by_path(task, "task_routines")[index].resolved_name
    keys = (urllib.parse.quote(task_name, safe=""), index)
    return [f"task_routines.{key}{block}" for key in keys]


def _exists(pattern: str) -> bool:
    return all(
        files.exists(one.strip()) or bool(tf.io.gfile.glob(one.strip()))
        for one in pattern.split(",")
    )
