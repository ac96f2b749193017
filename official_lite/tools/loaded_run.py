"""A trained run, opened in Python: its config, task, model and record."""

import dataclasses
import os
import random
from typing import Any

import keras
import numpy as np
from absl import logging

from official_lite.checkpoint import commit
from official_lite.common import errors, files, plugins
from official_lite.run import run_reading
from official_lite.tools import run_model, sources

__all__ = ["LoadedRun", "load_run"]

_CHOICES = ("best", "latest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A trained run.

    Attributes:
        params: The config that the run was trained with, typed and resolved.
        task: The task, such as a `Task` or a `MultiTask`.
        model: The model, with the weights of `checkpoint`. If the optimizer keeps a moving average,
            these are the averaged weights, as in an evaluation.
        checkpoint: The prefix of the checkpoint.
        step: The global step of the checkpoint.
        record: What the run has written: its metrics, status and environment.
    """

    params: Any
    task: Any
    model: keras.Model
    checkpoint: str
    step: int
    record: run_reading.Run


def load_run(
    path: str, *, checkpoint: str = "", experiment: str = "", trust: bool = False
) -> LoadedRun:
    """Open a trained run on one device; nothing is written to it.

    Building the model sets the seeds of TensorFlow and Keras to the seed of the run.

    The experiment must be registered: import the module that registers it first. A module
    `registry_imports` in the current directory is imported by this function. ::

        run = official_lite.load_run("/tmp/digits")
        scores = run.model(images)

    Args:
        path: A model directory, or a checkpoint or a directory of checkpoints in it, such as
            `RUN/ckpt-500` or `RUN/best_ckpt`.
        checkpoint: For a model directory: `best` or `latest`. By default the best checkpoint if the
            run keeps one, and otherwise the latest.
        experiment: The experiment, if `run.json` does not name it or names code.
        trust: Whether the config of the run may name code that is not registered, such as
            `trainer.name: my_package:MyTrainer`. Use it for your own runs.

    Raises:
        errors.ConfigError: There is no run at `path`, its experiment is not registered, its config
            can't be read or names code, or `checkpoint` is not one of these values.
        errors.CheckpointError: There is no such checkpoint, or it is damaged or does not match the
            model of the config.
    """
    if checkpoint and checkpoint not in _CHOICES:
        raise errors.ConfigValueError(
            f"`checkpoint` is {checkpoint!r}; expected 'best' or 'latest'. To load another "
            "checkpoint, pass it as `path`."
        )
    path = files.expand_home(path)
    outside = plugins.restriction()
    random_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        source = sources.read_run_params(path, experiment, trust=trust)
        with run_model.built(source.params) as (ctx, _):
            # Choose the checkpoint only now, because a running training job may remove checkpoints
            # while the model is built.
            record = run_reading.read_run(source.run_dir)
            prefix = _find_checkpoint(path, source.run_dir, record, checkpoint)
            run_model.load_weights(ctx, prefix)
    finally:
        plugins.restrict(outside)
        random.setstate(random_state)
        np.random.set_state(numpy_state)
    logging.info("Loaded the weights of %s.", prefix)
    return LoadedRun(
        params=source.params,
        task=ctx.require("task"),
        model=ctx.require("model"),
        checkpoint=prefix,
        step=commit.step_of(prefix),
        record=record,
    )


def _find_checkpoint(path: str, run_dir: str, record: run_reading.Run, choice: str) -> str:
    if os.path.normpath(path) != os.path.normpath(run_dir):
        return run_model.find_checkpoint(path)
    if choice == "latest" or (not choice and record.best is None):
        return run_model.find_checkpoint(run_dir)
    if record.best is None or record.best.path is None:
        state = "keeps no" if record.best is None else "has lost the files of its"
        raise errors.CheckpointError(
            f"The run in {run_dir} {state} best checkpoint. Pass checkpoint='latest'."
        )
    return record.best.path
