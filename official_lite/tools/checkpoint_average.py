"""Averaging of several checkpoints of a run into a new checkpoint."""

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_lite import orbit
from official_lite.checkpoint import (
    async_checkpoint_manager,
    commit,
    latest,
    model_state,
    saved_graph,
)
from official_lite.common import errors, files
from official_lite.core import checkpoint_state
from official_lite.modeling.multitask import base_trainer, multitask
from official_lite.modeling.optimization import ema_optimizer, optimizer_factory
from official_lite.orbit.hooks import batch_norm_statistics
from official_lite.tools import loaded_run

_KERAS_FILES = (".weights.h5", ".keras")


def find_checkpoints(sources: Sequence[str], last: int = 0) -> list[str]:
    """Resolve the arguments to unique checkpoint paths.

    Args:
        sources: Checkpoints, and folders of them.
        last: How many of the latest checkpoints to use per folder; 0 uses all.

    Raises:
        errors.CheckpointError: There are fewer than two checkpoints, or one is damaged.
    """
    found: dict[str, None] = {}
    for source in sources:
        prefixes = [loaded_run.find_checkpoint(source)]
        if tf.io.gfile.isdir(source):
            prefixes = latest.find_checkpoints(source) or latest.find_unlisted(source)
            prefixes = prefixes[-last:]
        found |= dict.fromkeys(prefixes)
    for prefix in found:
        if damage := commit.find_damage(prefix):
            raise errors.CheckpointError(
                f"{prefix} is damaged: {damage}. Pass only intact checkpoints."
            )
    if len(found) < 2:
        raise errors.CheckpointError(
            f"Found only {', '.join(found)}; expected at least two checkpoints. "
            "Pass more checkpoints, or train with a larger `trainer.max_to_keep`."
        )
    return list(found)


def write_average(
    params: Any, paths: Sequence[str], output: str, *, recalibration_steps: int = 0
) -> str:
    """Average the weights in float64, and write them with the rest of the last checkpoint.

    Args:
        params: The config of the run.
        paths: The checkpoints.
        output: A folder, or a file that ends in `.weights.h5` or `.keras`.
        recalibration_steps: Number of batches of training data from which batch normalization
            recomputes its statistics; 0 averages the statistics like all other weights.

    Returns:
        The path of the written checkpoint or file.

    Raises:
        errors.CheckpointError: The checkpoints belong to different models.
        errors.ConfigValueError: The folder belongs to a run.
    """
    _require_one_model(paths)
    _require_other_folder(output, paths)
    with loaded_run.built(params, "train" if recalibration_steps else "") as (ctx, build):
        trainer = _parts(ctx, build, recalibration_steps)
        if output.endswith(_KERAS_FILES):
            _require_one_keras_model(trainer.model, output)
        averages = _averages(trainer.model, paths)
        # Take everything except the weights from the last checkpoint.
        loaded_run.read_checkpoint(trainer.checkpoint, paths[-1])
        for weight, average in zip(_weights(trainer.model), averages, strict=True):
            weight.assign(average)
        if recalibration_steps:
            batch_norm_statistics.BatchNormStatistics(trainer).update(recalibration_steps)
        if output.endswith(_KERAS_FILES):
            return _save_keras_file(trainer.model, output)
        return _save_checkpoint(trainer, output, paths)


def _parts(ctx: Any, build: Any, recalibration_steps: int) -> Any:
    """Build a trainer or, for several tasks, an object with the same attributes.

    A multi-task trainer is not built, because it would read the data of all tasks.
    """
    if not isinstance(ctx.task, multitask.MultiTask):
        trainer = build.make_trainer(ctx)
        # An overridden `make_trainer` may not call `create_trainer`, which does the same.
        checkpoint_state.add_attributes(trainer.checkpoint, trainer, trains=False)
        return trainer
    if recalibration_steps:
        raise errors.ConfigValueError(
            "--recalibration_steps supports only experiments with one task. Omit it to average the "
            "moving statistics of batch normalization."
        )
    parts: Any = _MultiTaskParts(ctx.task, ctx.model, ctx.optimizer)
    checkpoint_state.add_attributes(parts.checkpoint, parts, trains=False)
    return parts


