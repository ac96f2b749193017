"""A hook that computes exact batch normalization statistics before they are used."""

import functools

from official_lite.common import errors
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner
from official_lite.orbit.hooks import batch_norm_statistics
from official_lite.orbit.hooks.hook import Hook


class PreciseBatchNorm(Hook):
    """Replaces the moving statistics of batch normalization with those of the training data.

    Moving averages include statistics of old weights, and lag behind weights that change fast. This
    hook computes the mean and variance over all examples of `num_steps` batches, with the current
    weights. Training itself is unaffected and continues with the same weights, random numbers and
    batches, because training mode does not use the moving statistics.
    `batch_norm_statistics.BatchNormStatistics` documents the computation and the source of the
    batches.

    Each update costs `num_steps` forward passes and the start of an input pipeline. If the
    optimizer keeps a moving average of the weights, the statistics are computed for the averaged
    weights, because evaluation uses those.

    Args:
      num_steps: The number of training batches per update.
      every_n_steps: The interval. 0 updates the statistics before each evaluation during training,
        including the last one. A checkpoint at the same step contains the new statistics.

    Raises:
      errors.ConfigValueError: `num_steps` is less than 1.
    """

    def __init__(self, num_steps: int = 200, every_n_steps: int = 0) -> None:
        if num_steps < 1:
            raise errors.ConfigValueError(f"`num_steps` is {num_steps}; expected at least 1.")
        self.every_n_steps = every_n_steps
        self._num_steps = num_steps
        self._is_training = False

    @functools.cached_property
    def _statistics(self) -> batch_norm_statistics.BatchNormStatistics:
        return batch_norm_statistics.BatchNormStatistics(self.trainer)

    def before_train(self) -> None:
        if self._statistics.is_empty:
            raise errors.ConfigValueError(
                "PreciseBatchNorm: The model has no trainable `keras.layers.BatchNormalization`. "
                "Remove the hook."
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
        optimizer = runner.optimizer_of(self.trainer)
        with self.controller.storage.muted(), ema_optimizer.averaged_weights(optimizer):
            self._statistics.update(self._num_steps)
