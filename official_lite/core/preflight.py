"""Checks that find errors in a run before anything is built or written.

They include the check that all workers were started with the same config, code and data.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import os
import pathlib
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

import official_lite
from official_lite import orbit
from official_lite.checkpoint import latest, warm_start
from official_lite.common import errors, files, flags, preemption, suggestions, tf_config
from official_lite.config import phase_configs
from official_lite.core import (
    base_task,
    base_trainer,
    best_checkpoint,
    config_definitions,
    hook_factory,
    task_factory,
    train_data,
    trainer_factory,
    writer_factory,
)
from official_lite.data import file_patterns, length
from official_lite.modeling import hyperparams
from official_lite.orbit.hooks import saving_and_stopping
from official_lite.prediction import output
from official_lite.run import data_schemas, run_record

# The default writers for configs without a `writers` field.
_WRITERS = ("console", "jsonl", writer_factory.TENSORBOARD)


# The maximum length, in bytes, of a line that the error message about differing workers shows.
_MAX_BYTES = 240

# The number of parallel requests for file sizes. A request to cloud storage takes about 50 ms.
_MAX_THREADS = 32

_Gather = Callable[[Sequence[int]], np.ndarray[Any, Any]]


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
    loads_weights: bool = False,
) -> None:
    """Check everything about a run that can be checked before anything is built or written.

    Args:
        params: The config of the run.
        mode: The mode.
        model_dir: The model directory.
        earlier_phases: The output directories of earlier phases by name. They will contain files
            and checkpoints when the run starts.
        task: The task of the run, if it already exists.
        reads_weights: Whether the run reads weights from the location in the config. Custom code
            may download them, or load them from elsewhere.
        reads_files: Whether the run reads input files from the location in the config.
        loads_weights: Whether a model shared by several tasks loads its own weights.

    Raises:
        errors.OfficialLiteError: If the run cannot succeed.
    """
    check(params, mode)
    if params.phases:
        raise errors.ConfigValueError(
            f"`phases` has {', '.join(repr(phase.name) for phase in params.phases)}, but this "
            "call expects the config of a single run and would ignore them. Run the phases with "
            "`pipeline.RunPipeline` or `train.py`, in any mode except "
            "`continuous_train_and_eval`, or set `phases` to []."
        )
    run_record.check_model_dir(model_dir)
    if flags.Mode(mode).trains:
        check_directories(params, model_dir, _best_checkpoint_hooks(params))
    if flags.Mode(mode).predicts:
        # Refuse a directory that `--safe_config` does not allow.
        run_record.predictions_dir(params, model_dir)
        check_prediction(params)
    if flags.Mode(mode).tests:
        config_definitions.require_test_data(params)
        if params.task.test_data == params.task.validation_data:
            logging.warning(
                "`task.test_data` equals `task.validation_data`, so the test evaluates the data "
                "that were used to choose the best checkpoint. Set `task.test_data` to other data."
            )
    earlier = earlier_phases or {}
    if reads_weights:
        task_cls = type(task) if task else None
        check_evaluation(params, mode, model_dir, task_cls, loads_weights=loads_weights)
        check_init_checkpoint(params, model_dir, earlier, task_cls)
    if reads_files:
        check_input_files(params, mode, list(earlier.values()))
        data_schemas.check(params, mode, model_dir, list(earlier.values()))


def check_evaluation(
    params: config_definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    task_cls: type[base_task.Task] | None = None,
    trainer_cls: type[orbit.AbstractTrainer] | None = None,
    *,
    loads_weights: bool = False,
) -> None:
    """Check that there is a checkpoint, if the mode is `eval`, `test` or `predict`.

    A task or a trainer that overrides `initialize` may load weights from elsewhere.

    Args:
        params: The config of the run.
        mode: The mode of the run.
        model_dir: The model directory.
        task_cls: The class of the task, if it differs from the class registered for the config.
        trainer_cls: The class of the trainer, if it differs from the class in the config.
        loads_weights: Whether a model shared by several tasks loads its own weights.

    Raises:
        errors.CheckpointError: If there is no checkpoint.
    """
    if mode == "predict" and params.prediction.checkpoint == "best":
        require_best_checkpoint(params, model_dir)
        return
    init_checkpoint = params.task.init_checkpoint
    if mode not in ("eval", "test", "predict") or init_checkpoint:
        return
    if mode == "test" and find_best_checkpoint(params, model_dir):
        return
    path = latest.latest_checkpoint(model_dir)
    if path is None:
        if loads_weights or _initializes_itself(params, task_cls, trainer_cls):
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
    """Check that a config supports the mode `predict`.

    Raises:
        errors.ConfigValueError: If the config does not support it.
    """
    if not isinstance(params.task, config_definitions.TaskConfig):
        raise errors.ConfigValueError(
            "The mode `predict` supports only experiments with one task, but this one has several. "
            "Export the model with `official-lite export` and predict with it."
        )
    output.require_library(params.prediction.format)
    if params.runtime.distribution_strategy.lower() == "parameter_server":
        raise errors.ConfigValueError(
            "The mode `predict` does not support `runtime.distribution_strategy=parameter_server`. "
            "Use `mirrored`, or `multi_worker_mirrored` for several machines."
        )
    train_data.predict_data(params)
    trainer = params.trainer
    keeps_best = trainer.best_checkpoint_export_subdir or _best_checkpoint_hooks(params)
    if params.prediction.checkpoint == "best" and not keeps_best:
        raise errors.ConfigValueError(
            "`prediction.checkpoint` is 'best', but the run keeps no best checkpoint: "
            "`trainer.best_checkpoint_export_subdir` is empty, and `trainer.hooks` has no "
            "`best_checkpoint`."
        )
    if params.prediction.checkpoint == "init" and not params.task.init_checkpoint:
        raise errors.ConfigValueError(
            "`prediction.checkpoint` is 'init', but `task.init_checkpoint` is not set. Set it to "
            "the checkpoint to use."
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


def find_best_checkpoint(params: config_definitions.ExperimentConfig, model_dir: str) -> str | None:
    """Return the best checkpoint of a run, kept by the exporter or else by a hook of the config.

    Returns:
        The path; None if the run keeps no best checkpoint or has none yet.
    """
    kept = [params.trainer.best_checkpoint_export_subdir]
    kept += [hook.directory for hook in _best_checkpoint_hooks(params)]
    directories = [os.path.join(model_dir, subdir) for subdir in kept if subdir]
    return next(filter(None, map(latest.latest_checkpoint, directories)), None)


def require_best_checkpoint(params: config_definitions.ExperimentConfig, model_dir: str) -> str:
    """Return the best checkpoint of a run.

    Raises:
        errors.CheckpointError: If there is none.
    """
    path = find_best_checkpoint(params, model_dir)
    if path is None:
        raise errors.CheckpointError(
            f"There is no best checkpoint in {model_dir}. Train with evaluations first, for "
            "example in the mode `train_and_eval`."
        )
    return path


def check_tested_data(
    params: config_definitions.ExperimentConfig, trainer: orbit.AbstractTrainer | None
) -> None:
    """Check that a trainer that already exists evaluates the test data.

    Args:
        params: The config that `config_definitions.for_test` returned.
        trainer: The trainer; None if it is built later. A trainer without a config is not checked.

    Raises:
        errors.ConfigValueError: If the trainer was built for other data.
    """
    task = getattr(getattr(trainer, "config", None), "task", None)
    if task is not None and task.validation_data != params.task.validation_data:
        raise errors.ConfigValueError(
            "The mode `test` got a trainer that was built to evaluate other data than "
            "`task.test_data`. Build it with the config that "
            "`config_definitions.for_test(params)` returns, or pass no trainer."
        )


def check_metric(
    params: config_definitions.ExperimentConfig, trainer: orbit.AbstractTrainer
) -> None:
    """Check before training that the evaluation reports the best-checkpoint metric.

    If custom code decides which metrics are reported, nothing is checked before the first
    evaluation.

    Raises:
        errors.UnknownNameError: If the evaluation does not report the metric.
    """
    name = params.trainer.best_checkpoint_eval_metric
    if name:
        _require_metric(trainer, name, "`trainer.best_checkpoint_eval_metric`")


def check_hooks(
    trainer: orbit.AbstractTrainer, hooks: Sequence[orbit.Hook], *, evaluates: bool
) -> None:
    """Check before training that evaluations report the metrics that hooks watch.

    Args:
        trainer: The trainer.
        hooks: The hooks of the run.
        evaluates: Whether the run evaluates. If it does not, a warning names each hook that has no
            effect.

    Raises:
        errors.UnknownNameError: If the evaluation does not report a metric.
    """
    for hook in hooks:
        if not (name := hook.watched_metric):
            continue
        kind = type(hook).__name__
        if not evaluates:
            logging.warning(
                "The hook %s watches the metric `%s`, but this run has no evaluations, so the hook "
                "has no effect. Use the mode `train_and_eval`.",
                kind,
                name,
            )
        _require_metric(trainer, name, f"The metric of the hook {kind}")


def _require_metric(trainer: orbit.AbstractTrainer, name: str, field: str) -> None:
    if not _reports_only_its_metrics(trainer):
        return
    known = [metric.name for metric in trainer.validation_metrics]
    known.append(trainer.validation_loss.name)
    best = trainer.config.trainer.best_checkpoint_eval_metric
    if name not in known and not (best and name == f"best_{best}"):
        raise errors.UnknownNameError(
            f"{field} is {name!r}, which the evaluation does not report. "
            f"{saving_and_stopping.did_you_mean(name, known)}"
        )


def check_directories(
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    hooks: Sequence[orbit.hooks.BestCheckpoint],
) -> None:
    """Check that each best checkpoint of a run has a separate directory.

    Two best checkpoints in one directory would delete each other.

    Args:
        params: The config of the run.
        model_dir: The model directory.
        hooks: The hooks that keep a best checkpoint.

    Raises:
        errors.ConfigValueError: If two directories are the same or one lies inside the other, or if
            one is a directory of the run itself.
    """
    trainer = params.trainer
    # The run's own directories. The name of an optional directory may be empty.
    taken = {
        "train": "the event files of training",
        trainer.validation_summary_subdir: "the event files of evaluations",
        "test": "the event files of tests",
        "ema_checkpoints": "the averaged weights",
        "swa": "the weights of the hook `stochastic_weight_averaging`",
    }
    root = _real(model_dir, "")
    owners = {_real(model_dir, name): owner for name, owner in taken.items() if name}
    keepers = []
    if trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric:
        metric = trainer.best_checkpoint_eval_metric
        owner = (
            "`trainer.best_checkpoint_export_subdir`, which keeps the checkpoint with the best "
            f"`{metric}`"
        )
        keepers.append((owner, trainer.best_checkpoint_export_subdir))
    keepers += [(f"the hook `best_checkpoint` on `{h.metric}`", h.directory) for h in hooks]
    for owner, directory in keepers:
        path = _real(model_dir, directory)
        other = next((owners[each] for each in owners if _overlap(path, each)), None)
        if path == root:
            other = "the checkpoints of the run"
        if other is not None:
            raise errors.ConfigValueError(
                f"The directory `{directory}` would be shared by {other} and {owner}. Use "
                "separate directories, none inside another, for "
                "`trainer.best_checkpoint_export_subdir` and for the `directory` of each hook."
            )
        owners[path] = owner


def _real(model_dir: str, directory: str) -> str:
    """Return the resolved path of a directory of the run, so that paths can be compared."""
    path = directory if files.is_remote(directory) else os.path.join(model_dir, directory)
    return posixpath.normpath(path) if files.is_remote(path) else os.path.realpath(path)


def _overlap(path: str, other: str) -> bool:
    return phase_configs.lies_in(path, other) or phase_configs.lies_in(other, path)


def _reports_only_its_metrics(trainer: orbit.AbstractTrainer) -> bool:
    """Return whether only the trainer's metrics, and no custom code, determine what is reported."""
    if not isinstance(trainer, base_trainer.Trainer) or not trainer.evaluates:
        return False
    default = (
        (type(trainer), base_trainer.Trainer, "evaluate"),
        (type(trainer), base_trainer.Trainer, "eval_end"),
        (type(trainer.task), base_task.Task, "reduce_aggregated_logs"),
    )
    return (
        all(getattr(own, name) is getattr(base, name) for own, base, name in default)
        and not getattr(trainer.model, "compiled", False)
        # A custom metric may return a dictionary, whose keys replace the name of the metric.
        and all(_is_of_keras(metric) for metric in trainer.validation_metrics)
    )


