"""Inspection and removal of checkpoint files."""

import os

import tensorflow as tf
from absl import logging

from official_lite.common import errors, files

__all__ = ["read_global_step_from_checkpoint", "remove_ckpts"]

_STEP_KEY = "global_step/.ATTRIBUTES/VARIABLE_VALUE"


def read_global_step_from_checkpoint(ckpt_file_path: str) -> int:
    """Return the global step at which a checkpoint was saved.

    Raises:
        errors.CheckpointError: The checkpoint holds no global step.
    """
    reader = tf.train.load_checkpoint(ckpt_file_path)
    if not reader.has_tensor(_STEP_KEY):
        raise errors.CheckpointError(
            f"There is no `global_step` in {ckpt_file_path}. Save it with the model, as "
            "`tf.train.Checkpoint(model=…, global_step=…)`."
        )
    return int(reader.get_tensor(_STEP_KEY))


def remove_ckpts(model_dir: str) -> None:
    """Remove all `ckpt-*` files and the file `checkpoint` from a directory."""
    pattern = os.path.join(model_dir, "ckpt-*")
    logging.info("Removing checkpoint files %s.", pattern)
    for path in [*tf.io.gfile.glob(pattern), os.path.join(model_dir, "checkpoint")]:
        if tf.io.gfile.exists(path):
            files.remove_all(path)
