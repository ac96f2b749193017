"""Tests of `trainer.overfit_batches` with the experiment runner."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import base_task, base_trainer, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from tests import rounding

INPUTS = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
# The labels are random, so that nothing learned from one example helps with another.
LABELS = np.random.default_rng(1).integers(0, 4, 64).astype(np.int32)


class _Task(base_task.Task):
    def build_model(self):
        layers = [keras.Input((6,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
        return keras.Sequential(layers)

    def build_inputs(self, params, input_context=None):
        return arrays.from_arrays(
            (INPUTS, LABELS),
            params.global_batch_size,
            shuffle=bool(params.is_training),
            repeat=bool(params.is_training),
            input_context=input_context,
        )

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        )

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _params(**trainer):
    optimizer = {
        "optimizer": {"type": "adam"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.02}},
    }
    return cfg.ExperimentConfig(
        task=cfg.TaskConfig(
            train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=16, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            overfit_batches=2,
            checkpoint_interval=5,
            validation_interval=1000,
            steps_per_loop=20,
            optimizer_config=cfg.OptimizationConfig(optimizer),
        ).replace(**trainer),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )


def _run(params, model_dir, mode="train_and_eval"):
    keras.utils.set_random_seed(1)
    task = _Task(params.task)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    runner = train_lib.OrbitExperimentRunner(strategy, task, mode, params, str(model_dir))
    with strategy.scope():
        logs = runner.run_mode(runner.train, runner.evaluate)
    runner.close()
    return runner.trainer, {name: float(value) for name, value in logs.items()}


def _labels(dataset, count=None):
    batches = dataset if count is None else dataset.take(count)
    return [labels.numpy().tolist() for _, labels in batches]


def test_overfit_batches_are_used_for_training_and_evaluation_and_are_learned(tmp_path, caplog):
    params = _params(train_steps=120, validation_steps=3, grad_accum_steps=2)
    trainer, logs = _run(params, tmp_path)
    assert logs["accuracy"] == 1.0
    once = _labels(trainer.eval_dataset)
    # Two batches, each split into two micro-batches.
    assert [len(batch) for batch in once] == [4] * 4
    assert _labels(trainer.build_train_dataset(), 8) == 2 * once
    # `validation_steps` does not apply to the overfitted batches.
    assert "ended after" not in caplog.text
    _, evaluated = _run(params, tmp_path, mode="eval")
    # The loss is a mean of 16 examples; the logits are sums over 32 units and are below 100.
    rounding.assert_close(
        evaluated["validation_loss"], logs["validation_loss"], roundings=16 + 32, scale=100.0
    )
    _, others = _run(params.replace(trainer={"overfit_batches": 0}), tmp_path, mode="eval")
    assert others["accuracy"] < 0.9


def test_resumed_overfitting_reproduces_the_weights_of_an_uninterrupted_run(tmp_path):
    ends = []
    for name, lengths in {"unbroken": [12], "broken": [5, 12]}.items():
        for steps in lengths:
            params = _params(train_steps=steps, overfit_batches=3)
            trainer, _ = _run(params, tmp_path / name, mode="train")
        ends.append([weight.numpy() for weight in trainer.model.weights])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def test_overfit_batches_with_a_dataset_passed_to_the_trainer_raises():
    params = _params(train_steps=1)
    task = _Task(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config)
    given = task.build_inputs(params.task.train_data)
    with pytest.raises(errors.ConfigValueError, match="was passed to the trainer"):
        base_trainer.Trainer(params, task, task.build_model(), optimizer, train_dataset=given)
