"""Two small tasks for tests, `foo` and `bar`, and models of them that share a layer."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.core import base_task, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import base_model

__all__ = [
    "BarConfig",
    "FooConfig",
    "MockBarModel",
    "MockBarTask",
    "MockFooModel",
    "MockFooTask",
    "MockMultiTaskModel",
    "mock_data",
]

BATCH_SIZE = 2


class _MockModel(keras.Model):
    feature_names: tuple[str, ...]

    def __init__(self, shared_layer: keras.layers.Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shared_layer = shared_layer
        self._own_layer = keras.layers.Dense(1)

    def call(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        self.add_loss(tf.zeros(()))
        features = next(inputs[name] for name in self.feature_names if name in inputs)
        return self._own_layer(self._shared_layer(features))


class MockFooModel(_MockModel):
    """Model that reads the feature `foo`, or `bar` if `foo` is missing."""

    feature_names = ("foo", "bar")


class MockBarModel(_MockModel):
    """Model that reads the feature `bar`."""

    feature_names = ("bar",)


class MockMultiTaskModel(base_model.MultiTaskBaseModel):
    """Multi-task model of both tasks with one shared layer."""

    def __init__(self, **kwargs: Any) -> None:
        self._shared_dense = keras.layers.Dense(1)
        super().__init__(**kwargs)

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        return {"foo": MockFooModel(self._shared_dense), "bar": MockBarModel(self._shared_dense)}


def mock_data(feature_name: str) -> tf.data.Dataset:
    """Return an infinite dataset of batches of zeros, with zeros as labels."""
    example = ({feature_name: tf.zeros([2], tf.float32)}, tf.zeros([1], tf.int32))
    dataset = tf.data.Dataset.from_tensors(example).repeat()
    return dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(1)


@dataclasses.dataclass
class FooConfig(cfg.TaskConfig):
    """Config of `MockFooTask`."""


@dataclasses.dataclass
class BarConfig(cfg.TaskConfig):
    """Config of `MockBarTask`."""


class _MockTask(base_task.Task):
    feature_name: str

    def build_inputs(
        self, params: Any, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        del params, input_context
        return mock_data(self.feature_name)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        del training
        return [keras.metrics.Accuracy(name=f"{self.feature_name}_acc")]

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        errors = keras.losses.mean_squared_error(labels, model_outputs)
        return tf.reduce_mean(errors) + super().build_losses(labels, model_outputs, aux_losses)


@task_factory.register_task_cls(FooConfig)
class MockFooTask(_MockTask):
    """Regression task from zeros to zeros with the metric `foo_acc`."""

    feature_name = "foo"

    def build_model(self) -> keras.Model:
        return MockFooModel(shared_layer=keras.layers.Dense(1))


@task_factory.register_task_cls(BarConfig)
class MockBarTask(_MockTask):
    """Regression task from zeros to zeros with the metric `bar_acc`."""

    feature_name = "bar"
