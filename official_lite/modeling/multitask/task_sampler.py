"""Which task a step of interleaved training belongs to: a distribution, as a function of the step.

A sampler has no state, so a resumed run draws what an unbroken one would have drawn.
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
    """Says how likely each task is."""

    def __init__(self, task_weights: Mapping[str, float]) -> None:
        """Keeps the weights.

        Args:
            task_weights: A weight for each task, by its name; the order is that of the
                distribution.

        Raises:
            errors.ConfigValueError: A weight is negative, or none is positive.
        """
        super().__init__()
        weights = task_weights.values()
        if not any(weight > 0 for weight in weights) or not all(weight >= 0 for weight in weights):
            raise errors.ConfigValueError(
                f"The weights of the tasks are {dict(task_weights)}; wanted numbers that are not "
                "negative, and at least one that is not 0."
            )
        self._task_weights = task_weights

    @property
    def task_weights(self) -> Mapping[str, float]:
        """The weight of each task, by its name."""
        return self._task_weights

    @abc.abstractmethod
    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        """The probabilities of the tasks at a step, summed up from the first to each.

        Args:
            global_step: An integer scalar.

        Returns:
            float32 of shape `[number of tasks]`; the last is 1.
        """


class UniformTaskSampler(TaskSampler):
    """All tasks are equally likely, whatever their weights."""

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        del global_step
        return _cumulative(tf.ones([len(self.task_weights)]))


class ProportionalTaskSampler(TaskSampler):
    """A task is as likely as `weight ** alpha`."""

    def __init__(self, task_weights: Mapping[str, float], alpha: float = 1.0) -> None:
        super().__init__(task_weights)
        self._alpha = alpha

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        del global_step
        return _cumulative(_powers(self.task_weights, self._alpha))


class AnnealingTaskSampler(TaskSampler):
    """As proportional, with an `alpha` that falls from 1 in the first epoch to 0.2 in the last.

    So large tasks lead at first, and small ones are not forgotten later.

    Source: Stickland and Murray, "BERT and PALs", 2019, http://proceedings.mlr.press/v97/stickland19a/stickland19a.pdf,
    where epochs count from 1: `alpha = 1 - 0.8 * (epoch - 1) / (epochs - 1)`.
    """

    def __init__(
        self, task_weights: Mapping[str, float], steps_per_epoch: float, total_steps: float
    ) -> None:
        """Keeps the schedule.

        Args:
            task_weights: As for every sampler.
            steps_per_epoch: Steps, of all tasks together, that make an epoch.
            total_steps: Steps after which `alpha` falls no further.
        """
        super().__init__(task_weights)
        self._steps_per_epoch = float(steps_per_epoch)
        self._total_epochs = float(total_steps) / float(steps_per_epoch)

    def task_cumulative_distribution(self, global_step: tf.Tensor) -> tf.Tensor:
        finished_epochs = tf.floor(tf.cast(global_step, tf.float32) / self._steps_per_epoch)
        # With a single epoch there is nothing to anneal.
        progress = finished_epochs / max(self._total_epochs - 1.0, 1.0)
        alpha = 1.0 - 0.8 * tf.clip_by_value(progress, 0.0, 1.0)
        return _cumulative(_powers(self.task_weights, alpha))


def get_task_sampler(
    config: configs.TaskSamplingConfig, task_weights: Mapping[str, float]
) -> TaskSampler:
    """The sampler that a config asks for.

    Raises:
        errors.ConfigValueError: The config selects none.
    """
    options = config.get()
    if config.type == "uniform":
        return UniformTaskSampler(task_weights)
    if config.type == "proportional":
        return ProportionalTaskSampler(task_weights, options.alpha)
    if config.type == "annealing":
        return AnnealingTaskSampler(task_weights, options.steps_per_epoch, options.total_steps)
    raise errors.ConfigValueError(
        f"`task_sampler.type` is {config.type!r}; wanted `uniform`, `proportional` or `annealing`."
    )


def _powers(weights: Mapping[str, float], alpha: float | tf.Tensor) -> tf.Tensor:
    values = tf.constant(list(weights.values()), tf.float32)
    # 0 ** 0 is 1, but a task without weight is never drawn.
    return tf.where(values > 0, values**alpha, 0.0)


def _cumulative(sizes: tf.Tensor) -> tf.Tensor:
    sums = tf.cumsum(sizes)
    # The last sum divided by itself is 1 exactly, which a sum of fractions need not be.
    return sums / sums[-1]
