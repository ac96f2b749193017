"""The mode `predict`, which writes the predictions of a trainer to files."""

import contextlib
import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_lite.checkpoint import chain, directories, warm_start
from official_lite.common import errors, files, goodput, preemption
from official_lite.config import compatibility
from official_lite.core import base_task, base_trainer, config_definitions, predictor, train_data
from official_lite.data import file_patterns
from official_lite.data.sources import registry
from official_lite.modeling import hyperparams
from official_lite.modeling.optimization import ema_optimizer
from official_lite.prediction import output
from official_lite.run import driver, run_record

# The fields and blocks of the task config that do not affect predictions, or that `describe_source`
# adds separately.
_UNUSED = (
    "task.train_data",
    "task.validation_data",
    "task.predict_data",
    "task.test_data",
    "task.init_checkpoint",
)

# Fields within `_UNUSED` blocks that may still affect predictions, because a task may build its
# vocabulary from the training data.
_TRAINING_INPUT = tuple(
    f"task.train_data.{name}" for name in ("input_path", "tfds_name", "tfds_split")
)

# Fields of `runtime` that describe the cluster and do not affect predictions.
_PLACES = ("runtime.worker_hosts", "runtime.task_index")


# The chief sends `_NOTHING` instead of the number of its first batch if all predictions are
# complete, and `_REFUSED` if it can't write them.
_NOTHING, _REFUSED = -1, -2


@goodput.measuring("evaluating")
def run(
    trainer: base_trainer.Trainer,
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    *,
    restored: str | None,
) -> dict[str, Any]:
    """Write the predictions for all rows that are not written yet; call it in the strategy's scope.

    All workers of the strategy predict, and the chief writes.

    Args:
        trainer: The trainer, with the weights to use.
        params: The config of the experiment.
        model_dir: The model directory.
        restored: The checkpoint that was restored; None if the task loaded the weights.

    Returns:
        The number of rows and shards in the directory, and for this call the number of new rows,
        the duration in seconds, and the rows per second; empty on all workers except the chief.

    Raises:
        errors.ConfigValueError: If the directory has predictions of another config, of other
            weights or of other input.
        errors.PreemptedError: If a signal requested a stop.
    """
    if not isinstance(trainer, base_trainer.Trainer):
        raise errors.ConfigTypeError(
            f"The mode `predict` requires a subclass of `Trainer`; got {type(trainer).__name__}."
        )
    directory = run_record.predictions_dir(params, model_dir)
    started = time.monotonic()
    preemption.rearm()
    made_from = describe_source(
        params,
        restored,
        averaged=ema_optimizer.keeps_averages(trainer.optimizer),
        task=getattr(trainer, "task", None),
    )
    if not directories.is_chief(trainer.strategy):
        _predict_for_the_chief(trainer, made_from)
        return {}
    try:
        opened = output.PredictionOutput(
            directory,
            params.prediction.format,
            rows_per_shard=params.prediction.rows_per_shard,
            made_from=made_from,
        )
    except errors.OfficialLiteError:
        _agree(trainer.strategy, _REFUSED, made_from)
        raise
    with opened as writer:
        found = writer.progress
        first_batch = _NOTHING if found.is_complete else writer.next_batch
        _agree(trainer.strategy, first_batch, made_from)
        if found.is_complete:
            logging.info("The predictions in %s are already complete. Nothing to do.", directory)
        else:
            _write_all(trainer, writer, directory)
        seconds = time.monotonic() - started
        counts = {
            "rows": writer.progress.rows,
            "shards": writer.progress.shards,
            "new_rows": writer.new_rows,
            "seconds": round(seconds, 3),
            "rows_per_second": round(writer.new_rows / max(seconds, 1e-9), 1),
        }
    driver.note(model_dir, predictions={"directory": directory, **counts})
    logging.info(
        "Predictions: %d rows in %d shards in %s; %d new rows in %.1f s, %.0f rows per second.",
        counts["rows"],
        counts["shards"],
        directory,
        counts["new_rows"],
        seconds,
        counts["rows_per_second"],
    )
    return counts


def _write_all(
    trainer: base_trainer.Trainer, writer: output.PredictionOutput, directory: str
) -> None:
    if writer.progress.rows:
        logging.info("The predictions in %s resume at row %d.", directory, writer.progress.rows)
    try:
        with contextlib.closing(trainer.predict(writer.next_batch)) as batches:
            for predictions in batches:
                writer.write(*([predictions] if isinstance(predictions, Mapping) else predictions))
        writer.finish()
    except errors.PreemptedError:
        logging.info("Stopped by a signal, with %d rows in %s.", writer.progress.rows, directory)
        raise


def _predict_for_the_chief(trainer: base_trainer.Trainer, made_from: Mapping[str, Any]) -> None:
    first_batch = _agree(trainer.strategy, _NOTHING, made_from)
    if first_batch == _REFUSED:
        raise errors.ConfigValueError(
            "The chief can't write the predictions of this run. See the error of the chief."
        )
    if first_batch != _NOTHING:
        with contextlib.closing(trainer.predict(first_batch)) as batches:
            for _ in batches:
                pass


