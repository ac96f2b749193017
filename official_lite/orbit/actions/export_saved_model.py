"""An action that exports a SavedModel and keeps the latest exports."""

import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from official_lite import telemetry
from official_lite.checkpoint import directories
from official_lite.common import files, keras_variables
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner

# The suffix of an export that is not complete yet.
_UNFINISHED = "_temp"
_GCS_PREFIX = "gs://"


class ExportFileManager:
    """Names exports `{base_name}-{id}` and removes old ones.

    Args:
        base_name: The path prefix of all exports.
        max_to_keep: The number of exports that `clean_up` keeps: those with the highest ids. A
            negative number keeps all of them.
        next_id_fn: Returns the id of the next export, such as `global_step.numpy`. Defaults to a
            counter that continues from the highest id on disk.
        subdirectory: A directory within each `{base_name}-{id}`. If given, only that directory is
            managed, and other files in `{base_name}-{id}` remain.
    """

    def __init__(
        self,
        base_name: str,
        max_to_keep: int = 5,
        next_id_fn: Callable[[], int] | None = None,
        subdirectory: str | None = None,
    ) -> None:
        self._base_name = safe_normpath(base_name)
        self._max_to_keep = max_to_keep
        self._next_id_fn = next_id_fn or _Counter(self._base_name)
        self._subdirectory = subdirectory or ""

    @property
    def managed_files(self) -> list[str]:
        """Return the exports on disk, ordered by id."""
        paths = [self._with_subdirectory(path) for path in _numbered_paths(self._base_name)]
        return [path for path in paths if tf.io.gfile.exists(path)]

    def clean_up(self) -> None:
        """Remove all but the latest `max_to_keep` exports, and exports that were interrupted."""
        for path in tf.io.gfile.glob(f"{self._base_name}-*{_UNFINISHED}"):
            files.remove_all(path)
        if self._max_to_keep < 0:
            return
        managed = self.managed_files
        for path in managed[: max(len(managed) - self._max_to_keep, 0)]:
            files.remove_all(path)

    def next_name(self) -> str:
        """Return the path for a new export."""
        return self._with_subdirectory(f"{self._base_name}-{self._next_id_fn()}")

    def _with_subdirectory(self, path: str) -> str:
        return safe_normpath(os.path.join(path, self._subdirectory))


class ExportSavedModel:
    """An action that exports a model. It ignores the output.

    An export is written as `<path>_temp` first, so every export under its final name is complete.

    Args:
        model: The model to export.
        file_manager: Determines the path of each export and the number of exports to keep.
        signatures: Passed to `tf.saved_model.save`.
        options: Passed to `tf.saved_model.save`.
        optimizer: The optimizer of the model. If it averages the weights, the averages, which
            evaluations measure, are exported.
    """

    def __init__(
        self,
        model: Any,
        file_manager: ExportFileManager,
        signatures: Any,
        options: tf.saved_model.SaveOptions | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> None:
        self.model = model
        self.file_manager = file_manager
        self.signatures = signatures
        self.options = options
        self.optimizer = optimizer

    def __call__(self, output: runner.Output) -> None:
        path = self.file_manager.next_name()
        # All workers save, because reading a variable may require all of them. Only the chief's
        # export remains.
        if directories.is_chief(_strategy_of(self.model)):
            self._save(path + _UNFINISHED)
            files.replace_tree(path + _UNFINISHED, path)
            self.file_manager.clean_up()
        else:
            with tempfile.TemporaryDirectory() as folder:
                self._save(os.path.join(folder, "model"))

    def _save(self, path: str) -> None:
        if files.exists(path):  # A process was killed before its export was complete.
            files.remove_all(path)
        # Mute the event storage. Otherwise a model that writes scalars to the storage would be
        # saved together with the storage.
        muted = telemetry.get_event_storage().muted()
        try:
            with muted, ema_optimizer.averaged_weights(self.optimizer):
                tf.saved_model.save(self.model, path, self.signatures, self.options)
        except BaseException:
            if files.exists(path):
                files.remove_all(path)
            raise


def safe_normpath(path: str) -> str:
    """Normalize a path like `os.path.normpath`, but keep the two slashes of `gs://`."""
    if path.startswith(_GCS_PREFIX):
        return _GCS_PREFIX + os.path.normpath(path.removeprefix(_GCS_PREFIX))
    return os.path.normpath(path)


def _strategy_of(model: Any) -> tf.distribute.Strategy | None:
    """Return the strategy of a model's variables; None if it does not distribute them."""
    variables = map(keras_variables.raw, keras_variables.variables_of(model))
    found = (getattr(variable, "distribute_strategy", None) for variable in variables)
    return next(filter(None, found), None)


class _Counter:
    """A counter of export ids that starts after the highest existing id."""

    def __init__(self, base_name: str) -> None:
        existing = _numbered_paths(base_name)
        self._next = _id(existing[-1]) + 1 if existing else 0

    def __call__(self) -> int:
        self._next += 1
        return self._next - 1


def _numbered_paths(base_name: str) -> list[str]:
    pattern = re.compile(rf"{re.escape(base_name)}-\d+")
    return sorted(filter(pattern.fullmatch, tf.io.gfile.glob(f"{base_name}-*")), key=_id)


def _id(path: str) -> int:
    return int(path.rpartition("-")[2])
