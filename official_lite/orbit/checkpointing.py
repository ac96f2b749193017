"""Checkpoint handling for a controller: when to save, and how to save and restore."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import (
    async_checkpoint_manager,
    chain,
    commit,
    committed_checkpoint_manager,
    fallback,
    inspection,
    keras2_converter,
    latest,
)
from official_lite.common import errors, preemption
from official_lite.orbit import triggers

_NAME = inspection.PENDING_EVALUATION


@contextlib.contextmanager
def marked(checkpoint: tf.train.Checkpoint) -> Iterator[tf.Variable]:
    """Mark checkpoints saved in this context: the evaluation at their step is still pending."""
    mark = tf.Variable(True, trainable=False)
    setattr(checkpoint, _NAME, mark)
    try:
        yield mark
    finally:
        delattr(checkpoint, _NAME)


def find_mark(checkpoint: tf.train.Checkpoint, path: str) -> tf.Variable | None:
    """Return the pending-evaluation mark restored from `path`, or `None` if there is none.

    Keep a reference to the result: TensorFlow warns about checkpoint values that were not restored
    into any object.
    """
    try:
        reader = tf.train.load_checkpoint(path)
    except tf.errors.NotFoundError:
        # A training run may remove a checkpoint that another job has just restored.
        return None
    if not reader.has_tensor(f"{_NAME}/.ATTRIBUTES/VARIABLE_VALUE"):
        return None
    with marked(checkpoint) as mark:
        return mark


def watch_checkpoints(
    directory: str,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield every checkpoint of a directory once, in the order in which they were saved.

    A checkpoint that was written again under its name is yielded again.

    Args:
        directory: The directory of a checkpoint manager, either this project's or TensorFlow's.
        timeout: The number of seconds to wait for a checkpoint. `None` waits indefinitely.
        timeout_fn: Called after each timeout. If it returns false, the wait restarts. Without this
            function, the first timeout ends the iteration.
        should_stop: Called about once per second during the wait. If it returns true, the
            iteration ends.
        clock: Returns the time in seconds.
        sleep: Sleeps for a number of seconds.
    """
    seen: dict[str, tuple[object, ...]] = {}
    waiting_since = clock()
    while True:
        for path in latest.find_checkpoints(directory):
            version, before = _version_of(path), seen.get(path, ())
            seen[path] = version or before
            # Do not yield a checkpoint again just because its commit file has appeared.
            is_changed = version[:1] == before[:1] and version != before
            if is_changed or (version and not before):
                yield path
                waiting_since = clock()
        if timeout is not None and clock() - waiting_since >= timeout:
            logging.info("No new checkpoint in %s for %g seconds.", directory, timeout)
            if timeout_fn is None or timeout_fn():
                return
            waiting_since = clock()
        preemption.check()
        if should_stop():
            return
        sleep(1.0 if timeout is None else min(1.0, timeout))


def _version_of(path: str) -> tuple[object, ...]:
    """Return a value that changes when a checkpoint is rewritten, or `()` if it is missing."""
    try:
        if (committed := commit.read(path)) is not None:
            return "commit", committed.index_sha256
        # TensorFlow returns file times in whole seconds, so compare contents instead.
        return "index", commit.sha256(f"{path}.index")
    except (OSError, tf.errors.NotFoundError):
        return ()
    except ValueError:  # A restore will report the damaged commit file.
        return "commit", ""


