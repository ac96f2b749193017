"""What is wrong in a step and yet runs is told, and what is right is not."""

import contextlib

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task
from tests.line_experiment import LineTask


class Flat(LineTask):
    """Its labels have no axis of their own beside the model's outputs of one column."""

    def build_inputs(self, params, input_context=None):
        return super().build_inputs(params, input_context).map(lambda x, y: (x, y[:, 0]))


class Expanding(Flat):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return super().build_losses(labels[:, tf.newaxis], model_outputs, aux_losses)


class Squeezing(Flat):
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return super().build_losses(labels, tf.squeeze(model_outputs, -1), aux_losses)


class Pairwise(Flat):
    """Compares all examples with each other, and means it."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        differences = model_outputs - tf.transpose(model_outputs)
        return tf.reduce_mean(tf.square(differences - (labels[:, None] - labels)))


class Separate(Flat):
    """Compares no example but the means."""

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.square(tf.reduce_mean(labels) - tf.reduce_mean(model_outputs))


@pytest.mark.parametrize(
    ("replicas", "execution"), [(1, "graph"), (1, "eager"), (1, "xla"), (2, "graph")]
)
def test_loss_of_every_label_with_every_output_is_refused(
    experiment, make_trainer, two_replicas, replicas, execution
) -> None:
    with two_replicas.scope() if replicas == 2 else contextlib.nullcontext():
        trainer = make_trainer(experiment(runtime={"execution": execution}), task_cls=Flat)
        with pytest.raises(
            errors.ConfigValueError,
            match=r"LineTask\.build_losses` \(.*\.py:\d+\).*labels\[:, tf.newaxis\]",
        ):
            trainer.train(tf.constant(1))


@pytest.mark.parametrize("task_cls", [LineTask, Expanding, Squeezing, Pairwise, Separate])
def test_loss_of_each_label_with_its_output_is_not(experiment, make_trainer, task_cls) -> None:
    trainer = make_trainer(experiment(), task_cls=task_cls)
    assert trainer.train(tf.constant(1))["training_loss"] > 0
    assert trainer.evaluate(tf.constant(-1))["validation_loss"] > 0


def _warnings(caplog, text: str) -> list[str]:
    return [record.message for record in caplog.records if text in record.message]


class Forgetful(LineTask):
    """Has a step that leaves out what `Task.train_step` does."""

    training: bool | None = None

    def train_step(self, inputs, model, optimizer, metrics=None):
        x, y = inputs
        with tf.GradientTape() as tape:
            outputs = model(x) if self.training is None else model(x, training=self.training)
            loss = self.build_losses(y, outputs, model.losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {self.loss: loss}

    def validation_step(self, inputs, model, metrics=None):
        return {self.loss: self.build_losses(inputs[1], model(inputs[0], training=False))}


class Mindful(Forgetful):
    training = True


@pytest.mark.parametrize(
    ("task_cls", "rate", "is_told"),
    [(Forgetful, 0.5, True), (Forgetful, 0.0, False), (Mindful, 0.5, False)],
)
def test_step_without_training_mode_is_told(
    experiment, make_trainer, caplog, task_cls, rate, is_told
) -> None:
    trainer = make_trainer(experiment(task={"dropout_rate": rate}), task_cls=task_cls)
    trainer.train(tf.constant(2))
    trainer.execution = "eager"
    trainer.train(tf.constant(2))
    assert len(_warnings(caplog, "training=True")) == is_told


class TrainsOnly(LineTask):
    def validation_step(self, inputs, model, metrics=None):
        raise NotImplementedError


@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_task_without_evaluation_trains_and_names_the_mode_that_it_supports(
    experiment, make_trainer, execution
) -> None:
    trainer = make_trainer(experiment(), task_cls=TrainsOnly)
    trainer.execution = execution
    assert trainer.train(tf.constant(1))["training_loss"] > 0
    with pytest.raises(errors.ConfigError, match=r"TrainsOnly\.validation_step.*--mode=train`"):
        trainer.evaluate(tf.constant(1))


def test_metric_that_no_step_updates_is_missing_and_told(experiment, make_trainer, caplog) -> None:
    trainer = make_trainer(experiment(), task_cls=Forgetful)
    assert set(trainer.train(tf.constant(2))) == {"training_loss", "learning_rate"}
    assert set(trainer.evaluate(tf.constant(-1))) == {"validation_loss"}
    trainer.evaluate(tf.constant(-1))
    # Once for training and once for evaluation.
    assert len(_warnings(caplog, "`mae`")) == 2


class Classes(base_task.Task):
    def build_inputs(self, params, input_context=None):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("CategoricalAccuracy", True),
        ("SparseCategoricalAccuracy", False),
    ],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_metric_for_one_hot_labels_that_gets_numbers_is_told(
    caplog, name, is_told, is_compiled
) -> None:
    inputs = tf.ones((4, 2)), tf.range(4)
    task, metric = Classes(None), getattr(keras.metrics, name)()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
    if is_compiled:
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(), metrics=[metric])
    for _ in range(2):
        task.validation_step(inputs, model, [] if is_compiled else [metric])
    assert len(_warnings(caplog, "one-hot")) == is_told


@pytest.mark.parametrize("task_cls", [LineTask, Forgetful])
def test_steps_of_two_replicas_are_watched_as_one(
    experiment, make_trainer, two_replicas, caplog, task_cls
) -> None:
    with two_replicas.scope():
        trainer = make_trainer(experiment(task={"dropout_rate": 0.5}), task_cls=task_cls)
        trainer.train(tf.constant(2))
    assert len(_warnings(caplog, "training=True")) == (task_cls is Forgetful)
