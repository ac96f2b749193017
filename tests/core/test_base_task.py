import contextlib
import json
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from tests import rounding
from tests.line_experiment import BATCH_SIZE, NUM_EXAMPLES

# Roundings of the sums in `Weighted` and `Plain`: over 3 units and over 12 examples.
ROUNDINGS = 3 * 12


class Bare(base_task.Task):
    def build_inputs(self, params, input_context=None):
        raise NotImplementedError


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_regularizer="l2")])


def test_default_build_losses_returns_the_sum_of_the_auxiliary_losses() -> None:
    task = Bare(cfg.TaskConfig())
    assert float(task.build_losses(None, None, [tf.constant(1.0), tf.constant(2.0)])) == 3.0
    assert float(task.build_losses(None, None, [])) == 0.0
    assert float(task.build_losses(None, None)) == 0.0


def test_train_step_updates_the_weights_and_returns_the_loss(experiment, make_task) -> None:
    task = make_task(experiment())
    model, optimizer = task.build_model(), keras.optimizers.SGD(0.1)
    x, y = tf.ones((4, 2)), tf.ones((4, 1))
    logs = task.train_step((x, y), model, optimizer)
    assert float(logs["loss"]) == 1.0
    rounding.assert_close(model.dense.kernel, 0.2 * np.ones((2, 1)), roundings=4)


def test_unused_features_do_not_shift_the_named_inputs_of_a_functional_model() -> None:
    inputs = {name: keras.Input((1,), name=name) for name in ("image", "size")}
    model = keras.Model(inputs, {"image": 1.0 * inputs["image"], "size": 1.0 * inputs["size"]})
    features = {name: tf.fill((2, 1), i + 1.0) for i, name in enumerate(("age", "image", "size"))}
    task = Bare(cfg.TaskConfig())
    outputs = task.inference_step(features, model)
    assert {name: float(value[0, 0]) for name, value in outputs.items()} == {"image": 2, "size": 3}
    model.compile(loss={"image": "mse", "size": "mse"})
    labels = {name: features[name] for name in inputs}
    logs = task.validation_step((features, labels), model)
    assert float(logs["loss"]) == 0.0


def test_task_without_build_model_raises_an_error_that_names_the_method() -> None:
    with pytest.raises(NotImplementedError, match="Bare has no `build_model`"):
        Bare(cfg.TaskConfig()).build_model()


def test_initialize_without_an_init_checkpoint_logs_that_weights_are_random(caplog) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    Bare(cfg.TaskConfig()).initialize(_model())
    assert [r.message for r in caplog.records if "random weights" in r.message]


