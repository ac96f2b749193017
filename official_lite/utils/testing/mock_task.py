"""A task that trains almost instantly, and its experiment `mock`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task, exp_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling.hyperparams import base_config

__all__ = ["MockModel", "MockTask", "MockTaskConfig", "mock_experiment"]

BATCH_SIZE = 2


class MockModel(keras.Model):
    """A model that applies `network` to its inputs and uses the mean of the outputs as its loss."""

    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network = network

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        outputs = self.network(inputs)
        self.add_loss(tf.reduce_mean(outputs))
        return outputs


@dataclasses.dataclass
class MockTaskConfig(cfg.TaskConfig):
    """The config of `MockTask`."""


@base_config.bind(MockTaskConfig)
class MockTask(base_task.Task):
    """A dense layer on an infinite dataset of zeros, so that the loss equals the layer's bias.

    The bias is 1 initially. Each evaluation step also counts 1 on every replica, and
    `reduce_aggregated_logs` returns the sum under `counter`.
    """

    def __init__(
        self, params: Any = None, logging_dir: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(params=params, logging_dir=logging_dir, name=name)

    def build_model(self, *args: Any, **kwargs: Any) -> keras.Model:
        del args, kwargs
        inputs = keras.Input(shape=(2,), name="random", dtype="float32")
        dense = keras.layers.Dense(1, bias_initializer="ones", name="dense_0")
        return MockModel(keras.Model(inputs=inputs, outputs=dense(inputs)))

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        del params, input_context
        example = (tf.zeros([2], tf.float32), tf.zeros([1], tf.int32))
        dataset = tf.data.Dataset.from_tensors(example).repeat()
        return dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(1)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        del training
        return [keras.metrics.Accuracy(name="acc")]

    def validation_step(
        self,
        inputs: Any,
        model: keras.Model,
        metrics: Sequence[keras.metrics.Metric] | None = None,
    ) -> dict[str, Any]:
        logs = super().validation_step(inputs, model, metrics)
        return logs | {"counter": tf.constant(1.0)}

    def aggregate_logs(
        self, state: dict[str, list[Any]] | None, step_logs: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        """Collect the values of every key, as one array over the replicas for each step."""
        state = {} if state is None else state
        for key, per_replica in step_logs.items():
            state.setdefault(key, []).append(np.stack([value.numpy() for value in per_replica]))
        return state

    def reduce_aggregated_logs(
        self, aggregated_logs: Mapping[str, Any], global_step: tf.Variable | None = None
    ) -> dict[str, Any]:
        """Return the sum under each key, over all steps and replicas."""
        del global_step
        return {key: np.sum(np.stack(values)) for key, values in aggregated_logs.items()}


@exp_factory.register_config_factory("mock")
def mock_experiment() -> cfg.ExperimentConfig:
    """Return an experiment with default values except for the task."""
    return cfg.ExperimentConfig(task=MockTaskConfig(), trainer=cfg.TrainerConfig())
