"""Samplers that define the probability of each task in a step of interleaved training.

A sampler has no state, so a resumed run draws the same tasks as an uninterrupted one.
"""

import abc
from collections.abc import Mapping

import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling.multitask import configs

__all__ = [
    "AnnealingTaskSampler",
    "ProportionalTaskSampler",
    "TaskSampler",
    "UniformTaskSampler",
    "get_task_sampler",
]


class TaskSampler(tf.Module, metaclass=abc.ABCMeta):
    """Base class of samplers, which define the probability of each task.

    Args:
        task_weights: A weight for each task, by name. Its order is the order of the distribution.

    Raises:
        errors.ConfigValueError: A weight is negative, or no weight is positive.
    """

    def __init__(self, task_weights: Mapping[str, float]) -> None:
        super().__init__()
        weights = task_weights.values()
        if not any(weight > 0 for weight in weights) or not all(weight >= 0 for weight in weights):
            raise errors.ConfigValueError(
                f"The task weights are {dict(task_weights)}; expected non-negative "
                "numbers, at least one of them positive."
            )
        self._task_weights = task_weights

    @property
    def task_weights(self) -> Mapping[str, float]:
        """The weight of each task, by name."""
        return self._task_weights

    @abc.abstractmethod
    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        """Return the cumulative probabilities of the tasks at a step.

        Args:
            global_step: An integer scalar.

        Returns:
            A float32 tensor of shape `[number of tasks]`; the last element is 1.
        """


class UniformTaskSampler(TaskSampler):
    """Sampler that draws all tasks with equal probability and ignores their weights."""

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        del global_step
        return _cumulative(tf.ones([len(self.task_weights)]))


class ProportionalTaskSampler(TaskSampler):
    """Sampler that draws a task with a probability proportional to `weight ** alpha`."""

    def __init__(self, task_weights: Mapping[str, float], alpha: float = 1.0) -> None:
        super().__init__(task_weights)
        self._alpha = alpha

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        del global_step
        return _cumulative(_powers(self.task_weights, self._alpha))


class AnnealingTaskSampler(TaskSampler):
    """Proportional sampler whose `alpha` falls from 1 in the first epoch to 0.2 in the last.

    Large tasks dominate at first, and small tasks are not neglected later.

    Source: Stickland and Murray, "BERT and PALs", 2019,
    http://proceedings.mlr.press/v97/stickland19a/stickland19a.pdf,
    where epochs count from 1: `alpha = 1 - 0.8 * (epoch - 1) / (epochs - 1)`.

    Args:
        task_weights: A weight for each task, by name.
        steps_per_epoch: The number of steps per epoch, over all tasks together.
        total_steps: The number of steps after which `alpha` stays constant.
    """

    def __init__(
        self, task_weights: Mapping[str, float], steps_per_epoch: float, total_steps: float
    ) -> None:
        super().__init__(task_weights)
        self._steps_per_epoch = float(steps_per_epoch)
        self._total_epochs = float(total_steps) / float(steps_per_epoch)

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        finished_epochs = tf.floor(tf.cast(global_step, tf.float32) / self._steps_per_epoch)
        # Avoid a division by 0: with a single epoch, there is nothing to anneal.
        progress = finished_epochs / max(self._total_epochs - 1.0, 1.0)
        alpha = 1.0 - 0.8 * tf.clip_by_value(progress, 0.0, 1.0)
        return _cumulative(_powers(self.task_weights, alpha))


def get_task_sampler(
    config: configs.TaskSamplingConfig, task_weights: Mapping[str, float]
) -> TaskSampler:
    """Build the sampler that a config selects.

    Raises:
        errors.ConfigValueError: The config does not select a sampler.
    """
    options = config.get()
    if config.type == "uniform":
        return UniformTaskSampler(task_weights)
    if config.type == "proportional":
        return ProportionalTaskSampler(task_weights, options.alpha)
    if config.type == "annealing":
        return AnnealingTaskSampler(task_weights, options.steps_per_epoch, options.total_steps)
    raise errors.ConfigValueError(
        f"`task_sampler.type` is {config.type!r}; expected `uniform`, `proportional` or "
        "`annealing`."
    )


def _powers(weights: Mapping[str, float], alpha: float | tf.Tensor) -> tf.Tensor:
    values = tf.constant(list(weights.values()), tf.float32)
    # Handle weight 0 separately: 0 ** 0 is 1, but a task with weight 0 must never be drawn.
    return tf.where(values > 0, values**alpha, 0.0)


def _cumulative(sizes: tf.Tensor) -> tf.Tensor:
    sums = tf.cumsum(sizes)
    # Divide the sums instead of summing fractions, so that the last value is exactly 1.
    return sums / sums[-1]
