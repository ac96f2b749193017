"""Gives batch normalization exact statistics before they are used."""

import functools

from official_lite.common import errors
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit.hooks import batch_norm_statistics
from official_lite.orbit.hooks.hook import Hook


class PreciseBatchNorm(Hook):
    """Hook that replaces moving statistics of batch normalization by those of the training data.

    Moving averages mix statistics of weights that are long gone, and lag behind where weights
    change fast. Here mean and variance are those of all examples of `num_steps` batches, with the
    weights as they are. Training itself goes on as if nothing had happened, with the same weights,
    random numbers and batches: in training mode the statistics are not used. See
    `batch_norm_statistics.BatchNormStatistics`, also for where the batches come from.

    It costs `num_steps` forward passes and the start of an input pipeline each time. With a moving
    average of the weights, the statistics are those for the averaged weights, since these are what
    is evaluated.

    Args:
      num_steps: Batches each time, of those that a training step reads.
      every_n_steps: The interval; 0 is before each evaluation while training, the last one
        included. A checkpoint at the same step has the new statistics too.

    Raises:
      errors.ConfigValueError: `num_steps` is less than 1.
    """

    def __init__(self, num_steps: int = 200, every_n_steps: int = 0) -> None:
        if num_steps < 1:
            raise errors.ConfigValueError(f"`num_steps` is {num_steps}; wanted at least 1.")
        self.every_n_steps = every_n_steps
        self._num_steps = num_steps
        self._is_training = False

    @functools.cached_property
    def _statistics(self) -> batch_norm_statistics.BatchNormStatistics:
        return batch_norm_statistics.BatchNormStatistics(self.trainer)

    def before_train(self) -> None:
        if self._statistics.is_empty:
            raise errors.ConfigValueError(
                "PreciseBatchNorm: the model has no `keras.layers.BatchNormalization` that is "
                "trainable. Remove the hook."
            )
        self._is_training = True
        if not self.every_n_steps and self._before_eval not in self.controller.eval_preparations:
            self.controller.eval_preparations.append(self._before_eval)

    def after_step(self) -> None:
        self._update()

    def after_train(self, success: bool) -> None:
        self._is_training = False

    def _before_eval(self) -> None:
        if self._is_training:
            self._update()

    def _update(self) -> None:
        optimizer = getattr(self.trainer, "optimizer", None)
        with self.controller.storage.muted(), ema_optimizer.averaged_weights(optimizer):
            self._statistics.update(self._num_steps)