def _is_of_keras(metric: Any) -> bool:
    return bool(type(metric).result.__module__.startswith("keras."))


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
            raise errors.DataError(
                f"`{path}`: The input file `{name}` does not exist. Correct the path."
            )


def find_hooks(params: config_definitions.ExperimentConfig) -> list[hook_factory.HookFactory]:
    """Return the factories of the hooks in `params.trainer.hooks`."""
    return hook_factory.find_hooks(_entries(params, "hooks"), _workspace(params))


def _best_checkpoint_hooks(params: Any) -> list[orbit.hooks.BestCheckpoint]:
    """Return the hooks in the config that keep a best checkpoint, regardless of their names.

    The other hooks are not created, because their constructors may have side effects.
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
            f"The mode {name!r} starts several runs; expected the mode of a single run. "
            f"{suggestions.did_you_mean(name, single)}"
        )


def _is_read_by_default_code(params: Any, task_cls: type[base_task.Task] | None) -> bool:
    task_cls = _task_cls(params, task_cls)
    return hasattr(task_cls, "initialize") and not _initializes_itself(params, task_cls)


def _initializes_itself(
    params: Any,
    task_cls: type[base_task.Task] | None,
    trainer_cls: type[orbit.AbstractTrainer] | None = None,
) -> bool:
    """Return whether the task, if its class is known, or the trainer overrides `initialize`."""
    trainer_cls = trainer_cls or trainer_factory.get_trainer_cls(params)
    return any(
        getattr(own, "initialize", base.initialize) is not base.initialize
        for own, base in (
            (_task_cls(params, task_cls), base_task.Task),
            (trainer_cls, base_trainer.Trainer),
        )
    )


def _task_cls(params: Any, task_cls: type[base_task.Task] | None) -> type[base_task.Task] | None:
    # A custom stage may create a task that is not registered.
    with contextlib.suppress(errors.UnknownNameError):
        return task_cls or task_factory.find_task_cls(params.task)
    return None


def _input_paths(task: config_definitions.TaskConfig, mode: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the config path and the values of each `input_path` that a mode reads.

    The config may be of one or several tasks. Data configs that read from a tf.data service or
    whose `NAMES_FILES` is false are skipped.
    """
    # A task config may have a field `input_path` of its own, in addition to its data configs.
    blocks: list[tuple[str, Any]] = [*data_schemas.task_configs(task)]
    blocks += data_schemas.data_blocks(task, mode)
    for place, block in blocks:
        given = hyperparams.get_by_path(block, "input_path")
        reads_service = hyperparams.get_by_path(block, "enable_tf_data_service")
        if given and not reads_service and getattr(block, "NAMES_FILES", True):
            yield f"{place}.input_path", list(hyperparams.texts(given))


