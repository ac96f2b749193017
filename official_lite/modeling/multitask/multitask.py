"""Collection of tasks with weights, and the step that trains them jointly."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from official_lite.common import errors, suggestions
from official_lite.core import base_task, config_definitions, task_factory
from official_lite.modeling import optimization
from official_lite.modeling.multitask import base_model, configs

__all__ = ["MultiTask", "OptimizationConfig", "RuntimeConfig"]

OptimizationConfig = optimization.OptimizationConfig
RuntimeConfig = config_definitions.RuntimeConfig


class MultiTask(tf.Module, metaclass=abc.ABCMeta):
    """Collection of tasks that are trained together and named like the model's `sub_tasks`.

    Args:
        tasks: The tasks by name, or a sequence of tasks that are identified by their own names.
        task_weights: The factor of each task's loss in joint training, or its weight for the
            sampler; 1 for a missing task.
        task_eval_steps: The number of batches in an evaluation of each task. For None or a missing
            task, the trainer's config applies.
        name: The name of the collection.

    Raises:
        errors.ConfigValueError: Two tasks have the same name, or `tasks` is neither a mapping nor a
            sequence.
        errors.UnknownKeyError: A weight or a number of steps is given for an unknown task.
    """

    def __init__(
        self,
        tasks: Mapping[str, base_task.Task] | Sequence[base_task.Task],
        task_weights: Mapping[str, float] | None = None,
        task_eval_steps: Mapping[str, int | None] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._tasks = _by_name(tasks)
        _require_known(task_weights or {}, self._tasks, "task_weights")
        _require_known(task_eval_steps or {}, self._tasks, "task_eval_steps")
        self.task_eval_steps = dict(task_eval_steps or {})
        self._task_weights = dict.fromkeys(self._tasks, 1.0) | dict(task_weights or {})

    @classmethod
    def from_config(cls, config: configs.MultiTaskConfig, logging_dir: str | None = None) -> Self:
        """Build the task of each routine.

        Raises:
            errors.ConfigValueError: A routine has no name, or two routines have the same name.
        """
        config.validate_fields()
        routines = {routine.resolved_name: routine for routine in config.task_routines}
        tasks, weights = {}, {}
        for name, routine in routines.items():
            tasks[name] = task_factory.get_task(
                routine.task_config, logging_dir=logging_dir, name=name
            )
            weights[name] = 1.0 if routine.task_weight is None else routine.task_weight
        return cls(tasks, weights, {name: one.eval_steps for name, one in routines.items()})

    @property
    def tasks(self) -> dict[str, base_task.Task]:
        """The tasks, by name."""
        return self._tasks

    def task_weight(self, task_name: str) -> float:
        """Return the weight of a task."""
        return self._task_weights[task_name]

    @property
    def task_weights(self) -> dict[str, float]:
        """The weight of each task, in the order of `tasks`."""
        return self._task_weights

    @classmethod
    def create_optimizer(
        cls,
        optimizer_config: OptimizationConfig,
        runtime_config: RuntimeConfig | None = None,
        dp_config: Any = None,
    ) -> keras.optimizers.Optimizer:
        """Build the optimizer of all tasks, as `Task.create_optimizer` does for one task."""
        return base_task.Task.create_optimizer(optimizer_config, runtime_config, dp_config)

    def joint_train_step(
        self,
        task_inputs: Mapping[str, Any],
        multi_task_model: base_model.MultiTaskBaseModel,
        optimizer: keras.optimizers.Optimizer,
        task_metrics: Mapping[str, Sequence[keras.metrics.Metric]],
        **kwargs: Any,
    ) -> dict[str, tf.Tensor]:
        """Make one update from one replica's batch of each task.

        The loss is the weighted sum of the tasks' losses. Losses that layers add in a forward pass
        belong to the task of that pass. The regularization of a weight is added to the sum once,
        however many tasks share the weight, and is not part of any task's loss.

        Args:
            task_inputs: A batch for each task.
            multi_task_model: The models.
            optimizer: The optimizer of all tasks.
            task_metrics: The metrics of each task.
            **kwargs: Passed to each task's `process_metrics`.

        Returns:
            This replica's loss of each task, and the minimized loss under `total_loss`.
        """
        losses = {}
        with tf.GradientTape() as tape:
            for name, model in multi_task_model.sub_tasks.items():
                task = self.tasks[name]
                features, labels, weights = base_task.split_batch(task_inputs[name], model)
                outputs = model(features, training=True)
                losses[name] = task.step_loss(
                    model,
                    features,
                    labels,
                    outputs,
                    sample_weight=weights,
                    aux_losses=_losses_of_call(model),
                )
                task.update_metrics(
                    model,
                    task_metrics[name],
                    labels,
                    outputs,
                    features=features,
                    sample_weight=weights,
                    **kwargs,
                )
            weighted = [
                self.task_weight(name) * tf.cast(loss, tf.float32) for name, loss in losses.items()
            ]
            variables = multi_task_model.trainable_variables
            total_loss = tf.add_n([*weighted, *_regularization(variables)])
            # Gradients are summed over the replicas, so divide the loss by their number to obtain
            # the mean gradient.
            scaled_loss = total_loss / tf.distribute.get_strategy().num_replicas_in_sync
            scaled_loss = optimizer.scale_loss(scaled_loss)
        gradients = tape.gradient(scaled_loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        return losses | {"total_loss": total_loss}


def _by_name(tasks: Any) -> dict[str, base_task.Task]:
    if isinstance(tasks, Mapping):
        return dict(tasks)
    if not isinstance(tasks, Sequence):
        raise errors.ConfigValueError(
            f"`tasks` is a {type(tasks).__name__}; expected a list of tasks, or a dict from name "
            "to task."
        )
    by_name: dict[str, base_task.Task] = {}
    for task in tasks:
        if task.name in by_name:
            raise errors.ConfigValueError(
                f"Two tasks are named {task.name!r}. Give each a unique name: `MyTask(params, "
                "name=…)`."
            )
        by_name[task.name] = task
    return by_name


def _require_known(names: Mapping[str, Any], tasks: Mapping[str, Any], argument: str) -> None:
    for name in names:
        if name not in tasks:
            raise errors.UnknownKeyError(
                f"`{argument}` contains {name!r}, which is not a task. "
                f"{suggestions.did_you_mean(name, tasks)}"
            )


def _losses_of_call(model: keras.Model) -> list[tf.Tensor]:
    """Return `model.losses` without the weight regularization, which Keras puts last."""
    num_regularized = len(_regularized(model.trainable_variables))
    return list(model.losses)[: len(model.losses) - num_regularized]


def _regularization(variables: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.cast(v.regularizer(v), tf.float32) for v in _regularized(variables)]


def _regularized(variables: Sequence[Any]) -> list[Any]:
    return [v for v in variables if getattr(v, "regularizer", None) is not None]
