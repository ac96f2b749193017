"""Checkpoints that a program saves and restores by hand."""

import os
from typing import Any

import tensorflow as tf

from official_lite.checkpoint import keras2_restore

__all__ = ["Checkpoint"]


class Checkpoint(tf.train.Checkpoint):
    """A `tf.train.Checkpoint` that also restores checkpoints that Keras 2 wrote."""

    def read(self, save_path: str, options: Any = None) -> Any:
        """Restore the variables; see `tf.train.Checkpoint.read`."""
        return self._converted(save_path) or super().read(save_path, options)

    def restore(self, save_path: str | None, options: Any = None) -> Any:
        """Restore the variables; see `tf.train.Checkpoint.restore`."""
        return self._converted(save_path) or super().restore(save_path, options)

    def _converted(self, save_path: Any) -> "_Status | None":
        if save_path is None or not keras2_restore.is_keras2(path := os.fspath(save_path)):
            return None
        keras2_restore.restore(self, path)
        return _Status()


class _Status:
    """The status of a conversion, which fails unless all variables get their values."""

    def assert_consumed(self) -> "_Status":
        return self

    assert_existing_objects_matched = assert_nontrivial_match = expect_partial = assert_consumed

    def initialize_or_restore(self, session: Any = None) -> None:
        """Do nothing: the variables have their values."""

    run_restore_ops = initialize_or_restore