def _is_local_path(name: str) -> bool:
    # A bare word may have a special meaning for the task; in the Model Garden, for example, `dummy`
    # means generated data.
    return any(sign in name for sign in "/.*") and not files.is_remote(name)


def _entries(
    params: config_definitions.ExperimentConfig, field: str, default: Sequence[str] = ()
) -> list[Any]:
    """Return the entries of a `trainer` field, each as a name or as a dictionary with a `name`."""
    entries = hyperparams.get_by_path(params, f"trainer.{field}", default)
    return [_plain(entry if isinstance(entry, str) else entry.as_dict()) for entry in entries]


def _plain(entry: str | dict[str, Any]) -> str | dict[str, Any]:
    return entry["name"] if isinstance(entry, dict) and list(entry) == ["name"] else entry


def _workspace(params: config_definitions.ExperimentConfig) -> str | None:
    return params.workspace or None


def list_code(params: config_definitions.ExperimentConfig) -> list[str]:
    """Return the sorted names and checksums of all Python files that a run uses.

    Hosts with the same code return the same list.

    Args:
        params: The config of the run.
    """
    paths = {**_files_of(official_lite.__name__)}
    for name in sorted(_modules_of(params)):
        paths |= _files_of(name)
    return [f"{name} {_checksum(path)}" for name, path in sorted(paths.items())]


