"""A checkpoint manager that writes a SavedModel beside every checkpoint.

`ckpt-1000` gets `ckpt-1000_saved_modules/<name>` for each module, and both go together when newer
ones come. Another process may wait for them and serve each as it appears.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import committed_checkpoint_manager
from official_lite.common import errors, files

__all__ = [
    "SAVED_MODULES_PATH_SUFFIX",
    "SavedModelCheckpointManager",
    "make_saved_modules_directory_name",
]

SAVED_MODULES_PATH_SUFFIX = "saved_modules"


def make_saved_modules_directory_name(checkpoint_name: str) -> str:
    """Where the SavedModels of a checkpoint are."""
    return f"{checkpoint_name}_{SAVED_MODULES_PATH_SUFFIX}"


class SavedModelCheckpointManager(committed_checkpoint_manager.CommittedCheckpointManager):
    """A checkpoint manager that also writes SavedModels.

    A module is written if it has `saved_model_signatures`, the functions to serve by name.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        directory: str,
        max_to_keep: int,
        modules_to_export: Mapping[str, tf.Module] | None = None,
        keep_checkpoint_every_n_hours: int | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: tf.Variable | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], None] | None = None,
    ) -> None:
        """Takes the arguments of the base class and the modules by name.

        Raises:
            ConfigValueError: A name can't be that of a directory.
        """
        for name in modules_to_export or {}:
            _check_name(name)
        super().__init__(
            checkpoint=checkpoint,
            directory=directory,
            max_to_keep=max_to_keep,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            checkpoint_name=checkpoint_name,
            step_counter=step_counter,
            checkpoint_interval=checkpoint_interval,
            init_fn=init_fn,
        )
        self._modules_to_export = modules_to_export
        self._savedmodels = self.get_existing_savedmodels()

    @property
    def modules_to_export(self) -> Mapping[str, tf.Module] | None:
        """The modules that are written, by name."""
        return self._modules_to_export

    @property
    def savedmodels(self) -> list[str]:
        """The directories of SavedModels that are kept, the oldest first."""
        return self._savedmodels

    @property
    def latest_savedmodel(self) -> str | None:
        """The newest of them."""
        return self._savedmodels[-1] if self._savedmodels else None

    def save(
        self,
        checkpoint_number: int | None = None,
        check_interval: bool = True,
        options: tf.train.CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint, then its SavedModels, and removes those whose checkpoint is gone.

        Returns:
            The path of the checkpoint; None if none was due.
        """
        checkpoint_path = super().save(
            checkpoint_number=checkpoint_number, check_interval=check_interval, options=options
        )
        if not checkpoint_path:
            return None
        if not self._modules_to_export:
            logging.info("No SavedModel is written: `modules_to_export` is empty.")
            return checkpoint_path
        self._export_modules(make_saved_modules_directory_name(checkpoint_path))
        self._keep_only(map(make_saved_modules_directory_name, self.checkpoints))
        return checkpoint_path

    def get_existing_savedmodels(self) -> list[str]:
        """All finished SavedModel directories beside the checkpoints, the oldest first."""
        pattern = make_saved_modules_directory_name(f"{self._checkpoint_prefix}-*")
        return sorted(tf.io.gfile.glob(pattern), key=self._sort_key)

    def get_savedmodel_number_from_path(self, savedmodel_path: str) -> int | None:
        """The number of the checkpoint that it belongs to: the global step, as a rule."""
        matched = re.search(rf"(\d+)_{SAVED_MODULES_PATH_SUFFIX}$", savedmodel_path)
        return int(matched.group(1)) if matched else None

    def savedmodels_iterator(
        self,
        min_interval_secs: float = 0,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        """Gives each SavedModel directory as it appears, in the order of their numbers.

        Args:
            min_interval_secs: The least time from one to the next.
            timeout: How long to wait for the next, in seconds; None waits for ever.
            timeout_fn: Asked after a timeout whether that was the last; without it it was.
        """
        last: str | None = None
        while True:
            found = self.wait_for_new_savedmodel(last, timeout=timeout)
            if found is None:
                if timeout_fn is None or timeout_fn():
                    logging.info("Stopped waiting for a SavedModel in %s.", self._directory)
                    return
                continue
            last = found
            start = time.monotonic()
            yield found
            time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))

    def wait_for_new_savedmodel(
        self,
        last_savedmodel: str | None = None,
        seconds_to_sleep: float = 1.0,
        timeout: float | None = None,
    ) -> str | None:
        """Waits for the first SavedModel directory after `last_savedmodel`.

        Args:
            last_savedmodel: The one before it; None takes any.
            seconds_to_sleep: How long to sleep between two looks.
            timeout: How long to wait, in seconds; None waits for ever.

        Returns:
            None if there was none in time.
        """
        logging.info("Waiting for a SavedModel in %s.", self._directory)
        stop_time = None if timeout is None else time.monotonic() + timeout
        while stop_time is None or time.monotonic() + seconds_to_sleep <= stop_time:
            found = self._first_after(last_savedmodel)
            if found is not None:
                return found
            time.sleep(seconds_to_sleep)
        return None

    def _export_modules(self, directory: str) -> None:
        # Readers look for the final name, so it must not appear before everything is there.
        unfinished = f"{directory}_temp"
        if tf.io.gfile.exists(unfinished):
            files.remove_all(unfinished)
        for name, module in (self._modules_to_export or {}).items():
            signatures = getattr(module, "saved_model_signatures", None)
            if signatures is not None:
                path = os.path.join(unfinished, name)
                # A model that puts numbers into the event storage would be saved with the storage.
                with telemetry.get_event_storage().muted():
                    tf.saved_model.save(module, path, signatures=signatures)
        if not tf.io.gfile.exists(unfinished):
            return
        if tf.io.gfile.exists(directory):
            files.remove_all(directory)
        tf.io.gfile.rename(unfinished, directory)

    def _keep_only(self, directories: Iterator[str]) -> None:
        existing = self.get_existing_savedmodels()
        self._savedmodels = [directory for directory in directories if directory in existing]
        for directory in existing:
            if directory not in self._savedmodels:
                files.remove_all(directory)

    def _first_after(self, last_savedmodel: str | None) -> str | None:
        last = self._sort_key(last_savedmodel) if last_savedmodel else -1
        later = (path for path in self.get_existing_savedmodels() if self._sort_key(path) > last)
        return next(later, None)

    def _sort_key(self, savedmodel_path: str) -> int:
        number: Any = self.get_savedmodel_number_from_path(savedmodel_path)
        return -1 if number is None else number


def _check_name(name: str) -> None:
    if not name.isprintable() or "/" in name or name in ("", ".", ".."):
        raise errors.ConfigValueError(
            f"{name!r} can't name a module to export: it becomes the name of a directory."
        )
