"""What a batch costs a task, as a function of weights, without changing anything.

The task's own train step is traced: it computes the loss as it always does, and what it would
change (weights, statistics of batch normalization, random state, reports) stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, user_code
from official_lite.modeling.optimization import gradient_accumulator

__all__ = ["LossProbe", "unchanged"]


class LossProbe:
    """The loss of a task's train step, to be differentiated by whoever asks.

    Args:
        task: The task.
        model: Its model, built.
        optimizer: Asked by the task for what is neither gradients nor updates.
    """

    def __init__(self, task: Any, model: Any, optimizer: Any) -> None:
        self._task = task
        self._model = model
        self._optimizer = _Unscaled(optimizer)

    @user_code.not_converted
    def __call__(
        self, inputs: Any, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
    ) -> tf.Tensor:
        """This replica's share of the loss of a batch, in training mode. Call it in a replica.

        Args:
            inputs: The batch of this replica.
            variables: Weights that are to have other values.
            values: These values.

        Returns:
            A scalar; the sum of it over the replicas is the loss.

        Raises:
            errors.ConfigValueError: The task's step does not return its loss.
        """
        with unchanged(self._model, variables, values):
            logs = user_code.converted(self._task.train_step)(
                inputs, model=self._model, optimizer=self._optimizer, metrics=[]
            )
        if self._task.loss not in logs:
            raise errors.ConfigValueError(
                f"The train step of {type(self._task).__name__} returns {sorted(logs)}; wanted "
                f"its loss as {self._task.loss!r}, which a search differentiates."
            )
        loss = tf.cast(logs[self._task.loss], tf.float32)
        return loss / tf.distribute.get_strategy().num_replicas_in_sync


@contextlib.contextmanager
def unchanged(
    model: Any, variables: Sequence[Any] = (), values: Sequence[tf.Tensor] = ()
) -> Iterator[None]:
    """Within it, variables of Keras are read, or stand for `values`, and never written."""
    scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
    # Past the constructor, which would make tensors of them: a train step asks for gradients with
    # respect to variables, and regularizers ask for all of them.
    scope.state_mapping = {id(v): v.value for v in getattr(model, "variables", ())}
    scope.state_mapping |= {
        id(variable): _as_variable(value) for variable, value in zip(variables, values, strict=True)
    }
    with telemetry.get_event_storage().muted(), scope:
        yield


def _as_variable(value: tf.Tensor) -> tf.Tensor:
    """A tensor that a gradient can be asked for by the variable that it stands for."""
    tensor: Any = tf.identity(value)
    tensor.handle = tensor
    return tensor


class _Unscaled(gradient_accumulator.GradientSink):
    """An optimizer that neither updates nor scales."""

    def scale_loss(self, loss: Any) -> Any:
        return loss

    def get_scaled_loss(self, loss: Any) -> Any:
        return loss