def _modules_of(params: config_definitions.ExperimentConfig) -> set[str]:
    """Return the names of the modules that define the configs, the task and the trainer."""
    classes = [type(config) for config in _configs_in(params)]
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(task_factory.get_task_cls(type(params.task)))
    with contextlib.suppress(errors.UnknownNameError):
        classes.append(trainer_factory.get_trainer_cls(params))
    return {str(getattr(each, "__module__", "")) for each in classes}


def _configs_in(value: object) -> Iterator[Any]:
    if isinstance(value, hyperparams.ParamsDict):
        yield value
        for element in vars(value).values():
            yield from _configs_in(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _configs_in(element)


def _files_of(module_name: str) -> dict[str, pathlib.Path]:
    """Return the files of a module's top-level package, or the file of a lone module, by name."""
    top = module_name.partition(".")[0]
    package = sys.modules.get(top)
    roots = [pathlib.Path(root) for root in getattr(package, "__path__", ())]
    if roots:
        return {
            f"{top}/{path.relative_to(root).as_posix()}": path
            for root in roots
            for path in root.rglob("*.py")
            if path.is_file()  # Some editors create dangling symlinks as lock files.
        }
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return {pathlib.Path(file).name: pathlib.Path(file)} if file else {}


def _checksum(path: pathlib.Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


def require_agreement(
    params: config_definitions.ExperimentConfig,
    strategy: tf.distribute.Strategy,
    mode: str = "train",
) -> None:
    """Check that all workers of a `MultiWorkerMirroredStrategy` agree; every worker must call this.

    Args:
        params: The config of the run. `runtime.worker_hosts` and `runtime.task_index` may differ.
        strategy: The strategy; nothing is compared under strategies of other classes.
        mode: The mode of the run; the files of the training data are compared if it trains.

    Raises:
        errors.ConfigValueError: If the workers differ. The error is raised on all workers and shows
            the first difference.
    """
    found = tf_config.read_tf_config()
    if found is None or not preemption.is_one_of_several(strategy):
        return
    parts = _parts(params, mode)
    names = list(found.members("chief", "worker"))
    gather = _create_gather(strategy, len(names))
    rows = gather([_number_of("\n".join(lines)) for lines in parts.values()])
    for column, (part, lines) in enumerate(parts.items()):
        if len(set(rows[:, column])) > 1:
            raise errors.ConfigValueError(_describe_difference(part, lines, names, gather))


def _parts(params: config_definitions.ExperimentConfig, mode: str) -> dict[str, list[str]]:
    """Return the properties of a run that must match on all workers, each as lines of text."""
    runtime = params.runtime.replace(task_index=-1, worker_hosts=None)
    config = hyperparams.flatten(params.replace(runtime=runtime))
    return {
        "seed": [f"runtime.seed: {params.runtime.seed}"],
        "versions": [" ".join(item) for item in sorted(run_record.versions().items())],
        "config": [f"{path}: {value!r}" for path, value in config.items()],
        "code": list_code(params),
        "training data": [
            line
            for config in _configs_in(params)
            if flags.Mode(mode).trains and isinstance(config, config_definitions.DataConfig)
            if config.is_training and config.input_path and not config.enable_tf_data_service
            for line in _sizes(config.input_path)
        ],
    }


def _sizes(input_path: Sequence[str] | str | hyperparams.ParamsDict) -> list[str]:
    if isinstance(input_path, hyperparams.ParamsDict):
        return [line for path in input_path.as_dict().values() for line in _sizes(path)]
    try:
        found = file_patterns.match_files(input_path)
    except errors.OfficialLiteError as error:
        # Return the message instead of raising the error, so that the workers can compare their
        # results: the error may occur on this worker only. An error that occurs on all workers is
        # raised later, when the data are read.
        return [str(error)]
    with concurrent.futures.ThreadPoolExecutor(_MAX_THREADS) as pool:
        sizes = pool.map(files.size, found)
    return [f"{file}, {size:,} bytes" for file, size in zip(found, sizes, strict=True)]


def _describe_difference(
    part: str, lines: Sequence[str], names: Sequence[str], gather: _Gather
) -> str:
    """Describe the first line that differs between workers, and the text that each worker has."""
    length = int(gather([len(lines)]).max())
    padded = [*lines, *[""] * (length - len(lines))]
    numbers = gather([_number_of(line) for line in padded])
    first = int(np.argmax((numbers != numbers[0]).any(axis=0)))
    shown = padded[first].encode()[:_MAX_BYTES].ljust(_MAX_BYTES, b"\0")
    texts = [
        bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace")
        for row in gather(list(shown))
    ]
    others = np.flatnonzero(numbers[:, first] != numbers[0, first]).tolist()
    has = [f"{names[index]} has `{texts[index] or 'nothing'}`" for index in [0, *others]]
    return (
        f"The {part} of {names[0]} and of {', '.join(names[index] for index in others)} differ: "
        f"{', '.join(has)}. Start all workers with the same command, code and data."
    )


def _create_gather(strategy: tf.distribute.Strategy, num_workers: int) -> _Gather:
    """Create a function that gathers one row of numbers from each worker into a matrix."""

    def gather(numbers: Sequence[int]) -> np.ndarray[Any, Any]:
        own = tf.constant([numbers], tf.int64)
        rows = strategy.gather(strategy.run(lambda: own), axis=0).numpy()
        # Keep one row per worker, because the row of a worker is repeated for each of its replicas.
        return np.asarray(rows[:: len(rows) // num_workers])

    return gather


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
