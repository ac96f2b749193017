"""One save of a checkpoint, in a thread of its own."""

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
    """Reads the state while its caller waits, and writes it while its caller goes on.

    What has been read stays what it was, at no cost: TensorFlow changes the buffer of a variable in
    place only while nobody else holds it, and puts a new one in its place otherwise. That holds for
    assignments, for sparse updates and for compiled ones.

    The process does not end before the files are complete.

    Args:
      options: What the options of the save are to hold.
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
        """Begins, and returns when the state has been read.

        Args:
          save: Does all of a save with the options it is given, and returns the path; None if there
            is nothing to save.

        Returns:
          Whether it still has to be written.
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
        """Whether who asks is the save itself."""
        return threading.current_thread() is self._thread

    @property
    def is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the files are complete, or the save has failed."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> str | None:
        """Waits; returns the path.

        Raises:
          BaseException: What the save failed with.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._path

    def _run(self, save: Save, strategy: tf.distribute.Strategy | None) -> None:
        try:
            self._path = self._call(save, strategy)
        except BaseException as error:  # Whoever asks for the result gets it.
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
    """Is handed all tensors of a save once they have been read and before they are written."""

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
        # Tensors of several hosts are saved by a function, in which nothing has been read yet.
        if tf.executing_eagerly():
            # Keras hands over the variable itself where there are several replicas.
            shardable_tensors = [
                dataclasses.replace(each, tensor=tf.convert_to_tensor(each.tensor))
                for each in shardable_tensors
            ]
            self.is_taken = True
            self._on_taken()
        return self._policy(shardable_tensors)
