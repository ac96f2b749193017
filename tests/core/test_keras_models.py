"""Tests that a run calls the methods that a model overrides for `fit`, or warns otherwise."""

import contextlib
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, train_lib
from tests import rounding
from tests.line_experiment import LineTask, line_experiment


class Linear(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)


class WithoutTraining(Linear):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2 * tf.reduce_mean(tf.square(y - y_pred))


class OwnMetrics(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = keras.metrics.Mean(name="size")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.sizes.update_state(tf.abs(y_pred))
        if x is not None:
            results |= {"size": self.sizes.result(), "lost": tf.reduce_mean(x)}
        return results


class OwnSteps(Linear):
    def train_step(self, data):
        raise AssertionError("This must not be called.")

    def test_step(self, data):
        raise AssertionError("This must not be called.")


def _run(model_cls, directory, **overrides):
    class Task(LineTask):
        build_losses = base_task.Task.build_losses
        build_metrics = base_task.Task.build_metrics

        def build_model(self):
            model = model_cls()
            model.compile(loss="mse", metrics=["mae"])
            return model

    params = line_experiment(**overrides)
    _, logs = train_lib.run_experiment(
        None, Task(params.task), "train_and_eval", params, str(directory), run_post_eval=True
    )
    return logs


def _warnings(caplog, text: str) -> list[str]:
    return [record.message for record in caplog.records if text in record.message]


def test_overridden_compute_loss_without_a_training_parameter_is_called(tmp_path) -> None:
    logs = _run(WithoutTraining, tmp_path / "double", trainer={"train_steps": 0})
    plain = _run(Linear, tmp_path / "plain", trainer={"train_steps": 0})
    rounding.assert_close(
        logs["validation_loss"], 2 * float(plain["validation_loss"]), roundings=32
    )


@pytest.mark.parametrize("execution", ["eager", "xla"])
def test_compute_metrics_values_are_reported_or_named_in_a_warning(
    tmp_path, caplog, execution
) -> None:
    logs = _run(OwnMetrics, tmp_path, runtime={"execution": execution})
    assert logs["size"] > 0
    assert logs["mae"] > 0
    (told,) = _warnings(caplog, "compute_metrics")
    assert "returns lost, but" in told


def test_each_overridden_step_of_a_keras_model_logs_one_warning(tmp_path, caplog) -> None:
    _run(OwnSteps, tmp_path)
    told = _warnings(caplog, "is never called")
    assert len(told) == 2
    assert "`OwnSteps.train_step`" in told[0] + told[1]
    assert "Move the code to `Task.validation_step`" in told[0] + told[1]


class OtherNames(LineTask):
    def build_losses(self, y, p, aux_losses=None):
        return tf.reduce_mean(tf.square(y - p))


class OtherOrder(LineTask):
    def build_losses(self, model_outputs, labels, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))


def test_build_losses_with_unexpected_parameter_names_raises_before_training(
    experiment, make_trainer
) -> None:
    with pytest.raises(errors.ConfigTypeError, match=r"`OtherNames\.build_losses` \(.*labels=…"):
        make_trainer(experiment(), task_cls=OtherNames)
    trainer = make_trainer(experiment(), task_cls=OtherOrder)
    assert trainer.train(tf.constant(1))["training_loss"] > 0


class Temperature(LineTask):
    """A task that trains a factor that is not a weight of the model."""

    def build_model(self):
        self.factor = keras.Variable(1.0, name="factor")
        self.model = super().build_model()
        return self.model

    def create_optimizer(self, *args, **kwargs):
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([*self.model.trainable_variables, self.factor])
        return optimizer

    def train_step(self, inputs, model, optimizer, metrics=None):
        with tf.GradientTape() as tape:
            outputs = model(inputs[0], training=True) * self.factor
            loss = tf.reduce_mean(tf.square(outputs - inputs[1]))
        variables = [*model.trainable_variables, self.factor]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {self.loss: loss}


def test_micro_batches_accumulate_gradients_of_variables_outside_the_model(
    experiment, tmp_path
) -> None:
    factors = []
    for count in (1, 2):
        params = experiment(trainer={"grad_accum_steps": count})
        task = Temperature(params.task)
        train_lib.run_experiment(None, task, "train", params, str(tmp_path / str(count)))
        factors.append(float(task.factor))
    assert factors[0] != 1.0
    rounding.assert_close(factors[1], factors[0], roundings=8 * 8)


class Affine(tf.Module):
    def __init__(self) -> None:
        super().__init__(name="affine")
        self.kernel = tf.Variable(tf.zeros((2, 1)))
        self.bias = tf.Variable([0.0])

    def __call__(self, x: Any, training: bool = False) -> tf.Tensor:
        return x @ self.kernel + self.bias


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_tf_module_trains_to_the_same_weights_as_a_keras_model(
    experiment, make_trainer, two_replicas, num_replicas
) -> None:
    class ModuleTask(LineTask):
        def build_model(self) -> Any:
            return Affine()

    weights = []
    with two_replicas.scope() if num_replicas == 2 else contextlib.nullcontext():
        for task_cls in (LineTask, ModuleTask):
            trainer = make_trainer(experiment(), task_cls=task_cls)
            trainer.train(tf.constant(4))
            weights.append({tuple(v.shape): v.numpy() for v in trainer.model.trainable_variables})
    for shape in ((2, 1), (1,)):
        rounding.assert_close(weights[0][shape], weights[1][shape], roundings=8)
