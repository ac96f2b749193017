"""Epochs in a loop that counts steps."""

import tensorflow as tf

from official_lite.common import errors


class EpochHelper:
    """Determines where epochs begin and end in a custom training loop.

    ::

        while step < last_step:
            if epochs.epoch_begin():
                metrics.reset_state()
            train_step(iterator)
            if epochs.epoch_end():
                print(epochs.current_epoch, metrics.result())

    Args:
        epoch_steps: The number of steps in an epoch.
        global_step: The variable that counts the steps.
    """

    def __init__(self, epoch_steps: int, global_step: tf.Variable) -> None:
        self._epoch_steps = epoch_steps
        self._global_step = global_step
        self._current_epoch: int | None = None
        self._start_step = 0
        self._in_epoch = False

    def epoch_begin(self) -> bool:
        """Return whether an epoch begins here.

        If so, later calls return false until `epoch_end` returns true.
        """
        if self._in_epoch:
            return False
        self._start_step = self._step()
        self._current_epoch = self._start_step // self._epoch_steps
        self._in_epoch = True
        return True

    def epoch_end(self) -> bool:
        """Return whether the current epoch ends here.

        Raises:
            errors.ConfigValueError: No epoch has begun.
        """
        if not self._in_epoch or self._current_epoch is None:
            raise errors.ConfigValueError(
                "`epoch_end` was called outside an epoch; call `epoch_begin` first."
            )
        if self._step() // self._epoch_steps > self._current_epoch:
            self._in_epoch = False
            return True
        return False

    @property
    def batch_index(self) -> int:
        """Return the number of steps since the epoch began."""
        return self._step() - self._start_step

    @property
    def current_epoch(self) -> int | None:
        """Return the 0-based index of the epoch that began last, or `None` before the first one."""
        return self._current_epoch

    def _step(self) -> int:
        return int(self._global_step.numpy())
