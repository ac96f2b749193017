"""Fine-tunes from every checkpoint of another job's pretraining, while that goes on.

::

    model_dir/
      metrics-<pretrain step>.json     what the evaluation after fine-tuning found
      eval/                            the same as event files, over the pretrain steps
      finetune-<pretrain step>/        the record of that fine-tuning, as of any run

A checkpoint whose metrics file is there is done: a restarted job goes on with the next one.
Nothing is ever deleted.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit, telemetry
from official_lite.checkpoint import contents, directories
from official_lite.cluster import task_server
from official_lite.common import errors, files, nested_dict, run_mode
from official_lite.core import config_definitions, task_factory, train_lib
from official_lite.orbit import checkpointing
from official_lite.run import preemption, preflight, run_record, runtime

__all__ = ["run_continuous_finetune", "write_json_summary", "write_summary"]


MODE = run_mode.Mode.CONTINUOUS_TRAIN_AND_EVAL

Logs = Mapping[str, Any]


def run_continuous_finetune(
    mode: str,
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    pretrain_steps: int | None = None,
    *,
    finetune: Callable[..., Logs] | None = None,
) -> Logs:
    """Trains and evaluates from each checkpoint that appears in `params.task.init_checkpoint`.

    The checkpoints come in order, none left out but those that were removed before their turn. It
    ends with the one of step `pretrain_steps`, or when none has come for
    `params.trainer.continuous_eval_timeout` seconds.

    Args:
        mode: `continuous_train_and_eval`.
        params: The experiment's config; `task.init_checkpoint` is the directory of the pretraining.
        model_dir: The directory of this job.
        run_post_eval: Whether to return the metrics of the last fine-tuning.
        pretrain_steps: The last step of the pretraining.
        finetune: Called with strategy, task, config and directory in place of
            `train_lib.run_experiment`; returns the metrics.

    Returns:
        The metrics, with `run_post_eval`; else an empty dictionary.

    Raises:
        errors.ConfigValueError: The mode is another, or `task.init_checkpoint` is no directory.
        errors.CheckpointError: No checkpoint appeared at all.
    """
    if task_server.is_server(params.runtime.distribution_strategy):
        task_server.serve()
        return {}
    _check_arguments(mode, params.task.init_checkpoint)
    preflight.check(params, run_mode.Mode.TRAIN_AND_EVAL)
    run_record.check_model_dir(model_dir)
    with preemption.catch_signals():
        logs = _finetune_all(params, model_dir, pretrain_steps, finetune or _finetune)
    return logs if run_post_eval else {}


def _finetune_all(
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    pretrain_steps: int | None,
    finetune: Callable[..., Logs],
) -> Logs:
    strategy = runtime.build_strategy(params.runtime)
    logs: Logs | None = None
    for step, path in _pretrain_checkpoints(params, pretrain_steps):
        logs = _read_json_summary(model_dir, step)
        if logs is not None:
            logging.info("Pretrain step %d has been fine-tuned before.", step)
            continue
        run_params = params.replace(task={"init_checkpoint": path})
        run_dir = os.path.join(model_dir, f"finetune-{step}")
        with strategy.scope():
            task = task_factory.get_task(run_params.task, logging_dir=run_dir)
        logs = finetune(strategy, task, run_params, run_dir)
        with strategy.scope():
            if directories.is_chief():
                _write_summaries(model_dir, step, task.name, logs)
        del task
        runtime.forget_last_run()
    if logs is None:
        raise errors.CheckpointError(
            f"No checkpoint appeared in {params.task.init_checkpoint} for "
            f"{params.trainer.continuous_eval_timeout} seconds "
            "(`trainer.continuous_eval_timeout`)."
        )
    return logs


def write_json_summary(log_dir: str, global_step: int, eval_metrics: Logs) -> None:
    """Writes metrics to `metrics-<global_step>.json`: every value as text, nested ones nested."""
    metrics = nested_dict.cast_leaf_nested_dict(
        nested_dict.filter_leaf_nested_dict(eval_metrics, lambda _: True),
        lambda value: str(orbit.utils.get_value(value)),
    )
    logging.info("Evaluation results at pretrain step %d: %s", global_step, metrics)
    files.write_text(_json_path(log_dir, global_step), json.dumps(metrics, indent=4) + "\n")


def write_summary(summary_writer: Any, global_step: int, eval_metrics: Logs) -> None:
    """Writes scalar metrics to a `tf.summary` writer.

    Args:
        summary_writer: The writer.
        global_step: The step to write them at.
        eval_metrics: A number, or a tensor of one, by tag.
    """
    with summary_writer.as_default():
        for tag, value in eval_metrics.items():
            telemetry.scalar_summary(tag, float(orbit.utils.get_value(value)), step=global_step)
        summary_writer.flush()


def _check_arguments(mode: str, pretrain_dir: str) -> None:
    if mode != MODE:
        raise errors.ConfigValueError(f"the mode is {mode!r}; wanted {MODE.value!r}.")
    if not pretrain_dir or tf.io.gfile.exists(pretrain_dir + ".index"):
        raise errors.ConfigValueError(
            f"`task.init_checkpoint` is {pretrain_dir!r}; wanted the directory in which the "
            "pretraining saves its checkpoints. It need not exist yet."
        )


def _pretrain_checkpoints(
    params: config_definitions.ExperimentConfig, last_step: int | None
) -> Iterator[tuple[int, str]]:
    """The step and the path of each checkpoint."""
    paths = checkpointing.watch_checkpoints(
        params.task.init_checkpoint, params.trainer.continuous_eval_timeout
    )
    for path in paths:
        try:
            step = contents.read_global_step_from_checkpoint(path)
        except tf.errors.NotFoundError:
            logging.warning("%s was removed before its turn.", path)
            continue
        yield step, path
        if last_step and step >= last_step:
            return


def _finetune(
    strategy: tf.distribute.Strategy,
    task: Any,
    params: config_definitions.ExperimentConfig,
    run_dir: str,
) -> Logs:
    _, logs = train_lib.run_experiment(
        strategy, task, "train_and_eval", params, run_dir, run_post_eval=True
    )
    return logs


def _read_json_summary(log_dir: str, step: int) -> Logs | None:
    path = _json_path(log_dir, step)
    if not files.exists(path):
        return None
    return nested_dict.cast_leaf_nested_dict(json.loads(files.read_text(path)), _number)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:  # Such as the text of an array.
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
        # A start that was killed before the file below was written has left the same values.
        writer.rewind(step)
        writer.write_values(values, step=step)
    # Last, since this file says that the checkpoint is done.
    write_json_summary(model_dir, step, logs)