class Checkpointing(triggers.Trigger):
    """A trigger that is due when a checkpoint must be saved: at multiples of each interval.

    Args:
        manager: The checkpoint manager. Its interval, if it has one, becomes the first interval.
        strategy: The strategy in whose scope checkpoints are saved and restored.
        in_background: Whether `save` returns before the files are complete. Requires an
            `AsyncCheckpointManager`; with any other manager, `save` waits.
        on_save: See `CommittedCheckpointManager`. With TensorFlow's own manager, this function and
            the function that it returns both run before the save.
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
        """Return the directory of the chief's checkpoints, which other workers only read."""
        return getattr(self._manager, "shared_directory", self._manager.directory)

    @property
    def restored(self) -> str | None:
        """Return the checkpoint that the manager restored last, perhaps for an action."""
        manager = self._manager
        return manager.restored if _is_committed(manager) else manager.latest_checkpoint

    @property
    def has_intervals(self) -> bool:
        return bool(self._intervals)

    def add_interval(self, num_steps: int) -> None:
        """Add an interval. Adding an existing interval has no effect."""
        self._intervals.add(num_steps)
        self._trigger = triggers.AnyOf(map(triggers.every, self._intervals))

    def next_step(self, step: int) -> float:
        return self._trigger.next_step(step)

    def is_due(self, step: int) -> bool:
        return self._trigger.is_due(step)

    def restore(self, path: str | None = None) -> str | None:
        """Restore `path`, or the latest checkpoint, and return its path.

        A checkpoint that Keras 2 wrote is converted.

        If there is no checkpoint, call the manager's `init_fn` and return `None`.

        Raises:
            errors.CheckpointError: The checkpoint is damaged, belongs to a different model, or
                lacks a variable.
        """
        self.wait()
        manager = self._manager
        verifies = _is_committed(manager)
        with self._strategy.scope(), _explained(path or manager.latest_checkpoint):
            if path is not None and verifies:
                manager.restore(path)
            elif path is not None:
                fallback.restore(manager.checkpoint, path)
            elif verifies or (latest := manager.latest_checkpoint) is None:
                return manager.restore_or_initialize()
            elif keras2_converter.is_keras2(latest):
                fallback.restore(manager.checkpoint, latest)
                return latest
            else:
                with fallback.require_complete(manager.checkpoint, latest):
                    return manager.restore_or_initialize()
            return path

    def save(self, step: int) -> str | None:
        """Save or start to save; return the path, or `None` if this step is already saved."""
        self._prepare_manager()
        if self._on_save is not None and not _is_committed(self._manager):
            self._on_save()()
        # The manager finds other workers through the scope, and a custom loop may run outside it.
        is_entered = tf.distribute.has_strategy()
        with contextlib.nullcontext() if is_entered else self._strategy.scope():
            path = self._manager.save(
                checkpoint_number=step, check_interval=False, **self._save_arguments
            )
        if path is not None:
            self._unreported = path
        return path

    def allow_repeated_save(self) -> None:
        """Let the next save replace the checkpoint of the current step, whose state has changed."""
        if _is_committed(self._manager):
            self._manager.allow_repeated_save()

    def _prepare_manager(self) -> None:
        """Set the manager's `on_save`, because actions may call the manager's `save` directly."""
        if self._on_save is not None and _is_committed(self._manager):
            self._manager.on_save = self._on_save

    def take_complete(self) -> str | None:
        """Return the path of the last checkpoint once its files are complete; each path only once.

        Raises:
            BaseException: The error with which the save failed.
        """
        if self._unreported is None or getattr(self._manager, "is_saving", False):
            return None
        path, self._unreported = self._unreported, None
        self.wait()
        # If another call has already raised the error of a failed save, `wait` raises nothing, and
        # the path is not the latest checkpoint.
        return path if path == self._manager.latest_checkpoint else None

    def wait(self) -> None:
        """Wait for a background save and raise the error with which it failed, if any."""
        self._manager.sync()


def _is_committed(
    manager: tf.train.CheckpointManager,
) -> TypeGuard[committed_checkpoint_manager.CommittedCheckpointManager]:
    return isinstance(manager, committed_checkpoint_manager.CommittedCheckpointManager)


def _asynchronously(manager: tf.train.CheckpointManager) -> dict[str, Any]:
    if isinstance(manager, async_checkpoint_manager.AsyncCheckpointManager):
        return {"options": tf.train.CheckpointOptions(enable_async=True)}
    logging.info(
        "Training waits while a %s saves. To save in the background, use an "
        "`official_lite.checkpoint.AsyncCheckpointManager`.",
        type(manager).__name__,
    )
    return {}


@contextlib.contextmanager
def _explained(path: str | None) -> Iterator[None]:
    """Convert errors raised during a restore to a `CheckpointError` that names the checkpoint.

    Errors of this project and `NotFoundError` are raised unchanged.
    """
    try:
        yield
    except (errors.OfficialLiteError, tf.errors.NotFoundError):
        raise
    except (ValueError, IndexError, tf.errors.OpError) as error:
        raise errors.CheckpointError(
            f"{path} can't be restored: {str(error)[:300]} … The checkpoint is damaged, or was "
            f"saved by a different model or optimizer.{chain.config_of_run(path) if path else ''}"
        ) from error
