"""A save of a checkpoint in a background thread."""

import contextvars
import copy
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

__all__ = ["BackgroundSave"]

Save = Callable[[tf.train.CheckpointOptions], str | None]


class BackgroundSave:
    """A save that reads the state while its caller waits and writes it while its caller continues.

    The state that was read does not change, at no extra cost: TensorFlow updates the buffer of a
    variable in place only if nothing else refers to it, and otherwise allocates a new buffer. This
    holds for assignments and for sparse and compiled updates.

    The process does not exit before the files are complete.

    Args:
      options: The checkpoint options of the save.
    """

    def __init__(self, options: tf.train.CheckpointOptions) -> None:
        self._options = copy.copy(options)
        self._snapshot = _Snapshot(self._options.experimental_sharding_callback, self._let_go)
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
        except BaseException as error:  # `result` raises it again.
            error.add_note("A checkpoint was being saved in the background.")
            logging.error("A checkpoint could not be saved: %s", error)
            self._error = error
        finally:
            self._let_go()

    def _call(self, save: Save, strategy: tf.distribute.Strategy | None) -> str | None:
        if strategy is None:
            return save(self._options)
        with strategy.scope():
            return save(self._options)

    def _let_go(self) -> None:
        self._caller_may_go.set()


class _Snapshot(tf.train.experimental.ShardingCallback):
    """A callback that receives all tensors of a save between reading and writing them."""

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
        # Tensors of several hosts are saved inside a `tf.function`, where nothing has been read
        # yet.
        if tf.executing_eagerly():
            # With several replicas, Keras passes the variable itself, so read its value here.
            shardable_tensors = [
                dataclasses.replace(each, tensor=tf.convert_to_tensor(each.tensor))
                for each in shardable_tensors
            ]
            self.is_taken = True
            self._on_taken()
        return self._policy(shardable_tensors)
