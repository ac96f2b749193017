import dataclasses
import json
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, base_trainer, train_lib
from official_lite.core import config_definitions as cfg


class Bare(base_task.Task):
    def build_inputs(self, params, input_context=None):
        raise NotImplementedError


def _model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_regularizer="l2")])


def test_losses_are_the_models_own_by_default() -> None:
    task = Bare(cfg.TaskConfig())
    assert float(task.build_losses(None, None, [tf.constant(1.0), tf.constant(2.0)])) == 3.0
    assert float(task.build_losses(None, None, [])) == 0.0
    assert float(task.build_losses(None, None)) == 0.0


def test_train_step_moves_the_weights_and_logs_the_loss(experiment, make_task) -> None:
    task = make_task(experiment())
    model, optimizer = task.build_model(), keras.optimizers.SGD(0.1)
    x, y = tf.ones((4, 2)), tf.ones((4, 1))
    logs = task.train_step((x, y), model, optimizer)
    assert float(logs["loss"]) == 1.0
    np.testing.assert_allclose(model.dense.kernel, 0.2 * np.ones((2, 1)), rtol=1e-6)


def test_compiled_model_trains_on_its_compiled_loss_and_metrics() -> None:
    task, model = Bare(cfg.TaskConfig()), _model()
    model.compile(loss="mse", metrics=["mae"])
    x, y = tf.ones((4, 2)), tf.zeros((4, 1))
    logs = task.train_step((x, y), model, keras.optimizers.SGD(0.0))
    expected = tf.reduce_mean(model(x) ** 2) + tf.add_n(model.losses)
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-5)
    (metric,) = [m for m in model.metrics if m.name == "compile_metrics"]
    np.testing.assert_allclose(metric.result()["mae"], tf.reduce_mean(abs(model(x))), rtol=1e-5)