def _agree(strategy: tf.distribute.Strategy, first_batch: int, made_from: Mapping[str, Any]) -> int:
    """Return the chief's `first_batch`; check that all workers have the same `made_from`.

    All workers must call this function. If the chief sent `_REFUSED`, nothing is checked.

    Raises:
        errors.ConfigValueError: If the workers have different weights or input files.
    """
    text = json.dumps(made_from, sort_keys=True, default=str)
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
    own = {"first_batch": np.array([first_batch]), "digest": np.array([digest])}
    told = predictor.create_exchange(strategy)([own])
    # The chief is the first worker.
    first_batch = int(told[0]["first_batch"][0])
    if first_batch != _REFUSED and len({int(one["digest"][0]) for one in told}) > 1:
        raise errors.ConfigValueError(
            "The workers would predict with different weights or from different input files. This "
            f"worker has the weights {made_from['weights']} and the input files "
            f"{made_from['input files']}. Give all workers the same files. If a training run still "
            "saves checkpoints, set `prediction.checkpoint` to 'init' and `task.init_checkpoint` "
            "to one of these checkpoints."
        )
    return first_batch


def describe_source(
    params: config_definitions.ExperimentConfig,
    restored: str | None,
    *,
    averaged: bool = False,
    task: base_task.Task | None = None,
) -> dict[str, Any]:
    """Describe everything that determines the predictions of a run, by name.

    Call it in the strategy's scope.

    Args:
        params: The config of the experiment.
        restored: The checkpoint that was restored; None if the task loaded the weights.
        averaged: Whether the optimizer keeps averaged weights, with which the model predicts.
        task: The task that may have loaded the weights.
    """
    data = train_data.predict_data(params)
    flat = compatibility.flatten(params.as_dict())
    fields = {path: value for path, value in flat.items() if _decides(path)}
    of_data = compatibility.flatten({"data": data.as_dict()}) if data is not None else {}
    return {
        **fields,
        **of_data,
        "weights": _describe_weights(params, restored, task, averaged=averaged),
        "input files": _describe_input(data),
        "training files": _describe_input(params.task.train_data),
        "replicas": tf.distribute.get_strategy().num_replicas_in_sync,
        **_versions(params.prediction.format),
    }


def _decides(path: str) -> bool:
    """Return whether a config field may change predictions."""
    is_unused = _is_within(path, _UNUSED) and not _is_within(path, _TRAINING_INPUT)
    if is_unused or path in _PLACES or path == "prediction.output_dir":
        return False
    blocks = ("task.", "runtime.", "prediction.", "trainer.optimizer_config.ema.")
    return path.startswith(blocks) or path == "trainer.name"


def _is_within(path: str, blocks: Sequence[str]) -> bool:
    return any(path == block or path.startswith(f"{block}.") for block in blocks)


def _describe_weights(
    params: config_definitions.ExperimentConfig,
    restored: str | None,
    task: base_task.Task | None,
    *,
    averaged: bool,
) -> str:
    """Describe the source of the weights: a checkpoint with its checksum, or else the task."""
    path = restored
    source = params.task.init_checkpoint
    if path is None and source:
        path = (
            base_task.find_init_checkpoint(task, source)
            if task is not None
            else warm_start.find_checkpoint(source)
        )
    if path is None:
        return f"loaded by the task from {source!r}"
    # Hashing the index is enough, because it contains the checksums of all tensors.
    with files.open_file(f"{path}.index", "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    # Earlier versions predicted with the trained weights of `init_checkpoint`, so their predictions
    # must not be continued with its averages.
    suffix = ", averaged if possible" if averaged and restored is None else ""
    return f"{os.path.basename(path)}, sha256 {digest[:16]}{suffix}"


def _describe_input(data: Any) -> str:
    """Return a checksum of the names, sizes and contents of the input files.

    The contents of remote files are not included. Without files, the result is `none`.
    """
    patterns = list(_patterns(data))
    found: list[Any] = [
        {
            **each,
            "files": [{n: v for n, v in file.items() if n != "mtime"} for file in each["files"]],
        }
        for each in file_patterns.describe(patterns)
        if each["num_files"]
    ]
    found += [
        {"path": path, "bytes": files.size(path)}
        for pattern in filter(files.is_remote, patterns)
        for path in _find_remote(pattern)
    ]
    return f"sha256 {chain.checksum({'inputs': found})[:16]}" if found else "none"


def _patterns(data: Any) -> Iterator[str]:
    """Yield the paths and patterns of the input, and the directories that the patterns match.

    The config `data` need not be a `DataConfig`.
    """
    reads_directories = getattr(data, "source", "") in tuple(registry.OF_DIRECTORIES)
    for text in hyperparams.texts(getattr(data, "input_path", "")):
        for pattern in filter(None, map(str.strip, text.split(","))):
            yield pattern
            matched = sorted(glob.glob(pattern))
            directories = list(filter(os.path.isdir, matched))
            # If a pattern also matches files, most readers ignore the directories.
            if reads_directories or directories == matched:
                yield from directories


def _find_remote(pattern: str) -> list[str]:
    try:
        return sorted(tf.io.gfile.glob(pattern)) or [pattern] * tf.io.gfile.exists(pattern)
    except tf.errors.UnimplementedError:
        # TensorFlow does not support this file system, so the task must have another way to read
        # the files.
        return []


def _versions(file_format: str) -> dict[str, str]:
    """Return the versions of the libraries that compute and write the predictions."""
    return {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        **output.library_versions(file_format),
    }
