"""Continuous fine-tuning from every checkpoint of a pretraining job, while that job is running.

::

    model_dir/
      metrics-<pretrain step>.json     the metrics of the evaluation after fine-tuning
      eval/                            the same metrics as event files, over the pretrain steps
      finetune-<pretrain step>/        the model directory of that fine-tuning run

A checkpoint with a metrics file is done. A restarted job first resumes the fine-tuning runs that
have a checkpoint of their own but no metrics file, even if their pretraining checkpoints have been
removed. It then continues with the next checkpoint. This job never deletes anything. With another
config or another pretraining directory, it ends with an error, unless the change is allowed.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit, telemetry
from official_lite.checkpoint import directories, inspection, latest
from official_lite.common import cluster, errors, files, flags, nested_dict, preemption, tf_config
from official_lite.config import compatibility, parsing
from official_lite.core import base_task, config_definitions, preflight, task_factory, train_lib
from official_lite.modeling.hyperparams import yaml_io
from official_lite.orbit import checkpointing
from official_lite.run import runtime

MODE = flags.Mode.CONTINUOUS_TRAIN_AND_EVAL

Logs = Mapping[str, Any]

_RUN = re.compile(r"finetune-(\d+)")


def run_continuous_finetune(
    mode: str,
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    pretrain_steps: int | None = None,
    *,
    finetune: Callable[..., Logs] | None = None,
    allow_config_change: bool = False,
) -> Logs:
    """Train and evaluate from each checkpoint that appears in `params.task.init_checkpoint`.

    Checkpoints are processed in order. None is skipped, except for those that are deleted before
    their weights are loaded. The job ends after the checkpoint of step `pretrain_steps`, or when no
    new checkpoint has appeared for `params.trainer.continuous_eval_timeout` seconds.

    Args:
        mode: The mode; must be `continuous_train_and_eval`.
        params: The experiment's config; `task.init_checkpoint` is the directory in which the
            pretraining job saves its checkpoints.
        model_dir: The model directory of this job.
        run_post_eval: Whether to return the metrics of the last fine-tuning run.
        pretrain_steps: The last pretraining step.
        finetune: A function to call instead of `train_lib.run_experiment`. It takes the strategy,
            the task, the config and the model directory, and returns the metrics.
        allow_config_change: Whether the runs of earlier starts may have a different config or
            another pretraining directory. It has no effect on a given `finetune`.

    Returns:
        The metrics if `run_post_eval` is set; else an empty dictionary.

    Raises:
        errors.ConfigValueError: If the mode is any other, `task.init_checkpoint` is not a
            directory, the experiment has phases, or a run of an earlier start does not match.
        errors.CheckpointError: If no checkpoint appeared at all.
    """
    if cluster.is_server(params.runtime.distribution_strategy):
        cluster.serve()
        return {}
    # Read the model files now: the config is compared with those of earlier runs, which contain the
    # contents of these files.
    params = parsing.read_model_files(parsing.expand_home(params))
    model_dir = files.expand_home(model_dir)
    _check_arguments(mode, params.task.init_checkpoint)
    preflight.check_run(
        params,
        flags.Mode.TRAIN_AND_EVAL,
        model_dir,
        # The pretraining checkpoints may not exist yet.
        reads_weights=False,
        # Skip the check of input files in a cluster: if one process failed alone, the others would
        # wait for it.
        reads_files=tf_config.read_tf_config() is None,
    )
    # A given `finetune` may change the config of each run, so its runs can't be compared.
    if finetune is None and not allow_config_change:
        _check_earlier_runs(params, model_dir)
    finetune = finetune or functools.partial(_finetune, allow_config_change=allow_config_change)
    with preemption.catch_signals():
        logs = _finetune_all(params, model_dir, pretrain_steps, finetune)
    return logs if run_post_eval else {}


def _finetune_all(
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    pretrain_steps: int | None,
    finetune: Callable[..., Logs],
) -> Logs:
    strategy = runtime.build_strategy(params.runtime)
    checkpoints = _pretrain_checkpoints(params, model_dir, pretrain_steps)

    def next_checkpoint() -> tuple[int, str] | None:
        # `preemption.check`, which is called during the wait, needs the strategy's scope.
        with strategy.scope():
            return next(checkpoints, None)

    logs: Logs | None = None
    for step, path in iter(next_checkpoint, None):
        earlier_logs = _read_json_summary(model_dir, step)
        if earlier_logs is not None:
            logging.info("Skipping pretrain step %d, which has already been fine-tuned.", step)
            logs = earlier_logs
            continue
        run_params = params.replace(task={"init_checkpoint": path})
        run_dir = os.path.join(model_dir, f"finetune-{step}")
        with strategy.scope():
            task = task_factory.get_task(run_params.task, logging_dir=run_dir)
        try:
            logs = finetune(strategy, task, run_params, run_dir)
        except (errors.CheckpointError, tf.errors.NotFoundError):
            # Skip the checkpoint only if it was removed before this run read it. A run that has a
            # checkpoint of its own does not read it. In a cluster, no process may skip it alone,
            # because others may have read it in time.
            is_read = not latest.latest_checkpoint(run_dir) and tf_config.read_tf_config() is None
            if files.exists(f"{path}.index") or not is_read:
                raise
            _warn_of_removal(path)
        else:
            with strategy.scope():
                if directories.is_chief():
                    _write_summaries(model_dir, step, task.name, logs)
        del task
        runtime.forget_last_run()
    if logs is None:
        raise errors.CheckpointError(
            f"No checkpoint appeared in {params.task.init_checkpoint} for "
            f"{params.trainer.continuous_eval_timeout} seconds "
            "(`trainer.continuous_eval_timeout`). Check that the pretraining job saves its "
            "checkpoints there, or increase the timeout."
        )
    return logs


def write_json_summary(log_dir: str, global_step: int, eval_metrics: Logs) -> None:
    """Write metrics to `metrics-<global_step>.json`, with all values as text; nesting is kept."""
    metrics = nested_dict.cast_leaf_nested_dict(
        nested_dict.filter_leaf_nested_dict(eval_metrics, lambda _: True),
        lambda value: str(orbit.utils.get_value(value)),
    )
    logging.info("Evaluation results at pretrain step %d: %s", global_step, metrics)
    files.write_text(_json_path(log_dir, global_step), json.dumps(metrics, indent=4) + "\n")


def write_summary(
    summary_writer: tf.summary.SummaryWriter, global_step: int, eval_metrics: Logs
) -> None:
    """Write scalar metrics to a `tf.summary` writer.

    Args:
        summary_writer: The writer.
        global_step: The step at which the metrics are recorded.
        eval_metrics: A mapping of tags to numbers or scalar tensors.
    """
    with summary_writer.as_default():
        for tag, value in eval_metrics.items():
            telemetry.scalar_summary(tag, float(orbit.utils.get_value(value)), step=global_step)
        summary_writer.flush()


def _check_arguments(mode: str, pretrain_dir: str) -> None:
    if mode != MODE:
        raise errors.ConfigValueError(f"The mode must be {MODE.value!r}; got {mode!r}.")
    if not pretrain_dir or tf.io.gfile.exists(pretrain_dir + ".index"):
        raise errors.ConfigValueError(
            f"`task.init_checkpoint` is {pretrain_dir!r}; expected the directory in which the "
            "pretraining job saves its checkpoints. It does not have to exist yet."
        )


def _check_earlier_runs(params: config_definitions.ExperimentConfig, model_dir: str) -> None:
    """Check that the runs of earlier starts match this job, so that metrics are comparable."""
    wanted = params.task.init_checkpoint
    for name in sorted(filter(_RUN.fullmatch, files.list_names(model_dir))):
        run_dir = os.path.join(model_dir, name)
        config = os.path.join(run_dir, "params.yaml")
        if not files.exists(config):
            continue
        path = yaml_io.read_yaml(config)["task"]["init_checkpoint"]
        found = os.path.dirname(path)
        if os.path.realpath(found) != os.path.realpath(wanted):
            raise errors.ConfigValueError(
                f"{run_dir} was fine-tuned from a checkpoint in {found}, but "
                f"`task.init_checkpoint` is {wanted}. Use another `model_dir` for the checkpoints "
                "in the other directory. If the directory was only moved, pass "
                "--allow_config_change (in Python: `allow_config_change=True`)."
            )
        if latest.latest_checkpoint(run_dir):
            compatibility.check(params.replace(task={"init_checkpoint": path}), run_dir)


def _pretrain_checkpoints(
    params: config_definitions.ExperimentConfig, model_dir: str, last_step: int | None
) -> Iterator[tuple[int, str]]:
    """Yield the step and path of each pretraining checkpoint, starting with unfinished runs."""
    begun = _begun(model_dir)
    for step, path in begun.items():
        if not last_step or step <= last_step:
            logging.info("Resuming the run of pretrain step %d, which is not complete.", step)
            yield step, path
    for step, path in _appearing(params):
        if step not in begun:
            yield step, path
        if last_step and step >= last_step:
            return


def _begun(model_dir: str) -> dict[int, str]:
    """Return the step and the pretraining checkpoint of each run that can be resumed.

    Incomplete runs before the last complete one are ignored: an older version skipped them.
    """
    found = [match for name in files.list_names(model_dir) if (match := _RUN.fullmatch(name))]
    steps = sorted(int(match[1]) for match in found)
    last_done = max(
        (step for step in steps if files.exists(_json_path(model_dir, step))), default=-1
    )
    begun = {}
    for step in steps:
        run_dir = os.path.join(model_dir, f"finetune-{step}")
        config = os.path.join(run_dir, "params.yaml")
        if step > last_done and files.exists(config) and latest.latest_checkpoint(run_dir):
            begun[step] = yaml_io.read_yaml(config)["task"]["init_checkpoint"]
    return begun


def _appearing(params: config_definitions.ExperimentConfig) -> Iterator[tuple[int, str]]:
    """Yield the step and the path of each pretraining checkpoint as it appears."""
    paths = checkpointing.watch_checkpoints(
        params.task.init_checkpoint, params.trainer.continuous_eval_timeout
    )
    for path in paths:
        try:
            step = inspection.read_global_step_from_checkpoint(path)
        except tf.errors.NotFoundError:
            _warn_of_removal(path)
            continue
        yield step, path


def _warn_of_removal(path: str) -> None:
    logging.warning("Skipping %s, which was removed before it could be fine-tuned.", path)


def _finetune(
    strategy: tf.distribute.Strategy,
    task: base_task.Task,
    params: config_definitions.ExperimentConfig,
    run_dir: str,
    allow_config_change: bool,
) -> Logs:
    _, logs = train_lib.run_experiment(
        strategy,
        task,
        "train_and_eval",
        params,
        run_dir,
        run_post_eval=True,
        allow_config_change=allow_config_change,
    )
    return logs


def _read_json_summary(log_dir: str, step: int) -> Logs | None:
    path = _json_path(log_dir, step)
    if not files.exists(path):
        return None
    try:
        return nested_dict.cast_leaf_nested_dict(files.read_json(path), _number)
    except ValueError as error:
        files.set_aside(path, error)
        return None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:  # The text may, for example, represent an array.
        return text


def _json_path(log_dir: str, step: int) -> str:
    return os.path.join(log_dir, f"metrics-{step}.json")


def _write_summaries(model_dir: str, step: int, task_name: str, logs: Logs) -> None:
    group = f"{os.path.basename(os.path.normpath(model_dir))}_{task_name}"
    flat = {
        f"{group}/{tag}": orbit.utils.get_value(value)
        for tag, value in nested_dict.flatten_nested_dict(logs, "-").items()
    }
    values = {tag: value for tag, value in flat.items() if np.ndim(value) == 0}
    with telemetry.TensorBoardWriter(os.path.join(model_dir, "eval")) as writer:
        # Drop values from an earlier attempt that was killed before it wrote its JSON file.
        writer.rewind(step)
        writer.write_values(values, step=step)
    # Write the JSON file last, because it marks the checkpoint as done.
    write_json_summary(model_dir, step, logs)
