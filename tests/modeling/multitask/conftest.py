"""Two tasks that pull one shared weight to different targets, with results in closed form."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.core import base_task, task_factory
from official_lite.core import config_definitions as cfg
from official_lite.modeling.multitask import base_model, configs

NUM_EXAMPLES = 6


@dataclasses.dataclass
class PullConfig(cfg.TaskConfig):
    target: float = 0.0


class PullModel(keras.Model):
    """A model that multiplies its input by the weight of the shared layer."""

    def __init__(self, shared: keras.layers.Layer, added_loss: float = 0.0) -> None:
        super().__init__()
        self.shared = shared
        self.added_loss = added_loss

    def call(self, x: tf.Tensor) -> tf.Tensor:
        outputs = self.shared(x)
        self.add_loss(self.added_loss * tf.reduce_mean(outputs))
        return outputs


def shared_layer(l2: float = 0.0) -> keras.layers.Layer:
    return keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(l2)
    )


class PullModels(base_model.MultiTaskBaseModel):
    """Two models with one shared weight, which is initially 1."""

    def __init__(self, l2: float = 0.0, added_loss: float = 0.0) -> None:
        self.shared = shared_layer(l2)
        self.added_loss = added_loss
        super().__init__()

    def _instantiate_sub_tasks(self) -> dict[str, keras.Model]:
        return {"foo": PullModel(self.shared, self.added_loss), "bar": PullModel(self.shared)}

    @property
    def weight(self) -> float:
        return float(self.shared.kernel.numpy()[0, 0])


@task_factory.register_task_cls(PullConfig)
class PullTask(base_task.Task):
    """A task whose loss is the squared distance to its target."""

    def build_model(self) -> keras.Model:
        return PullModel(shared_layer())

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        features = tf.ones([NUM_EXAMPLES, 1])
        labels = self.task_config.target * features
        is_even = NUM_EXAMPLES % batch_size == 0
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.batch(batch_size, drop_remainder=is_even)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        loss = tf.reduce_mean(tf.square(model_outputs - labels))
        return loss + super().build_losses(labels, model_outputs, aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="mae")]


class CompiledPull(base_task.Task):
    """A `PullTask` that leaves its loss and its metric to the compiled model."""

    build_inputs = PullTask.build_inputs


def pull_config(target: float) -> PullConfig:
    data = cfg.DataConfig(global_batch_size=2)
    return PullConfig(target=target, train_data=data, validation_data=data)


def routines(**kwargs: Any) -> tuple[configs.TaskRoutine, ...]:
    return (
        configs.TaskRoutine(task_name="foo", task_config=pull_config(0.0), **kwargs),
        configs.TaskRoutine(task_name="bar", task_config=pull_config(3.0), **kwargs),
    )


TRAINER = {
    "train_steps": 8,
    "steps_per_loop": 4,
    "summary_interval": 4,
    "checkpoint_interval": 4,
    "validation_interval": 4,
    "continuous_eval_timeout": 1,
    "optimizer_config": {
        "optimizer": {"type": "sgd"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}},
    },
}


@pytest.fixture
def tasks() -> dict[str, PullTask]:
    return {
        "foo": PullTask(pull_config(0.0), name="foo"),
        "bar": PullTask(pull_config(3.0), name="bar"),
    }


@pytest.fixture
def make_model() -> Callable[..., PullModels]:
    return PullModels


@pytest.fixture
def experiment() -> Callable[..., configs.MultiTaskExperimentConfig]:
    """Return a function that builds an experiment of both tasks, with trainer overrides."""

    def make(**trainer: Any) -> configs.MultiTaskExperimentConfig:
        params = configs.MultiTaskExperimentConfig(
            task=configs.MultiTaskConfig(task_routines=routines()),
            runtime=cfg.RuntimeConfig(distribution_strategy="off"),
        )
        params.override({"trainer": TRAINER})
        params.override({"trainer": trainer})
        return params

    return make
