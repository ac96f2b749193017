"""A checkpoint manager that writes checkpoints while training continues."""

import contextlib
import contextvars
import copy
import dataclasses
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.checkpoint import committed_checkpoint_manager, directories

__all__ = ["NICENESS", "BackgroundSave", "AsyncCheckpointManager", "SharedCheckpointManager"]


Save = Callable[[tf.train.CheckpointOptions], str | None]

# How much to raise the nice value of the thread that writes a checkpoint. The thread then mostly
# uses idle CPU time. On a CPU on which training also runs, it gets about a tenth of the time.
NICENESS = 10


class BackgroundSave:
    """A save that reads the state while its caller waits and writes it while its caller continues.

    The state that was read does not change, at no extra cost: TensorFlow updates the buffer of a
    variable in place only if nothing else refers to it, and otherwise allocates a new buffer. This
    holds for assignments and for sparse and compiled updates. It does not hold for a
    `DenseHashTable`, whose buffers are therefore copied.

    On Linux, the writing thread has a lower priority than training, so that it mostly uses the time
    that training leaves idle.

    The process does not exit before the files are complete.

    Args:
        options: The checkpoint options of the save.
    """

    def __init__(self, options: tf.train.CheckpointOptions) -> None:
        self._options = copy.copy(options)
        self._snapshot = _Snapshot(self._options.experimental_sharding_callback, self._yield)
        self._options.experimental_sharding_callback = self._snapshot
        self._caller_may_go = threading.Event()
        self._path: str | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, save: Save) -> bool:
        """Start the save and return when the state has been read.

        Args:
            save: Performs the whole save with the given options and returns the path, or None if
                there is nothing to save.

        Returns:
            Whether the state still has to be written.
        """
        strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run, save, strategy), name="checkpoint"
        )
        self._thread.start()
        self._caller_may_go.wait()
        return self._snapshot.is_taken and self._error is None

    @property
    def is_this_thread(self) -> bool:
        """Whether the current thread is the thread of this save."""
        return threading.current_thread() is self._thread

    @property
    def is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the files are complete or the save has failed."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> str | None:
        """Wait for the save and return the path.

        Raises:
            BaseException: The save failed with this error.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._path

    def _run(self, save: Save, strategy: tf.distribute.Strategy | None) -> None:
        try:
            self._path = self._call(save, strategy)
        except BaseException as error:  # `result` raises the error.
            # Store the error first: if there is no memory left, logging may fail as well.
            self._error = error
            error.add_note("The error occurred while a checkpoint was saved in the background.")
            logging.error("A checkpoint could not be saved: %s", error)
        finally:
            self._let_go()

    def _call(self, save: Save, strategy: tf.distribute.Strategy | None) -> str | None:
        if strategy is None:
            return save(self._options)
        with strategy.scope():
            return save(self._options)

    def _yield(self) -> None:
        """Lower the priority of this thread on Linux, and unblock the caller."""
        if sys.platform == "linux":  # Outside Linux, all threads of a process share one priority.
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
            # Ignore the error if a sandbox forbids this change: training then only runs more slowly
            # during the save.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        self._let_go()

    def _let_go(self) -> None:
        self._caller_may_go.set()


class _Snapshot(tf.train.experimental.ShardingCallback):
    """A sharding callback that calls `on_taken` when the tensors of a checkpoint have been read.

    TensorFlow calls this callback with all tensors, after reading and before writing them. `policy`
    does the actual sharding.
    """

    def __init__(
        self,
        policy: tf.train.experimental.ShardingCallback | None,
        on_taken: Callable[[], None],
    ) -> None:
        self._policy = policy or tf.train.experimental.ShardByTaskPolicy()
        self._on_taken = on_taken
        self.is_taken = False

    @property
    def description(self) -> str:
        return self._policy.description

    def __call__(self, shardable_tensors: Sequence[Any]) -> Any:
        # Only an eager call means that the tensors have been read. TensorFlow saves the tensors of
        # several hosts inside a `tf.function`; while that function is traced, nothing has been
        # read yet.
        if tf.executing_eagerly():
            # With several replicas, Keras passes the variable itself, so read its value here.
            shardable_tensors = [
                dataclasses.replace(each, tensor=_value_of(each)) for each in shardable_tensors
            ]
            self.is_taken = True
            self._on_taken()
        return self._policy(shardable_tensors)


def _value_of(shardable: Any) -> tf.Tensor:
    value = tf.convert_to_tensor(shardable.tensor)
    # Unwrap the object: TensorFlow wraps objects that use legacy checkpoint keys, such as tables.
    saved = getattr(shardable.trackable, "obj", shardable.trackable)
    if isinstance(saved, tf.lookup.experimental.DenseHashTable):
        # A `DenseHashTable` exports its tensors without copying them, so the next insertion would
        # change them.
        return tf.constant(value.numpy(), value.dtype)
    return value


# Maps each `tf.train.Checkpoint` to its latest background save. Saves of the same object run one
# after the other, even through different managers, because TensorFlow stores the path of each save
# in the object.
_under_way: weakref.WeakKeyDictionary[tf.train.Checkpoint, BackgroundSave] = (
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

    If several processes train together, a save involves all of them and is never made in the
    background.
    """

    _saving: BackgroundSave | None = None

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
            The path where the checkpoint is or will be; None if no save was needed.
        """
        self.sync()
        if other := _under_way.get(self.checkpoint):
            other.wait()
        save = functools.partial(super().save, checkpoint_number, check_interval)
        if options is None or not options.enable_async:
            return save(options=options)
        if _is_one_of_several_processes():
            logging.log_first_n(
                logging.INFO,
                "With several processes, training waits while a checkpoint is saved.",
                1,
            )
            return save(options=_without_async(options))
        saving = BackgroundSave(_without_async(options))
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
        # The saving thread also reads the latest checkpoint and must not wait for itself.
        if self._saving is not None and not self._saving.is_this_thread:
            self._take_result(self._saving)

    def _take_result(self, saving: BackgroundSave) -> str | None:
        saving.wait()
        self._saving = None
        return saving.result()


def _without_async(options: tf.train.CheckpointOptions) -> tf.train.CheckpointOptions:
    """Return a copy of the options that disables TensorFlow's own asynchronous saving.

    With Keras variables, TensorFlow's implementation fails at the second save.
    """
    options = copy.copy(options)
    options.enable_async = options.experimental_enable_async_checkpoint = False
    return options


def _is_one_of_several_processes() -> bool:
    return tf.distribute.get_strategy().cluster_resolver is not None


class SharedCheckpointManager(AsyncCheckpointManager):
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