class _MultiTaskParts:
    """The parts of a multi-task trainer that are averaged or kept, named as in its checkpoints."""

    def __init__(
        self,
        multi_task: multitask.MultiTask,
        model: base_trainer.Model,
        optimizer: keras.optimizers.Optimizer,
    ) -> None:
        self._multi_task = multi_task
        self.model = model
        self.optimizer = optimizer_factory.prepare_optimizer(optimizer, model)
        self.global_step = orbit.utils.create_global_step()
        self.checkpoint = tf.train.Checkpoint(
            **base_trainer.checkpoint_items(model, self.optimizer, self.global_step)
        )

    @property
    def multi_task(self) -> multitask.MultiTask:
        return self._multi_task


def _require_one_keras_model(model: keras.Model, output: str) -> None:
    if not isinstance(model, keras.Model):
        raise errors.ConfigValueError(
            f"--output={output} can contain only one Keras model, but this run has one per task. "
            "Pass a directory to write a checkpoint."
        )


def _require_one_model(paths: Sequence[str]) -> None:
    first = _saved_weights(paths[0])
    for path in paths[1:]:
        other = _saved_weights(path)
        for one, two in itertools.zip_longest(first, other):
            # Do not compare weight names, because the number in a layer's name may differ between
            # processes.
            if one is None or two is None or one.shape != two.shape:
                raise errors.CheckpointError(
                    f"{paths[0]} and {path} belong to different models: one contains "
                    f"{_describe(one)} where the other contains {_describe(two)}. Pass checkpoints "
                    "of one model."
                )


def _saved_weights(path: str) -> list[saved_graph.Tensor]:
    """Return the model's tensors in a checkpoint, in the order of the saved objects."""
    top = saved_graph.SavedGraph(path).node(0).children
    parts = [top[name] for name in ("model", "hidden_weights", "hidden_items") if name in top]
    return [tensor for part in parts for tensor in part.tensors()]


def _describe(tensor: saved_graph.Tensor | None) -> str:
    if tensor is None:
        return "no more variables"
    return f"`{tensor.full_name or tensor.key}` of shape {list(tensor.shape)}"


def _require_other_folder(output: str, paths: Sequence[str]) -> None:
    folders = {os.path.realpath(os.path.dirname(path)) for path in paths}
    if os.path.realpath(output) in folders or files.exists(os.path.join(output, "params.yaml")):
        raise errors.ConfigValueError(
            f"--output={output} already contains checkpoints, which might be overwritten. Use "
            "another directory."
        )


def _averages(model: keras.Model, paths: Sequence[str]) -> list[npt.NDArray[np.float64]]:
    checkpoint = tf.train.Checkpoint(**model_state.weight_items(model))
    sums = [np.zeros(weight.shape) for weight in _weights(model)]
    for path in paths:
        loaded_run.read_checkpoint(checkpoint, path)
        for total, weight in zip(sums, _weights(model), strict=True):
            total += weight.numpy().astype(np.float64)
    return [total / len(paths) for total in sums]


def _weights(model: keras.Model) -> list[Any]:
    """Return the floating-point weights, because counters and integer tables have no mean."""
    weights = model.weights if isinstance(model, keras.Model) else model.variables
    return [weight for weight in weights if tf.as_dtype(weight.dtype).is_floating]


def _save_keras_file(model: keras.Model, path: str) -> str:
    files.makedirs(os.path.dirname(path) or os.curdir)
    if path.endswith(".keras"):
        model.save(path)
    else:
        model.save_weights(path)
    return path


def _save_checkpoint(trainer: Any, directory: str, paths: Sequence[str]) -> str:
    step = int(trainer.global_step.numpy())
    manager = async_checkpoint_manager.AsyncCheckpointManager(
        trainer.checkpoint, directory, max_to_keep=1
    )
    # An evaluation uses the optimizer's moving average, so set it to the averaged weights as well.
    with ema_optimizer.following_weights(trainer.optimizer):
        written = manager.save(checkpoint_number=step)
    record = {"global_step": step, "checkpoints": list(paths)}
    files.write_text(os.path.join(directory, "info.json"), json.dumps(record, indent=4) + "\n")
    return str(written)
