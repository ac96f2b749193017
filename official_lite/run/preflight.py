"""Checks that find errors of a run before anything is built or written."""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import latest, warm_start
from official_lite.common import errors, files, flags, suggestions, tf_config
from official_lite.config import phase_configs
from official_lite.core import (
    base_task,
    base_trainer,
    config_definitions,
    hook_factory,
    task_factory,
    train_data,
    trainer_factory,
    writer_factory,
)
from official_lite.data import length
from official_lite.modeling import hyperparams
from official_lite.prediction import output
from official_lite.run import best_checkpoint, data_schemas, run_record

__all__ = [
    "check",
    "check_run",
    "check_evaluation",
    "check_evaluation_data",
    "check_init_checkpoint",
    "check_input_files",
    "check_prediction",
    "find_hooks",
    "find_writers",
    "writes_event_files",
]


# The writers of configs that have no `writers` field.
_WRITERS = ("console", "jsonl", writer_factory.TENSORBOARD)


def check(params: config_definitions.ExperimentConfig, mode: str) -> None:
    """Check the mode, and the trainer, hooks and writers of the config.

    Raises:
        errors.UnknownNameError: If the mode, the trainer, a hook or a writer is unknown.
        errors.ConfigTypeError: If a hook or a writer does not accept its arguments.
    """
    _check_mode(mode)
    trainer_factory.get_trainer_cls(params)
    find_hooks(params)
    find_writers(params)


def check_run(
    params: Any,
    mode: str,
    model_dir: str,
    *,
    earlier_phases: Mapping[str, str] | None = None,
    task: base_task.Task | None = None,
    reads_weights: bool = True,
    reads_files: bool = True,
) -> None:
    """Check everything about a run that can be checked before anything is built or written.

    Args:
        params: The config of the run.
        mode: The mode.
        model_dir: The model directory.
        earlier_phases: The model directories of earlier phases by name. They will contain files and
            checkpoints when the run starts.
        task: The task of the run, if it already exists.
        reads_weights: Whether the run reads weights from the location in the config. Custom code
            may download them, or load them from elsewhere.
        reads_files: Whether the run reads input files from the location in the config.

    Raises:
        errors.OfficialLiteError: If the run cannot succeed.
    """
    check(params, mode)
    run_record.check_model_dir(model_dir)
    if flags.Mode(mode).trains:
        best_checkpoint.check_directories(params, model_dir, _best_checkpoint_hooks(params))
    if flags.Mode(mode).predicts:
        check_prediction(params)
    earlier = earlier_phases or {}
    if reads_weights:
        check_evaluation(params, mode, model_dir, type(task) if task else None)
        check_init_checkpoint(params, model_dir, earlier, type(task) if task else None)
    if reads_files:
        check_input_files(params, mode, list(earlier.values()))
        data_schemas.check(params, mode, model_dir, list(earlier.values()))


def check_evaluation(
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    task_cls: type[base_task.Task] | None = None,
) -> None:
    """Check that there is a checkpoint, if the mode is `eval` or `predict`.

    A task or a trainer that overrides `initialize` may load weights from elsewhere.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        task_cls: The class of the task, if it differs from the class registered for the config.

    Raises:
        errors.CheckpointError: If there is none.
    """
    init_checkpoint = params.task.init_checkpoint
    if mode not in ("eval", "predict") or init_checkpoint:
        return
    if mode == "predict" and params.prediction.checkpoint != "latest":
        return
    path = latest.latest_checkpoint(model_dir)
    if path is None:
        if _initializes_itself(params, task_cls):
            return
        raise errors.CheckpointError(
            f"There is no checkpoint in {model_dir}, so the mode `{mode}` would use random "
            "weights. Train first, or set `task.init_checkpoint`."
        )
    if os.path.basename(path).startswith(f"{best_checkpoint.BEST_CHECKPOINT_NAME}-"):
        raise errors.CheckpointError(
            f"{model_dir} is not a model directory. It contains the best checkpoint of a run, "
            "which would not be restored. To use it, choose another `model_dir` and set "
            f"`task.init_checkpoint` to {path}."
        )


