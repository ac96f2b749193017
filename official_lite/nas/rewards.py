"""The reward of an architecture on a batch; larger is better."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from official_lite.common import errors, suggestions, types, user_code
from official_lite.core import base_task, step_checks
from official_lite.nas import loss_probe
from official_lite.orbit.hooks import watched_metric

__all__ = ["Reward"]


class Reward:
    """A reward for the output of a model with choices, based on the task's validation step.

    Create it in the strategy's scope.

    Args:
        task: The task.
        model: The model of the task.
        metric: The name of one of the task's metrics. If it is empty, the reward is the negative
            loss.
        direction: `maximize` or `minimize`; used only with a metric. If it is empty, the name of
            the metric decides.

    Raises:
        errors.ConfigValueError: If the metric is unknown to the task.
    """

    def __init__(
        self, task: base_task.Task, model: keras.Model, *, metric: str = "", direction: str = ""
    ) -> None:
        self._task = task
        self._model = model
        with user_code.keeping_attributes(task):
            self._metrics = step_checks.build_metrics(task, training=False, model=model)
        self._wanted = self._find(metric) if metric else None
        self._sign = 1.0
        if metric and not watched_metric.maximizes(metric, direction, default="maximize"):
            self._sign = -1.0

    @user_code.not_converted
    def of_batch(self, inputs: types.Nest) -> tf.Tensor:
        """Return the reward of a batch, averaged over the replicas, without side effects.

        Call this in a replica context.
        """
        with loss_probe.unchanged(self._model):
            for metric in self._metrics:
                metric.reset_state()
            logs = user_code.converted(self._task.validation_step)(
                inputs, model=self._model, metrics=self._metrics
            )
            reward = self._of_logs(logs)
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            reward = context.all_reduce(tf.distribute.ReduceOp.MEAN, reward)
        return tf.stop_gradient(reward)

    def _of_logs(self, logs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        if self._wanted is None:
            return -tf.cast(logs[self._task.loss], tf.float32)
        return self._sign * tf.cast(self._wanted.result(), tf.float32)

    def _find(self, name: str) -> keras.metrics.Metric:
        named = {metric.name: metric for metric in self._metrics}
        if name not in named:
            raise errors.ConfigValueError(
                (
                    f"`one_shot.reward` is {name!r}, which is not a metric of "
                    f"{type(self._task).__name__}. {suggestions.did_you_mean(name, named)}"
                ).strip()
            )
        return named[name]
