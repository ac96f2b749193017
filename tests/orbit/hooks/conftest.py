"""Fixtures for trainers with a Keras model, scripted evaluations or a task, and for log lines."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import pytest
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.core import base_task, base_trainer, config_definitions
from official_lite.data import tf_data_options
from official_lite.modeling import performance


class KerasTrainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """A trainer that fits y = 2x with one weight, which starts at 1."""

    def __init__(self, optimizer: Any = None, strategy: Any = None) -> None:
        self.strategy = strategy or tf.distribute.get_strategy()
        with self.strategy.scope() if strategy else contextlib.nullcontext():
            self.model = keras.Sequential(
                [
                    keras.Input((1,)),
                    keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense"),
                ],
                name="net",
            )
            self.optimizer = optimizer() if callable(optimizer) else keras.optimizers.SGD(0.1)
            self.optimizer.build(self.model.trainable_variables)
            self.global_step = orbit.utils.create_global_step()
            self.loss = keras.metrics.Mean("loss")
        data = tf.data.Dataset.from_tensors(([[1.0], [1.0]], [[2.0], [2.0]]))
        data = tf_data_options.without_idle_autotuner(data)
        distribute = self.strategy.experimental_distribute_dataset
        orbit.StandardTrainer.__init__(self, distribute(data.repeat()))
        orbit.StandardEvaluator.__init__(self, distribute(data))

    def train_loop_begin(self) -> None:
        self.loss.reset_state()

    def train_step(self, iterator: Any) -> dict[str, Any]:
        def step(inputs: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = self._loss_of(inputs)
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self.loss.update_state(loss)
            self.global_step.assign_add(1)
            return {"loss": loss}

        return self.strategy.run(step, args=(next(iterator),))

    def train_loop_end(self) -> dict[str, Any]:
        return {"loss": self.loss.result()}

    def eval_begin(self) -> None:
        self.loss.reset_state()

    def eval_step(self, iterator: Any) -> None:
        self.strategy.run(
            lambda inputs: self.loss.update_state(self._loss_of(inputs)), args=(next(iterator),)
        )

    def eval_end(self) -> dict[str, Any]:
        return {"loss": self.loss.result()}

    def _loss_of(self, inputs: Any) -> tf.Tensor:
        x, y = inputs
        return tf.reduce_mean((self.model(x) - y) ** 2)


@pytest.fixture
def make_keras_trainer() -> type[KerasTrainer]:
    return KerasTrainer


@pytest.fixture
def make_scripted_trainer(make_trainer: Any) -> Callable[..., Any]:
    """Return a function that builds a trainer whose evaluation logs are `logs_at(step)`."""

    def make(logs_at: Callable[[int], Mapping[str, Any]]) -> Any:
        class Scripted(make_trainer):
            def eval_end(self) -> dict[str, Any]:
                return dict(logs_at(int(self.global_step.numpy())))

        return Scripted()

    return make


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(logging, level, lambda text, *args, **_: lines.append(str(text) % args))
    return lines


class PointsTask(base_task.Task):
    """A task that fits a plane to 64 points, which are reshuffled in each epoch."""

    # Builds the layers between the three inputs and the one output.
    layers: Callable[[], list[Any]] = staticmethod(list)

    def build_model(self) -> keras.Model:
        top = keras.layers.Dense(1, name="top")
        return keras.Sequential([keras.Input((3,)), *self.layers(), top], name="net")

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        x = tf.random.stateless_normal((64, 3), (1, 2)) * [1.0, 2.0, 5.0] + [0.0, 5.0, -20.0]
        size = params.global_batch_size
        if input_context:
            size = input_context.get_per_replica_batch_size(size)
        examples = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return examples.shuffle(64, seed=3).batch(size) if params.is_training else examples.batch(8)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(tf.cast(model_outputs, tf.float32) - labels))


@pytest.fixture
def points_task() -> type[PointsTask]:
    return PointsTask


@pytest.fixture
def make_task_trainer() -> Callable[..., base_trainer.Trainer]:
    """Return a function that builds the framework's trainer for a task and an optimizer config."""

    def make(
        task_cls: type[PointsTask] = PointsTask,
        optimizer: Mapping[str, Any] | None = None,
        runtime: Mapping[str, Any] | None = None,
        **trainer: Any,
    ) -> base_trainer.Trainer:
        rate = {"type": "constant", "constant": {"learning_rate": 1e-4}}
        params = config_definitions.ExperimentConfig(
            task=config_definitions.TaskConfig(
                train_data=config_definitions.DataConfig(global_batch_size=8, is_training=True),
                validation_data=config_definitions.DataConfig(global_batch_size=8),
            ),
            trainer=config_definitions.TrainerConfig(
                optimizer_config=config_definitions.OptimizationConfig(
                    {"optimizer": {"type": "sgd"}, "learning_rate": rate, **(optimizer or {})}
                ),
                **trainer,
            ),
            runtime=config_definitions.RuntimeConfig(
                distribution_strategy="off", **(runtime or {})
            ),
        )
        keras.utils.set_random_seed(0)
        task = task_cls(params.task)
        with performance.mixed_precision_policy(params.runtime.mixed_precision_dtype):
            model = task.build_model()
        made = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
        return base_trainer.Trainer(params, task, model, made)

    return make
