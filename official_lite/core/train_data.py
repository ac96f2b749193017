"""The training data of a task, from any step of the training on."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.core import micro_batches, overfitting
from official_lite.core.async_trainer import Dataset
from official_lite.data import position

__all__ = ["TrainData"]


class TrainData:
    """Builds them so that they begin with the batch that a step would have been given.

    Args:
        config: The experiment's config.
        build_inputs: That of the task.
        distribute: Distributes over the replicas what `build_inputs` returns for a `DataConfig`.

    Attributes:
        skipped: Batches that were left out, int64; belongs into the checkpoint.
    """

    def __init__(
        self,
        config: Any,
        build_inputs: Callable[..., tf.data.Dataset],
        distribute: Callable[..., Dataset],
    ) -> None:
        self._config = config
        self._build_inputs = overfitting.training_inputs(config, build_inputs)
        self._distribute = distribute
        self.skipped = tf.Variable(
            0,
            dtype=tf.int64,
            name="skipped_batches",
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def build(self) -> Dataset:
        """The data from their beginning: reading them moves no other iterator."""
        return self._build_at(0)[0]

    def build_at(self, step: int) -> Dataset:
        """The data as they go on after so many steps.

        A source that can't begin there begins anew, which is said in the log.
        """
        count = micro_batches.count_micro_batches(self._config)
        batch = step * count + int(self.skipped.numpy())
        dataset, is_kept = self._build_at(batch)
        if is_kept:
            logging.info("The training data go on with batch %d.", batch)
        else:
            logging.warning(
                "The training data begin anew at step %d, so that this training is not the one "
                "that it would have been without the interruption: `build_inputs` does not keep "
                "the position. See docs/resume.md.",
                step,
            )
        return dataset

    def _build_at(self, batch: int) -> tuple[Dataset, bool]:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        data = micro_batches.micro_batch_data(self._config, replicas)
        with position.begin_at(batch, self._config.runtime.seed) as begin:
            dataset = self._distribute(self._build_inputs, data)
        return dataset, begin.is_kept
