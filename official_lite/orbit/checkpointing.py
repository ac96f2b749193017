"""The checkpoints of a controller: when one is due, and how it is saved and restored."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import (
    async_checkpoint_manager,
    committed_checkpoint_manager,
    completeness,
    latest,
)
from official_lite.common import errors
from official_lite.orbit import triggers
from official_lite.run import preemption

__all__ = [
    "find_mark",
    "marked",
    "watch_checkpoints",
    "Checkpointing",
]


_NAME = "evaluation_is_pending"


@contextlib.contextmanager
def marked(checkpoint: tf.train.Checkpoint) -> Iterator[tf.Variable]:
    """Mark checkpoints that are saved inside as lacking the evaluation of their step."""
    mark = tf.Variable(True, trainable=False)
    setattr(checkpoint, _NAME, mark)
    try:
        yield mark
    finally:
        delattr(checkpoint, _NAME)


def find_mark(checkpoint: tf.train.Checkpoint, path: str) -> tf.Variable | None:
    """Return the mark in the checkpoint that was restored from `path`, if it has one.

    Keep it: TensorFlow warns of values in a checkpoint that nothing was restored with.
    """
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(f"{_NAME}/.ATTRIBUTES/VARIABLE_VALUE"):
        return None
    with marked(checkpoint) as mark:
        return mark


def watch_checkpoints(
    directory: str,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield every checkpoint of a directory once, in the order in which they were saved.

    Args:
      directory: Where a checkpoint manager saves, ours or TensorFlow's.
      timeout: Seconds to wait for a checkpoint; `None` waits for ever.
      timeout_fn: Called when the time is over; the wait begins anew if it returns false. Without
        it, the end of the time is the end.
      clock: Returns the time in seconds.
      sleep: Waits for a number of seconds.
    """
    seen: set[str] = set()
    waiting_since = clock()
    while True:
        for path in _new_checkpoints(directory, seen):
            seen.add(path)
            yield path
            waiting_since = clock()
        if timeout is not None and clock() - waiting_since >= timeout:
            logging.info("No new checkpoint in %s for %g seconds.", directory, timeout)
            if timeout_fn is None or timeout_fn():
                return
            waiting_since = clock()
        preemption.check()
        sleep(1.0 if timeout is None else min(1.0, timeout))


def _new_checkpoints(directory: str, seen: set[str]) -> list[str]:
    return [path for path in latest.find_checkpoints(directory) if path not in seen]


class Checkpointing(triggers.Trigger):
    """Trigger of checkpoints, due at the multiples of each interval, and access to them.

    Args:
      manager: Where checkpoints go; the first interval is the manager's, if it has one.
      strategy: The scope in which they are restored.
      in_background: Whether `save` is to return before the files are complete. Needs an
        `AsyncCheckpointManager`; with another one it waits for them.
      on_save: See `CommittedCheckpointManager`; with TensorFlow's own manager, all of it is done
        before the save.
    """

    def __init__(
        self,
        manager: tf.train.CheckpointManager,
        strategy: tf.distribute.Strategy,
        in_background: bool = False,
        on_save: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        self._manager = manager
        self._on_save = on_save
        self._prepare_manager()
        self._strategy = strategy
        self._save_arguments = _asynchronously(manager) if in_background else {}
        self._unreported: str | None = None
        self._intervals: set[int] = set()
        self._trigger: triggers.Trigger = triggers.Never()
        if manager.checkpoint_interval:
            self.add_interval(manager.checkpoint_interval)

    @property
    def directory(self) -> str:
        """Where the chief's checkpoints are, which the other workers read and don't write."""
        return getattr(self._manager, "shared_directory", self._manager.directory)

    @property
    def has_intervals(self) -> bool:
        return bool(self._intervals)

    def add_interval(self, num_steps: int) -> None:
        """Add an interval; adding it again has no effect."""
        self._intervals.add(num_steps)
        self._trigger = triggers.AnyOf(map(triggers.every, self._intervals))

    def next_step(self, step: int) -> float:
        return self._trigger.next_step(step)

    def is_due(self, step: int) -> bool:
        return self._trigger.is_due(step)

    def restore(self, path: str | None = None) -> str | None:
        """Restores `path`, or the newest one; returns its path.

        If there is none, the manager's `init_fn` is called, and `None` returned.

        Raises:
          errors.CheckpointError: It is damaged, or of another model, or lacks a variable.
        """
        self.wait()
        manager = self._manager
        verifies = _is_committed(manager)
        with self._strategy.scope(), _explained(path or manager.latest_checkpoint):
            if path is not None and verifies:
                manager.restore(path)
            elif path is not None:
                completeness.require_complete(manager.checkpoint, path)
                manager.checkpoint.restore(path)
            else:
                if not verifies and manager.latest_checkpoint:
                    completeness.require_complete(manager.checkpoint, manager.latest_checkpoint)
                return manager.restore_or_initialize()
            return path

    def save(self, step: int) -> str | None:
        """Save, or start to save; return the path, or `None` if this step is already saved."""
        self._prepare_manager()
        if self._on_save is not None and not _is_committed(self._manager):
            self._on_save()()
        path = self._manager.save(
            checkpoint_number=step, check_interval=False, **self._save_arguments
        )
        if path is not None:
            self._unreported = path
        return path

    def _prepare_manager(self) -> None:
        """Lets the manager do it, whoever has it save: an action may do that by itself."""
        if self._on_save is not None and _is_committed(self._manager):
            self._manager.on_save = self._on_save

    def take_complete(self) -> str | None:
        """Return the path of the last checkpoint once its files are complete; each path once.

        Raises:
          BaseException: What the save failed with.
        """
        if self._unreported is None or getattr(self._manager, "is_saving", False):
            return None
        path, self._unreported = self._unreported, None
        self.wait()
        # It may have failed, and somebody else been told.
        return path if path == self._manager.latest_checkpoint else None

    def wait(self) -> None:
        """Wait for a save in the background, and raise its error if it failed."""
        self._manager.sync()


def _is_committed(manager: tf.train.CheckpointManager) -> bool:
    return isinstance(manager, committed_checkpoint_manager.CommittedCheckpointManager)


def _asynchronously(manager: tf.train.CheckpointManager) -> dict[str, Any]:
    if isinstance(manager, async_checkpoint_manager.AsyncCheckpointManager):
        return {"options": tf.train.CheckpointOptions(enable_async=True)}
    logging.info(
        "Training waits while a %s saves; `official_lite.checkpoint` has an "
        "`AsyncCheckpointManager`.",
        type(manager).__name__,
    )
    return {}


@contextlib.contextmanager
def _explained(path: str | None) -> Iterator[None]:
    """Turn the many errors of a restore into one that names the checkpoint."""
    try:
        yield
    except (errors.OfficialLiteError, tf.errors.NotFoundError):
        raise
    except (ValueError, IndexError, tf.errors.OpError) as error:
        raise errors.CheckpointError(
            f"{path} can't be restored: {str(error)[:300]} … It is damaged, or was saved by "
            "another model or optimizer; `--config_file` with the run's `params.yaml` gives the "
            "same ones."
        ) from error
