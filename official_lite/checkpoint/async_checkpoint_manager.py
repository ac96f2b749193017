"""A checkpoint manager that writes while training goes on."""

import copy
import functools
import weakref

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import background_save, committed_checkpoint_manager

__all__ = ["AsyncCheckpointManager"]

# Of each checkpoint, the save under way. They take turns, through whichever manager they come:
# TensorFlow keeps the path of a save in the checkpoint.
_under_way: weakref.WeakKeyDictionary[tf.train.Checkpoint, background_save.BackgroundSave] = (
    weakref.WeakKeyDictionary()
)


class AsyncCheckpointManager(committed_checkpoint_manager.CommittedCheckpointManager):
    """Saves in the background if it is told to; all else is as in its base class.

    ::

        manager.save(options=tf.train.CheckpointOptions(enable_async=True))

    There is one save at a time, and the next one waits for it: no more than one state is kept
    beside that of the training. A checkpoint is listed, on the disk and here, once its files are
    complete; whatever asks for the newest one waits for it. What a save fails with comes up in the
    next call that waits.

    Processes that train together all take part in a save; there it is never in the background.
    """

    _saving: background_save.BackgroundSave | None = None

    def save(
        self,
        checkpoint_number: int | None = None,
        check_interval: bool = True,
        options: tf.train.CheckpointOptions | None = None,
    ) -> str | None:
        """Saves, or begins to if the options say `enable_async`.

        Args:
            checkpoint_number: As the others, see `tf.train.CheckpointManager`.
            check_interval: Whether to save only if the manager's interval is over.
            options: The options.

        Returns:
            The path, where the checkpoint is or will be; None if none was due.
        """
        self.sync()
        if other := _under_way.get(self.checkpoint):
            other.wait()
        save = functools.partial(super().save, checkpoint_number, check_interval)
        if options is None or not options.enable_async:
            return save(options=options)
        if _is_one_of_several_processes():
            logging.log_first_n(logging.INFO, "Training waits while several processes save.", 1)
            return save(options=_without_async(options))
        saving = background_save.BackgroundSave(_without_async(options))
        self._saving = _under_way[self.checkpoint] = saving
        if not saving.start(save):
            return self._take_result(saving)
        number = self.checkpoint.save_counter if checkpoint_number is None else checkpoint_number
        return f"{self._checkpoint_prefix}-{int(number)}"

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way in the background."""
        return self._saving is not None and self._saving.is_under_way

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint; waits for one that is being saved."""
        self._wait()
        return super().latest_checkpoint

    @property
    def checkpoints(self) -> list[str]:
        """All that are kept, the oldest first; waits for one that is being saved."""
        self._wait()
        return super().checkpoints

    def restore_or_initialize(self) -> str | None:
        """Restores the newest checkpoint; without one calls `init_fn`."""
        self._wait()
        return super().restore_or_initialize()

    def sync(self) -> None:
        """Waits for the save that is under way.

        Raises:
            BaseException: What it failed with.
        """
        self._wait()
        super().sync()

    def _wait(self) -> None:
        # The save itself asks for the newest checkpoint, too.
        if self._saving is not None and not self._saving.is_this_thread:
            self._take_result(self._saving)

    def _take_result(self, saving: background_save.BackgroundSave) -> str | None:
        saving.wait()
        self._saving = None
        return saving.result()


def _without_async(options: tf.train.CheckpointOptions) -> tf.train.CheckpointOptions:
    """TensorFlow's own way of saving in the background fails on Keras variables the second time."""
    options = copy.copy(options)
    options.enable_async = options.experimental_enable_async_checkpoint = False
    return options


def _is_one_of_several_processes() -> bool:
    return getattr(tf.distribute.get_strategy(), "cluster_resolver", None) is not None
