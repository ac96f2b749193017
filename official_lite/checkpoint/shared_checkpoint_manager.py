"""A checkpoint manager for several workers, which all take part in saving one set of files."""

from typing import Any

import tensorflow as tf

from official_lite.checkpoint import async_checkpoint_manager, directories

__all__ = ["SharedCheckpointManager"]


class SharedCheckpointManager(async_checkpoint_manager.AsyncCheckpointManager):
    """A manager that saves to the shared directory only on the chief, but restores on all workers.

    Workers other than the chief save to a temporary directory. Without this class, they would find
    no checkpoint to resume from.

    Args:
        checkpoint: The checkpoint to save.
        directory: The directory that all workers share.
        strategy: The strategy of the run. Defaults to the current strategy.
        **kwargs: See `CommittedCheckpointManager`.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str,
        *,
        strategy: tf.distribute.Strategy | None = None,
        **kwargs: Any,
    ) -> None:
        self._shared_directory = directory
        strategy = strategy or tf.distribute.get_strategy()
        kwargs["moves_damaged"] = directories.is_chief(strategy) and kwargs.get(
            "moves_damaged", True
        )
        super().__init__(checkpoint, directories.writable_directory(directory, strategy), **kwargs)

    @property
    def shared_directory(self) -> str:
        """The directory of the checkpoints that every worker restores."""
        return self._shared_directory

    @property
    def _source_directory(self) -> str:
        return self._shared_directory
