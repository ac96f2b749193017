"""A checkpoint manager that writes checkpoints while training continues."""

import copy
import functools
import weakref

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import background_save, committed_checkpoint_manager

__all__ = ["AsyncCheckpointManager"]

# Maps each checkpoint to its save in progress. Saves of one checkpoint take turns, even through
# different managers, because TensorFlow stores the path of a save in the checkpoint.
_under_way: weakref.WeakKeyDictionary[tf.train.Checkpoint, background_save.BackgroundSave] = (
    weakref.WeakKeyDictionary()
)


class AsyncCheckpointManager(committed_checkpoint_manager.CommittedCheckpointManager):
    """A `CommittedCheckpointManager` that can save in the background.

    ::

        manager.save(options=tf.train.CheckpointOptions(enable_async=True))

    Only one save runs at a time, and the next save waits for it, so at most one copy of the state
    is kept in addition to the training's own. A checkpoint is listed, on disk and by the manager,
    only when its files are complete. Methods that need the latest checkpoint wait for the save. If
    the save fails, the next call that waits raises its error.

    If several processes train together, all of them take part in a save, and saving is never in the
    background.
    """

    _saving: background_save.BackgroundSave | None = None

    def save(
        self,
        checkpoint_number: int | None = None,
        check_interval: bool = True,
        options: tf.train.CheckpointOptions | None = None,
    ) -> str | None:
        """Save a checkpoint, in the background if the options set `enable_async`.

        Args:
            checkpoint_number: The number of the checkpoint; see `tf.train.CheckpointManager`.
            check_interval: Whether to save only if the manager's checkpoint interval has passed.
            options: The checkpoint options.

        Returns:
            The path where the checkpoint is or will be; None if no save was due.
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
        """Whether a save is in progress in the background."""
        return self._saving is not None and self._saving.is_under_way

    @property
    def latest_checkpoint(self) -> str | None:
        """The latest checkpoint; waits for a save in progress."""
        self._wait()
        return super().latest_checkpoint

    @property
    def checkpoints(self) -> list[str]:
        """All checkpoints that are kept, oldest first; waits for a save in progress."""
        self._wait()
        return super().checkpoints

    def restore_or_initialize(self) -> str | None:
        """Restore the latest checkpoint; if there is none, call `init_fn`."""
        self._wait()
        return super().restore_or_initialize()

    def sync(self) -> None:
        """Wait for the save in progress.

        Raises:
            BaseException: The save failed with this error.
        """
        self._wait()
        super().sync()

    def _wait(self) -> None:
        # The save itself reads the latest checkpoint, too, and must not wait for itself.
        if self._saving is not None and not self._saving.is_this_thread:
            self._take_result(self._saving)

    def _take_result(self, saving: background_save.BackgroundSave) -> str | None:
        saving.wait()
        self._saving = None
        return saving.result()


def _without_async(options: tf.train.CheckpointOptions) -> tf.train.CheckpointOptions:
    """Disable TensorFlow's own background saving.

    On Keras variables, it fails in the second save.
    """
    options = copy.copy(options)
    options.enable_async = options.experimental_enable_async_checkpoint = False
    return options


def _is_one_of_several_processes() -> bool:
    return getattr(tf.distribute.get_strategy(), "cluster_resolver", None) is not None
