"""The loss and the reward of an architecture on a batch, computed without side effects.

A probe traces the task's own step, which computes the loss or the metrics as usual. Everything that
the step would change (weights, batch normalization statistics, random state, reports) is left
unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, nests, suggestions, user_code
from official_lite.core import base_task, step_checks
from official_lite.modeling.optimization import gradient_accumulator
from official_lite.orbit.hooks import watched_metric

__all__ = ["LossProbe", "Reward", "unchanged"]


class LossProbe:
    """The differentiable loss of a task's train step.

    Args:
        task: The task.
        model: The built model of the task.
        optimizer: The optimizer that the train step sees. Its attributes can be read, but gradients
            that are passed to it are discarded.
    """

    def __init__(
        self, task: base_task.Task, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> None:
        self._task = task
        self._model = model
        self._optimizer = _Unscaled(optimizer)

    @user_code.not_converted
    def __call__(
        self, inputs: nests.Nest, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """Return this replica's share of the loss of a batch, in training mode.

        Call this in a replica context.

        Args:
            inputs: The batch of this replica.
            variables: Weights for which to substitute `values`.
            values: The values of `variables`.

        Returns:
            A scalar. Its sum over the replicas is the loss.

        Raises:
            errors.ConfigValueError: If the task's train step does not return its loss.
        """
        with unchanged(self._model, variables, values):
            logs = user_code.converted(self._task.train_step)(
                inputs, model=self._model, optimizer=self._optimizer, metrics=[]
            )
        if self._task.loss not in logs:
            raise errors.ConfigValueError(
                f"The train step of {type(self._task).__name__} returns {sorted(logs)}; expected "
                f"also {self._task.loss!r}, the loss that the search differentiates."
            )
        loss = tf.cast(logs[self._task.loss], tf.float32)
        return loss / tf.distribute.get_strategy().num_replicas_in_sync


@contextlib.contextmanager
def unchanged(
    model: keras.Model, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
) -> Iterator[None]:
    """Leave all Keras variables unchanged inside the `with` statement.

    Assignments to variables have no lasting effect. Reading one of `variables` returns the
    corresponding entry of `values`.
    """
    scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
    # Set the mapping directly, because the constructor would convert its values to tensors. The
    # mapping must hold variables: a train step takes gradients with respect to them. It must
    # include all variables, because regularizers read them all.
    scope.state_mapping = {id(v): v.value for v in getattr(model, "variables", ())}
    scope.state_mapping |= {
        id(variable): _as_variable(value) for variable, value in zip(variables, values, strict=True)
    }
    with telemetry.get_event_storage().muted(), scope:
        yield


def _as_variable(value: tf.Tensor) -> tf.Tensor:
    """Return a copy of a tensor that can stand for a variable as a source of gradients."""
    tensor: Any = tf.identity(value)
    tensor.handle = tensor
    return tensor


class _Unscaled(gradient_accumulator.GradientSink):
    """An optimizer that neither updates variables nor scales the loss."""

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def get_scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss


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
    def of_batch(self, inputs: nests.Nest) -> tf.Tensor:
        """Return the reward of a batch, averaged over the replicas, without side effects.

        Call this in a replica context.
        """
        with unchanged(self._model):
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