def check_prediction(params: config_definitions.ExperimentConfig) -> None:
    """Check that the mode `predict` is possible with a config.

    Raises:
        errors.ConfigValueError: If it is not.
    """
    if not isinstance(params.task, config_definitions.TaskConfig):
        raise errors.ConfigValueError(
            "The mode `predict` supports experiments with one task, but this one has several. "
            "Export the model with `official-lite export` and predict with it."
        )
    output.require_library(params.prediction.format)
    _require_one_process(params.runtime)
    train_data.predict_data(params)
    trainer = params.trainer
    if params.prediction.checkpoint == "best" and not trainer.best_checkpoint_export_subdir:
        raise errors.ConfigValueError(
            "`prediction.checkpoint` is 'best', but the run keeps no best checkpoint: "
            "`trainer.best_checkpoint_export_subdir` is empty. For the one of a hook, set "
            "`prediction.checkpoint` to 'init' and `task.init_checkpoint` to its directory."
        )
    if params.prediction.checkpoint == "init" and not params.task.init_checkpoint:
        raise errors.ConfigValueError(
            "`prediction.checkpoint` is 'init', but `task.init_checkpoint` is not set."
        )


def _require_one_process(runtime: config_definitions.RuntimeConfig) -> None:
    """Check that a prediction runs in one process, whose replicas share one input in its order.

    Raises:
        errors.ConfigValueError: If there are several processes.
    """
    strategy = runtime.distribution_strategy.lower()
    is_several = strategy == "parameter_server"
    if strategy == "multi_worker_mirrored":
        found = tf_config.find_cluster(runtime.worker_hosts, runtime.task_index)
        is_several = found is not None and found.num_workers > 1
    if is_several:
        raise errors.ConfigValueError(
            f"The mode `predict` does not support several processes (`{strategy}`): each would "
            "read a part of the rows, and nothing would put them back in order. Use "
            "`runtime.distribution_strategy=mirrored` and unset TF_CONFIG. To use several "
            "machines, start one command for each part of the input, with its own "
            "`prediction.output_dir`."
        )


def check_evaluation_data(
    params: config_definitions.ExperimentConfig, trainer: orbit.AbstractTrainer
) -> None:
    """Check that an evaluation of the whole dataset can end.

    Raises:
        errors.ConfigValueError: If the dataset is known to be infinite.
    """
    # A plain Orbit trainer, or one that only trains, has no evaluation dataset.
    dataset = getattr(trainer, "eval_dataset", None)
    if dataset is not None and params.trainer.validation_steps == -1:
        length.require_end(dataset)


def check_init_checkpoint(
    params: Any,
    model_dir: str,
    earlier_phases: Mapping[str, str] | None = None,
    task_cls: type[base_task.Task] | None = None,
) -> None:
    """Check that the checkpoint of `task.init_checkpoint` exists, if the run will read it.

    The field is not checked if the task or the trainer overrides `initialize`, because custom code
    may use the field for something other than a path.

    Args:
        params: The config of the run.
        model_dir: The model directory, whose own checkpoint takes precedence.
        earlier_phases: The model directories of earlier phases by name, in which the checkpoint may
            be created before the run starts.
        task_cls: The class of the task, if it differs from the class registered for the config.

    Raises:
        errors.CheckpointError: If the checkpoint does not exist.
    """
    path = params.task.init_checkpoint
    earlier = earlier_phases or {}
    if not path or any(phase_configs.lies_in(path, directory) for directory in earlier.values()):
        return
    if not _is_read_by_default_code(params, task_cls) or latest.latest_checkpoint(model_dir):
        return
    if warm_start.find_checkpoint(path) is None:
        nearest = suggestions.nearest(path.split("/")[0], earlier)
        hint = f" Did you mean the phase `{nearest[0]}`?" if nearest else ""
        raise errors.CheckpointError(
            f"`task.init_checkpoint` is {path!r}, which contains no checkpoint.{hint}"
            f"{warm_start.remedy(path)}"
        )


def check_input_files(
    params: config_definitions.ExperimentConfig, mode: str, earlier_phases: Sequence[str] = ()
) -> None:
    """Check that the local files of each `input_path` that the mode reads exist.

    The contents of the files are not checked, and neither is whether a path is a directory.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        earlier_phases: The directories of phases that may write files before the run starts.

    Raises:
        errors.DataError: If a path or pattern matches no file.
    """
    for path, patterns in _input_paths(params.task, mode):
        for pattern in ",".join(patterns).split(","):
            name = files.expand_home(pattern.strip())
            is_later = any(phase_configs.lies_in(name, directory) for directory in earlier_phases)
            if not _is_local_path(name) or is_later:
                continue
            if files.exists(name) or tf.io.gfile.glob(name):
                continue
            raise errors.DataError(f"`{path}`: The input file `{name}` does not exist.")


