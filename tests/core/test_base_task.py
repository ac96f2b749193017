import json
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, train_lib
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


def test_task_without_a_loss_is_warned_of(monkeypatch) -> None:
    said = []
    monkeypatch.setattr(
        base_task.logging, "log_first_n", lambda level, text, n, name: said.append(name)
    )
    Bare(cfg.TaskConfig()).build_losses(None, None, [tf.constant(1.0)])
    assert said == []
    Bare(cfg.TaskConfig()).build_losses(None, None, [])
    assert said == ["Bare"]