@dataclasses.dataclass
class _Data:
    """What a compiled model is trained on: one output, or two with weights for the examples."""

    kind: str

    def inputs(self) -> tuple:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(10, 2)).astype(np.float32)
        y = rng.normal(size=(10, 1)).astype(np.float32)
        if self.kind == "several outputs":
            return x, {"a": y, "b": 2 * y}
        if self.kind == "sample weights":
            return x, y, rng.uniform(size=(10,)).astype(np.float32)
        return x, y

    def model(self) -> keras.Model:
        inputs = keras.Input((2,))
        first = keras.layers.Dense(1, kernel_regularizer="l2", name="a")(inputs)
        if self.kind != "several outputs":
            model = keras.Model(inputs, first)
            model.compile(loss="mse", metrics=["mae"], weighted_metrics=["mse"])
            return model
        model = keras.Model(inputs, {"a": first, "b": keras.layers.Dense(1, name="b")(first)})
        model.compile(
            loss={"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.5}, metrics={"a": ["mae"]}
        )
        return model


@pytest.mark.parametrize("kind", ["one output", "several outputs", "sample weights"])
def test_compiled_model_is_evaluated_as_keras_evaluates_it(experiment, kind, caplog) -> None:
    data = _Data(kind)
    dataset = tf.data.Dataset.from_tensor_slices(data.inputs()).batch(4)

    class Compiled(base_task.Task):
        def build_model(self):
            return data.model()

        def build_inputs(self, params, input_context=None):
            return dataset

    params = experiment()
    task = Compiled(cfg.TaskConfig(train_data=cfg.DataConfig(), validation_data=cfg.DataConfig()))
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    trainer = base_trainer.Trainer(params, task, task.build_model(), optimizer)
    trained = trainer.train(tf.constant(3))
    logs = trainer.evaluate(tf.constant(-1))
    expected = trainer.model.evaluate(dataset, return_dict=True, verbose=0)
    assert float(logs.pop("validation_loss")) == pytest.approx(expected.pop("loss"), rel=1e-5)
    assert {k: float(v) for k, v in logs.items()} == pytest.approx(expected, rel=1e-5)
    assert trained["training_loss"] > 0
    assert "loss" not in trained
    assert "build_losses" not in caplog.text


def test_compiled_loss_and_build_losses_add_up() -> None:
    class Both(Bare):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            return tf.constant(10.0)

    task, model = Both(cfg.TaskConfig()), _model()
    model.compile(loss="mse")
    inputs = tf.ones((4, 2)), tf.zeros((4, 1))
    compiled = Bare(cfg.TaskConfig()).validation_step(inputs, model)["loss"]
    np.testing.assert_allclose(task.validation_step(inputs, model)["loss"], compiled + 10)


def test_labels_that_would_broadcast_against_the_outputs_are_warned_of(
    experiment, make_task, caplog
) -> None:
    class Flat(type(make_task(experiment()))):
        pass

    task = make_task(experiment(), Flat)
    with caplog.at_level(logging.WARNING):
        task.validation_step((tf.ones((4, 2)), tf.ones((4, 1))), task.build_model())
        assert not caplog.records
        task.validation_step((tf.ones((4, 2)), tf.ones((4,))), task.build_model())
    assert "Flat: the labels have the shape (4,)" in caplog.text
    assert "(4, 1)" in caplog.text


@pytest.mark.parametrize("labels", [[0, 1], [[1.0, 0.0], [0.0, 1.0]]])
def test_one_hot_metric_of_class_indices_is_warned_of(caplog, labels) -> None:
    task = Bare(cfg.TaskConfig())
    metric = keras.metrics.CategoricalAccuracy(name=f"accuracy_of_{len(np.shape(labels))}")
    with caplog.at_level(logging.WARNING):
        task.process_metrics([metric], tf.constant(labels), tf.eye(2))
    is_index = np.ndim(labels) == 1
    assert ("Use `SparseCategoricalAccuracy`" in caplog.text) == is_index


def test_missing_build_model_says_which_method_to_write() -> None:
    with pytest.raises(NotImplementedError, match="Bare has no `build_model`"):
        Bare(cfg.TaskConfig()).build_model()


def test_initialize_loads_the_weights_of_another_run(tmp_path) -> None:
    source, target = _model(), _model()
    tf.train.Checkpoint(model=source).save(str(tmp_path / "ckpt"))
    Bare(cfg.TaskConfig(init_checkpoint=str(tmp_path))).initialize(target)
    np.testing.assert_array_equal(source.layers[0].kernel, target.layers[0].kernel)


def test_initialize_loads_only_the_named_parts(tmp_path) -> None:
    source, target = _model(), _model()
    tf.train.Checkpoint(backbone=source.layers[0]).save(str(tmp_path / "ckpt"))
    target.checkpoint_items = {"backbone": target.layers[0]}
    Bare(cfg.TaskConfig(init_checkpoint=str(tmp_path / "ckpt-1"))).initialize(target)
    np.testing.assert_array_equal(source.layers[0].kernel, target.layers[0].kernel)


def test_without_init_checkpoint_one_line_says_so(caplog) -> None:
    caplog.set_level(logging.INFO, logger="absl")
    Bare(cfg.TaskConfig()).initialize(_model())
    assert [r.message for r in caplog.records if "Cold start" in r.message]


def test_config_says_which_parts_and_how_strictly(tmp_path) -> None:
    source, target = _model(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
    tf.train.Checkpoint(model=source).save(str(tmp_path / "ckpt"))
    config = cfg.TaskConfig(init_checkpoint=str(tmp_path), init_checkpoint_strict=False)
    with pytest.raises(errors.CheckpointError, match="Nothing in the checkpoint fits"):
        Bare(config).initialize(target)
    with pytest.raises(errors.UnknownNameError, match="'backbone'"):
        Bare(config.replace(init_checkpoint_modules="backbone")).initialize(target)


@pytest.mark.parametrize("replicas", [1, 2])
def test_run_that_starts_from_the_best_checkpoint_of_another_evaluates_like_it(
    tmp_path, experiment, make_task, two_replicas, replicas
) -> None:
    strategy = two_replicas if replicas == 2 else None
    best = {
        "best_checkpoint_export_subdir": "best",
        "best_checkpoint_eval_metric": "mae",
        "best_checkpoint_metric_comp": "lower",
    }
    first = experiment(trainer=best)
    train_lib.run_experiment(
        strategy, make_task(first), "train_and_eval", first, str(tmp_path / "a")
    )
    info = json.loads((tmp_path / "a" / "best" / "info.json").read_text())
    second = experiment(task={"init_checkpoint": str(tmp_path / "a" / "best")})
    _, logs = train_lib.run_experiment(
        strategy, make_task(second), "eval", second, str(tmp_path / "b"), run_post_eval=True
    )
    assert float(logs["mae"]) == pytest.approx(info["mae"], rel=1e-6)


def test_init_checkpoint_that_is_not_there_is_an_error(tmp_path) -> None:
    task = Bare(cfg.TaskConfig(init_checkpoint=str(tmp_path)))
    with pytest.raises(errors.CheckpointError, match="init_checkpoint"):
        task.initialize(_model())


def test_differential_privacy_is_refused() -> None:
    with pytest.raises(errors.ConfigValueError, match="differential_privacy_config"):
        Bare.create_optimizer(cfg.OptimizationConfig(), dp_config=cfg.TaskConfig())


def test_single_input_is_features_and_labels_at_once() -> None:
    assert base_task.split_features_and_labels(5) == (5, 5)
    assert base_task.split_features_and_labels((1, 2)) == (1, 2)


def test_loss_that_is_no_scalar_is_refused(experiment, make_task) -> None:
    task = make_task(experiment())
    task.build_losses = lambda labels, model_outputs, aux_losses=None: model_outputs[:, 0]
    with pytest.raises(errors.ConfigValueError, match="wanted a scalar"):
        task.train_step(
            (tf.ones((4, 2)), tf.ones((4, 1))), task.build_model(), keras.optimizers.SGD()
        )


def test_task_without_a_loss_is_warned_of(caplog) -> None:
    class Without(Bare):
        pass

    Without(cfg.TaskConfig()).build_losses(None, None, [tf.constant(1.0)])
    assert not caplog.text
    Without(cfg.TaskConfig()).build_losses(None, None, [])
    assert "Without has no `build_losses`" in caplog.text
