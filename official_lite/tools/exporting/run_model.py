"""Construction of a run's task and model on one device, and loading of its weights.

Nothing is written to the model directory, and no data is read unless it is needed to build the
model.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from official_lite.checkpoint import commit, fallback, model_state, warm_start
from official_lite.common import errors
from official_lite.core import model_building, step_checks
from official_lite.modeling import hyperparams
from official_lite.modeling.multitask import base_trainer, multitask
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory
from official_lite.pipeline.context import ExperimentContext
from official_lite.pipeline.stages import Build, find_stages
from official_lite.run import checkpoint_state, runtime

__all__ = ["built", "evaluation_data", "find_checkpoint", "load_weights", "read_checkpoint"]


@contextlib.contextmanager
def built(params: Any, mode: str = "") -> Iterator[tuple[ExperimentContext, Build]]:
    """Build task, model and optimizer as in the config's `build` stage.

    Args:
        params: The config.
        mode: Purpose of a trainer that is made of them: `train`, `eval`, or neither.

    Yields:
        The context with task, model and optimizer, and the `build` stage.
    """
    params = params.replace(runtime={"distribution_strategy": "off"})
    stage = find_stages(params)["build"]
    with tempfile.TemporaryDirectory() as directory:
        ctx = ExperimentContext(
            params=params, mode=mode, model_dir=directory, strategy=tf.distribute.get_strategy()
        )
        build: Any = stage(stage.view(ctx))
        with ctx.exit_stack:
            ctx.exit_stack.enter_context(runtime.seed_and_precision(params.runtime))
            ctx.task = build.make_task(ctx)
            ctx.model = build.make_model(ctx)
            _build_models(ctx)
            ctx.optimizer = build.make_optimizer(ctx)
            yield ctx, build


def evaluation_data(ctx: ExperimentContext) -> tf.data.Dataset:
    """Return the task's validation data, or its training data if it has no other."""
    return _evaluation_data(ctx.require("task"), ctx.params.task)


def _evaluation_data(task: Any, config: Any) -> tf.data.Dataset:
    data = hyperparams.get_by_path(config, "validation_data")
    data = data or hyperparams.get_by_path(config, "train_data")
    dataset: tf.data.Dataset = task.build_inputs(data)
    return dataset


def _build_models(ctx: ExperimentContext) -> None:
    """Create the variables of the model, or of the model of each task."""
    task, model = ctx.require("task"), ctx.require("model")
    if not isinstance(task, multitask.MultiTask):
        parts = [(task, ctx.params.task, model)]
    else:
        parts = [
            (one, one.task_config, base_trainer.task_model(model, name))
            for name, one in task.tasks.items()
        ]
    for one, config, part in parts:
        if not model_building.has_variables(part):
            spec = _evaluation_data(one, config).element_spec
            metrics = step_checks.build_metrics(one, training=False)
            model_building.build_by_task(part, one, spec, metrics, training=False)


def find_checkpoint(path: str) -> str:
    """Return the checkpoint at a path, or the latest one in a folder.

    Raises:
        errors.CheckpointError: There is none.
    """
    found = warm_start.find_checkpoint(path)
    if found is None:
        raise errors.CheckpointError(
            f"No checkpoint found at {path}. Expected a directory of checkpoints, or a path such "
            f"as {os.path.join(path, 'ckpt-1000')}."
        )
    return found


def load_weights(ctx: ExperimentContext, prefix: str) -> None:
    """Load the weights that an evaluation of the checkpoint would use.

    These are the averaged weights if the optimizer keeps a moving average.

    Raises:
        errors.CheckpointError: The checkpoint is damaged or belongs to another model.
    """
    model = ctx.require("model")
    items = model_state.weight_items(model)
    if ctx.optimizer is not None:
        ema_optimizer.evaluate_averages(ctx.optimizer)
    if not ema_optimizer.keeps_averages(ctx.optimizer):
        read_checkpoint(tf.train.Checkpoint(**items), prefix)
        return
    optimizer = optimizer_factory.prepare_optimizer(ctx.optimizer, model)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, **items)
    read_checkpoint(
        checkpoint, prefix, optional=checkpoint_state.find_unneeded(checkpoint, optimizer)
    )
    ema_optimizer.swap_weights(optimizer)


def read_checkpoint(
    checkpoint: tf.train.Checkpoint, prefix: str, *, optional: Iterable[Any] = ()
) -> None:
    """Read all objects of a `tf.train.Checkpoint` from the files at a prefix.

    Args:
        checkpoint: The objects to restore.
        prefix: Prefix of the files.
        optional: Variables that may be missing in the files.

    Raises:
        errors.CheckpointError: The files are damaged, lack a variable, or contain one with another
            shape.
    """
    damage = commit.find_damage(prefix)
    if damage is not None:
        raise errors.CheckpointError(f"{prefix} is damaged: {damage}.")
    try:
        fallback.restore(checkpoint, prefix, optional=optional, is_partial=True)
    except errors.CheckpointError:
        raise
    except (ValueError, tf.errors.OpError) as error:
        raise errors.CheckpointError(
            f"{prefix} does not match the model of the config: {str(error).strip()[:500]}"
        ) from error
