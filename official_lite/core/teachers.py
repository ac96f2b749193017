"""The teacher of a distillation: the model of another run, rebuilt from its config."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from official_lite.checkpoint import fallback, model_state, warm_start
from official_lite.common import errors, plugins
from official_lite.compression import configs, distillation
from official_lite.config import compatibility, parsing
from official_lite.core import base_task, config_definitions, exp_factory, task_factory
from official_lite.modeling import freezing, hyperparams
from official_lite.modeling.hyperparams import yaml_io
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory

__all__ = ["attach_teacher"]


def attach_teacher(
    params: config_definitions.ExperimentConfig,
    task: base_task.Task,
    build_model: Callable[[base_task.Task], keras.Model],
) -> None:
    """Build the teacher that `task.compression.distillation` names, as `task.distillation`.

    Call it in the strategy's scope. The weights are loaded by `Distillation.bind`.

    Args:
        params: The config of the student.
        task: The task of the student.
        build_model: Returns the model of a task.

    Raises:
        errors.ConfigError: There is no run, or its config can't be read.
        errors.CheckpointError: The run has no checkpoint.
    """
    config: configs.DistillationConfig | None = hyperparams.get_by_path(
        params.task, "compression.distillation"
    )
    if config is None:
        return
    run_dir = compatibility.find_run_dir(config.teacher)
    if run_dir is None:
        raise errors.ConfigValueError(
            f"`distillation.teacher` is {config.teacher!r}; expected the model directory of a run, "
            "or a checkpoint in it, but there is no params.yaml."
        )
    checkpoint = warm_start.find_checkpoint(config.teacher)
    if checkpoint is None:
        raise errors.CheckpointError(
            f"`distillation.teacher` is {config.teacher!r}, which contains no checkpoint."
            f"{warm_start.remedy(config.teacher)}"
        )
    teacher_params = _read_params(run_dir, config.experiment)
    trusted = parsing.given_by_code(teacher_params)
    teacher_params.override(yaml_io.read_yaml(_params_path(run_dir)))
    strategy = tf.distribute.get_strategy()
    with _restricted(run_dir, trusted):
        teacher_task = task_factory.get_task(teacher_params.task)
        teacher = build_model(teacher_task)

    def load_weights(path: str) -> None:
        # A checkpoint of the student is restored outside the scope.
        with _restricted(run_dir, trusted), strategy.scope():
            _load_weights(teacher, teacher_task, teacher_params, path)

    task.distillation = distillation.Distillation(config, teacher, checkpoint, load_weights)


def _read_params(run_dir: str, experiment: str) -> Any:
    """Return the registered config of the experiment of a run."""
    recorded = compatibility.recorded_experiment(run_dir)
    if not experiment and plugins.names_code(recorded):
        raise errors.ConfigValueError(
            f"The experiment of the teacher in {run_dir} is {recorded!r}, which runs code. If you "
            "trust it, set `distillation.experiment` to it."
        )
    if not experiment and not recorded:
        raise errors.ConfigValueError(
            f"The run.json in {run_dir} does not name the experiment of the teacher. Set "
            "`distillation.experiment`."
        )
    return exp_factory.get_exp_config(experiment or recorded)


def _params_path(run_dir: str) -> str:
    return os.path.join(run_dir, "params.yaml")


@contextlib.contextmanager
def _restricted(run_dir: str, trusted: list[Any]) -> Iterator[None]:
    """Let the config of the teacher name only what is registered."""
    before = plugins.restriction()
    reason = f"{_params_path(run_dir)} is not trusted."
    plugins.restrict(plugins.Restriction(reason, trusted))
    try:
        yield
    finally:
        plugins.restrict(before)


def _load_weights(
    model: keras.Model,
    task: base_task.Task,
    params: config_definitions.ExperimentConfig,
    path: str,
) -> None:
    """Load the weights that an evaluation would have: the averaged ones, if there are any."""
    items = model_state.weight_items(model)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    average = ema_optimizer.get_moving_average(optimizer)
    if average is not None:
        # Frozen weights have no average.
        freezing.freeze(model, params.trainer.freeze)
        items["optimizer"] = optimizer_factory.prepare_optimizer(optimizer, model)
    try:
        fallback.restore(tf.train.Checkpoint(**items), path, is_partial=True)
    except errors.CheckpointError:
        raise
    except (ValueError, tf.errors.OpError) as error:
        raise errors.CheckpointError(
            f"The weights of the teacher can't be loaded from {path}: {str(error).strip()[:500]}"
        ) from error
    if average is not None:
        average.swap_weights()
