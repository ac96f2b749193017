"""Checkpoints of several workers: all take part in saving, one set of files is kept."""

from typing import Any

import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, directories

__all__ = ["SharedCheckpointManager"]


class SharedCheckpointManager(async_checkpoint_manager.AsyncCheckpointManager):
    """Saves to the directory on the chief, elsewhere to a temporary one; restores from the former.

    Without it, a worker other than the chief would find nothing to resume from.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str,
        *,
        strategy: tf.distribute.Strategy | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes what `tf.train.CheckpointManager` takes.

        Args:
            checkpoint: What is saved.
            directory: The directory that all workers share.
            strategy: The strategy of the run; the current one if not given.
            **kwargs: See `tf.train.CheckpointManager`.
        """
        self._shared_directory = directory
        strategy = strategy or tf.distribute.get_strategy()
        kwargs["moves_damaged"] = directories.is_chief(strategy) and kwargs.get(
            "moves_damaged", True
        )
        super().__init__(checkpoint, directories.writable_directory(directory, strategy), **kwargs)

    @property
    def shared_directory(self) -> str:
        """Where the checkpoints are that every worker restores."""
        return self._shared_directory

    @property
    def _source_directory(self) -> str:
        return self._shared_directory