def find_hooks(params: config_definitions.ExperimentConfig) -> list[hook_factory.HookFactory]:
    """Return the factories of the hooks in `params.trainer.hooks`."""
    return hook_factory.find_hooks(_entries(params, "hooks"), _workspace(params))


def _best_checkpoint_hooks(params: Any) -> list[orbit.hooks.BestCheckpoint]:
    """Return the hooks of the config that keep a best checkpoint, by whatever name.

    The other hooks are not created, because their constructors may have effects.
    """
    created = [create() for create in find_hooks(params) if _is_best_checkpoint(create)]
    return [hook for hook in created if isinstance(hook, orbit.hooks.BestCheckpoint)]


def _is_best_checkpoint(create: hook_factory.HookFactory) -> bool:
    cls = create.func if isinstance(create, functools.partial) else create
    return isinstance(cls, type) and issubclass(cls, orbit.hooks.BestCheckpoint)


def find_writers(params: config_definitions.ExperimentConfig) -> list[writer_factory.WriterFactory]:
    """Return the factories of the writers in `params.trainer.writers`, except for `tensorboard`."""
    return writer_factory.find_writers(_entries(params, "writers", _WRITERS), _workspace(params))


def writes_event_files(params: config_definitions.ExperimentConfig) -> bool:
    """Return whether `tensorboard` is in `params.trainer.writers`."""
    return writer_factory.TENSORBOARD in _entries(params, "writers", _WRITERS)


def _check_mode(name: str) -> None:
    mode = flags.Mode.parse(name)
    if not mode.is_a_single_run:
        single = [mode.value for mode in flags.Mode if mode.is_a_single_run]
        raise errors.UnknownNameError(
            f"The mode {name!r} is not implemented here. {suggestions.did_you_mean(name, single)}"
        )


def _is_read_by_default_code(params: Any, task_cls: type[base_task.Task] | None) -> bool:
    task_cls = _task_cls(params, task_cls)
    return hasattr(task_cls, "initialize") and not _initializes_itself(params, task_cls)


def _initializes_itself(params: Any, task_cls: type[base_task.Task] | None) -> bool:
    """Return whether the task, if its class is known, or the trainer overrides `initialize`."""
    of_task = getattr(_task_cls(params, task_cls), "initialize", base_task.Task.initialize)
    of_trainer = trainer_factory.get_trainer_cls(params).initialize
    return (
        of_task is not base_task.Task.initialize
        or of_trainer is not base_trainer.Trainer.initialize
    )


def _task_cls(params: Any, task_cls: type[base_task.Task] | None) -> type[base_task.Task] | None:
    # A custom stage may create a task that is not registered.
    with contextlib.suppress(errors.UnknownNameError):
        return task_cls or task_factory.find_task_cls(params.task)
    return None


def _input_paths(task: config_definitions.TaskConfig, mode: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the field and the texts of each `input_path` of one or several tasks."""
    # A task may have an `input_path` of its own.
    blocks: list[tuple[str, Any]] = [*data_schemas.task_configs(task)]
    blocks += data_schemas.data_blocks(task, mode)
    for place, block in blocks:
        given = hyperparams.get_by_path(block, "input_path")
        reads_service = hyperparams.get_by_path(block, "enable_tf_data_service")
        if given and not reads_service and getattr(block, "NAMES_FILES", True):
            yield f"{place}.input_path", list(data_schemas.texts(given))


def _is_local_path(name: str) -> bool:
    # A bare word may have a special meaning for the task, such as the Model Garden's `dummy` for
    # generated data.
    return any(sign in name for sign in "/.*") and not files.is_remote(name)


def _entries(
    params: config_definitions.ExperimentConfig, field: str, default: Sequence[str] = ()
) -> list[Any]:
    """Return the names, and the configs with a `name`, as strings and dictionaries."""
    entries = hyperparams.get_by_path(params, f"trainer.{field}", default)
    return [_plain(entry if isinstance(entry, str) else entry.as_dict()) for entry in entries]


def _plain(entry: str | dict[str, Any]) -> str | dict[str, Any]:
    return entry["name"] if isinstance(entry, dict) and list(entry) == ["name"] else entry


def _workspace(params: config_definitions.ExperimentConfig) -> str | None:
    return params.workspace or None
