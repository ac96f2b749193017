"""A checkpoint manager that writes SavedModels next to every checkpoint.

The SavedModels of `ckpt-1000` are written to `ckpt-1000_saved_modules/<name>`, one per module, and
are deleted together with the checkpoint. Another process can wait for new SavedModels and serve
each one as it appears.
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

_UNFINISHED = "_temp"


def make_saved_modules_directory_name(checkpoint_name: str) -> str:
    """Return the directory of a checkpoint's SavedModels."""
    return f"{checkpoint_name}_{SAVED_MODULES_PATH_SUFFIX}"


class SavedModelCheckpointManager(committed_checkpoint_manager.CommittedCheckpointManager):
    """Checkpoint manager that also writes SavedModels.

    A module is exported if it has the attribute `saved_model_signatures`, a mapping of names to the
    functions to serve.

    Args:
        modules_to_export: The modules to export, by name.

    The other arguments are those of the base class.

    Raises:
        ConfigValueError: If a module's name can't be used as the name of a directory.
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
        """The modules to export, by name."""
        return self._modules_to_export

    @property
    def savedmodels(self) -> list[str]:
        """The directories of the SavedModels that are kept, oldest first."""
        return self._savedmodels

    @property
    def latest_savedmodel(self) -> str | None:
        """The directory of the latest SavedModel; None if there is none."""
        return self._savedmodels[-1] if self._savedmodels else None

    def save(
        self,
        checkpoint_number: int | None = None,
        check_interval: bool = True,
        options: tf.train.CheckpointOptions | None = None,
    ) -> str | None:
        """Save a checkpoint and its SavedModels, and delete SavedModels without a checkpoint.

        Returns:
            The path of the checkpoint; None if no checkpoint was saved.
        """
        checkpoint_path = super().save(
            checkpoint_number=checkpoint_number, check_interval=check_interval, options=options
        )
        if not checkpoint_path:
            return None
        if not self._modules_to_export:
            logging.info("Skipping the SavedModel, because `modules_to_export` is empty.")
            return checkpoint_path
        self._export_modules(make_saved_modules_directory_name(checkpoint_path))
        self._remove_orphans()
        return checkpoint_path

    def restore_or_initialize(self) -> str | None:
        """Restore the latest intact checkpoint, and write its SavedModels if there are none.

        They are missing if the process that saved the checkpoint was killed during the export.

        Returns:
            The path of the checkpoint; None if there was no checkpoint.
        """
        checkpoint_path = super().restore_or_initialize()
        if checkpoint_path and self._modules_to_export:
            for unfinished in tf.io.gfile.glob(f"{self._pattern}{_UNFINISHED}"):
                files.remove_all(unfinished)
            directory = make_saved_modules_directory_name(checkpoint_path)
            if not tf.io.gfile.exists(directory):
                self._export_modules(directory)
            self._remove_orphans()
        return checkpoint_path

    def get_existing_savedmodels(self) -> list[str]:
        """Return all complete SavedModel directories next to the checkpoints, oldest first."""
        return sorted(tf.io.gfile.glob(self._pattern), key=self._sort_key)

    def get_savedmodel_number_from_path(self, savedmodel_path: str) -> int | None:
        """Return the number of the SavedModel's checkpoint, usually the global step."""
        matched = re.search(rf"(\d+)_{SAVED_MODULES_PATH_SUFFIX}$", savedmodel_path)
        return int(matched.group(1)) if matched else None

    def savedmodels_iterator(
        self,
        min_interval_secs: float = 0,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        """Yield each SavedModel directory as it appears, in the order of their numbers.

        Args:
            min_interval_secs: The minimum time in seconds between two directories.
            timeout: The maximum time in seconds to wait for the next one; None waits forever.
            timeout_fn: A function called after a timeout; iteration stops if it returns true.
                Without it, iteration stops at the first timeout.
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
        """Wait for the first SavedModel directory after `last_savedmodel`.

        Args:
            last_savedmodel: The preceding directory; None accepts any directory.
            seconds_to_sleep: The time in seconds between two checks.
            timeout: The maximum time in seconds to wait; None waits forever.

        Returns:
            The directory; None if none appeared in time.
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
        # Rename the directory last, because readers assume that a directory with the final name is
        # complete.
        unfinished = f"{directory}{_UNFINISHED}"
        if tf.io.gfile.exists(unfinished):
            files.remove_all(unfinished)
        for name, module in (self._modules_to_export or {}).items():
            signatures = getattr(module, "saved_model_signatures", None)
            if signatures is not None:
                path = os.path.join(unfinished, name)
                # Mute the event storage. Otherwise a model that writes scalars to the storage
                # would be saved together with the storage.
                with telemetry.get_event_storage().muted():
                    tf.saved_model.save(module, path, signatures=signatures)
        if not tf.io.gfile.exists(unfinished):
            return
        files.replace_tree(unfinished, directory)

    def _remove_orphans(self) -> None:
        """Remove the SavedModels whose checkpoint no longer exists."""
        # Look for files, because `self.checkpoints` lacks checkpoints that are kept permanently.
        suffix = make_saved_modules_directory_name("")
        self._savedmodels = []
        for directory in self.get_existing_savedmodels():
            if files.exists(f"{directory.removesuffix(suffix)}.index"):
                self._savedmodels.append(directory)
            else:
                files.remove_all(directory)

    @property
    def _pattern(self) -> str:
        """The glob pattern that matches the SavedModel directories of all checkpoints."""
        return make_saved_modules_directory_name(f"{self._checkpoint_prefix}-*")

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
            f"{name!r} is not a valid name for an exported module; expected a directory name of "
            "printable characters without `/`."
        )