def test_initialize_applies_init_checkpoint_modules_and_init_checkpoint_strict(tmp_path) -> None:
    source, target = _model(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
    tf.train.Checkpoint(model=source).save(str(tmp_path / "ckpt"))
    config = cfg.TaskConfig(init_checkpoint=str(tmp_path), init_checkpoint_strict=False)
    with pytest.raises(errors.CheckpointError, match="No weight in the checkpoint matches"):
        Bare(config).initialize(target)
    with pytest.raises(errors.UnknownNameError, match="'backbone'"):
        Bare(config.replace(init_checkpoint_modules="backbone")).initialize(target)


def test_run_initialized_from_a_best_checkpoint_evaluates_to_its_recorded_metric(
    tmp_path, experiment, make_task
) -> None:
    best = {
        "best_checkpoint_export_subdir": "best",
        "best_checkpoint_eval_metric": "mae",
        "best_checkpoint_metric_comp": "lower",
    }
    first = experiment(trainer=best)
    train_lib.run_experiment(None, make_task(first), "train_and_eval", first, str(tmp_path / "a"))
    info = json.loads((tmp_path / "a" / "best" / "info.json").read_text())
    second = experiment(task={"init_checkpoint": str(tmp_path / "a" / "best")})
    _, logs = train_lib.run_experiment(
        None, make_task(second), "eval", second, str(tmp_path / "b"), run_post_eval=True
    )
    rounding.assert_close(logs["mae"], info["mae"], roundings=NUM_EXAMPLES)


def test_missing_init_checkpoint_raises(tmp_path) -> None:
    task = Bare(cfg.TaskConfig(init_checkpoint=str(tmp_path)))
    with pytest.raises(errors.CheckpointError, match="init_checkpoint"):
        task.initialize(_model())


def test_differential_privacy_config_raises() -> None:
    with pytest.raises(errors.ConfigValueError, match="differential_privacy_config"):
        Bare.create_optimizer(cfg.OptimizationConfig(), dp_config=cfg.TaskConfig())


def test_batch_that_is_a_single_tensor_serves_as_features_and_labels() -> None:
    assert base_task.split_features_and_labels(5) == (5, 5)
    assert base_task.split_features_and_labels((1, 2)) == (1, 2)


def test_loss_that_is_not_a_scalar_raises(experiment, make_task) -> None:
    task = make_task(experiment())
    task.build_losses = lambda labels, model_outputs, aux_losses=None: model_outputs[:, 0]
    with pytest.raises(errors.ConfigValueError, match="expected a scalar"):
        task.train_step(
            (tf.ones((4, 2)), tf.ones((4, 1))), task.build_model(), keras.optimizers.SGD()
        )


def test_task_without_any_loss_logs_a_warning(caplog) -> None:
    class Without(Bare):
        pass

    Without(cfg.TaskConfig()).build_losses(None, None, [tf.constant(1.0)])
    assert not caplog.text
    Without(cfg.TaskConfig()).build_losses(None, None, [])
    assert "Without has no `build_losses`" in caplog.text


class Weighted(Bare):
    """A task whose compiled model has two outputs, loss weights and weighted examples."""

    weighs_examples = True

    def build_model(self):
        inputs = keras.Input((2,), name="x")
        hidden = keras.layers.Dense(3, "relu", kernel_regularizer="l2")(inputs)
        hidden = keras.layers.Dropout(0.5)(hidden)
        model = keras.Model(
            inputs,
            {
                "price": keras.layers.Dense(1, name="price")(hidden),
                "kind": keras.layers.Dense(3, name="kind")(hidden),
            },
        )
        model.compile(
            loss={
                "price": "mse",
                "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"price": 0.5, "kind": 2.0},
            metrics={"kind": ["accuracy"]},
            weighted_metrics={"price": ["mae"]},
        )
        return model

    def build_inputs(self, params, input_context=None):
        x, prices = tf.random.stateless_normal((12, 2), (1, 2)), tf.range(12.0)[:, tf.newaxis]
        batch = x, {"price": prices, "kind": tf.range(12) % 3}
        if self.weighs_examples:
            batch = *batch, tf.range(12.0) / 6
        size = params.global_batch_size
        if input_context:
            size = input_context.get_per_replica_batch_size(size)
        return tf.data.Dataset.from_tensor_slices(batch).batch(size)


class Plain(Weighted):
    weighs_examples = False

    def build_model(self):
        # Keras squeezes outputs of shape (batch, 1) if the labels have the shape (batch,).
        layers = [keras.layers.Dense(3), keras.layers.Dense(1, kernel_regularizer="l2")]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(loss="mse", metrics=["mae"])
        return model

    def build_inputs(self, params, input_context=None):
        data = super().build_inputs(params, input_context)
        return data.map(lambda x, y: (x, y["price"][:, 0]))


@pytest.mark.parametrize(("task_cls", "replicas"), [(Weighted, 2), (Plain, 1)])
def test_evaluation_of_a_compiled_model_equals_keras_evaluate(
    experiment, make_trainer, two_replicas, replicas, task_cls
) -> None:
    with two_replicas.scope() if replicas == 2 else contextlib.nullcontext():
        config = experiment(task={"validation_data": {"global_batch_size": 4}})
        trainer = make_trainer(config, task_cls=task_cls)
        # Stop after 3 steps: Keras' means would also count the empty batches of a further step.
        logs = trainer.evaluate(tf.constant(3))
    alone = trainer.task.build_model()
    alone.set_weights(trainer.model.get_weights())
    expected = alone.evaluate(
        trainer.task.build_inputs(config.task.validation_data), return_dict=True, verbose=0
    )
    expected["validation_loss"] = expected.pop("loss")
    tolerance = rounding.tolerance(roundings=ROUNDINGS)
    found = {name: float(value) for name, value in logs.items()}
    assert found == pytest.approx(expected, rel=tolerance)


def test_training_of_a_compiled_model_equals_keras_fit(
    experiment, make_trainer, two_replicas
) -> None:
    config = experiment(task={"train_data": {"global_batch_size": 12}})
    with two_replicas.scope():
        trainer = make_trainer(config, task_cls=Plain)
        alone = trainer.task.build_model()
        alone.set_weights(trainer.model.get_weights())
        alone.compile(keras.optimizers.SGD(0.1), "mse")
        logs = trainer.train(tf.constant(1))
    history = alone.fit(trainer.task.build_inputs(config.task.train_data), shuffle=False, verbose=0)
    rounding.assert_close(logs["training_loss"], history.history["loss"][0], roundings=ROUNDINGS)
    for ours, theirs in zip(trainer.model.get_weights(), alone.get_weights(), strict=True):
        rounding.assert_close(ours, theirs, roundings=ROUNDINGS)


def test_model_compiled_without_a_loss_uses_build_losses_of_its_task(experiment, make_task) -> None:
    task = make_task(experiment())
    model = task.build_model()
    model.compile(metrics=["mae"])
    batch = tf.ones((4, 2)), tf.ones((4, 1))
    assert float(task.validation_step(batch, model)["loss"]) == 1.0
    assert float(task.train_step(batch, model, keras.optimizers.SGD(0.1))["loss"]) == 1.0


def test_compiled_model_reports_its_loss_once_and_logs_no_build_losses_warning(
    experiment, make_trainer, caplog
) -> None:
    trainer = make_trainer(experiment(), task_cls=Plain)
    logs = trainer.train(tf.constant(2)), trainer.evaluate(tf.constant(-1))
    assert [sorted(one) for one in logs] == [
        ["learning_rate", "mae", "training_loss"],
        ["mae", "validation_loss"],
    ]
    assert "build_losses" not in caplog.text


def test_keras_loss_objects_are_divided_by_the_number_of_replicas_only_once(
    experiment, make_task, make_trainer, two_replicas
) -> None:
    params = experiment()

    class WithLossObject(type(make_task(params))):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return keras.losses.MeanSquaredError()(labels, model_outputs)

    with two_replicas.scope():
        trainers = [make_trainer(params, task_cls=WithLossObject), make_trainer(params)]
    logs = [float(one.train(tf.constant(3))["training_loss"]) for one in trainers]
    rounding.assert_close(*logs, roundings=3 * BATCH_SIZE)
    kernels = (one.model.dense.kernel for one in trainers)
    rounding.assert_close(*kernels, roundings=3 * BATCH_SIZE)
