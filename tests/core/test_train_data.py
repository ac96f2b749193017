import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.core import base_task, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays, position
from tests import rounding

IMAGES = np.random.default_rng(0).random((100, 6, 6, 1), np.float32)
LABELS = np.arange(100, dtype=np.int32) % 4


class _Task(base_task.Task):
    """A task with random layers, random data augmentation and moving statistics."""

    def build_model(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input(IMAGES.shape[1:]),
                layers.Conv2D(4, 3),
                layers.BatchNormalization(),
                layers.SpatialDropout2D(0.2),
                layers.Flatten(),
                layers.Dropout(0.3),
                layers.Dense(4),
            ]
        )

    def build_inputs(self, params, input_context=None):
        batches = arrays.from_arrays(
            (IMAGES, LABELS),
            params.global_batch_size,
            shuffle=True,
            repeat=True,
            input_context=input_context,
        )

        def flip(number, batch):
            images, labels = batch
            seed = tf.stack([number, 1])
            return tf.image.stateless_random_flip_left_right(images, seed), labels

        return position.enumerate_batches(batches, input_context).map(flip)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model_outputs, from_logits=True
        )
        return tf.reduce_mean(losses)


class _PlainTask(_Task):
    """A task whose results do not depend on how a batch is divided among replicas."""

    def build_model(self):
        layers = keras.layers
        return keras.Sequential([keras.Input((6, 6, 1)), layers.Flatten(), layers.Dense(4)])

    def build_inputs(self, params, input_context=None):
        return arrays.from_arrays(
            (IMAGES, LABELS),
            params.global_batch_size,
            shuffle=True,
            repeat=True,
            input_context=input_context,
        )


def _params(**runtime):
    params = cfg.ExperimentConfig(
        task=cfg.TaskConfig(train_data=cfg.DataConfig(global_batch_size=12, is_training=True)),
        trainer=cfg.TrainerConfig(
            steps_per_loop=7,
            checkpoint_interval=5,
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw"},
                    "ema": {"average_decay": 0.9},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                }
            ),
        ),
    )
    params.runtime.override({"distribution_strategy": "off", **runtime})
    return params


def _train(strategy, params, steps, model_dir, task_cls=_Task):
    keras.utils.set_random_seed(1)
    params = params.replace(trainer=params.trainer.replace(train_steps=steps))
    runner = train_lib.OrbitExperimentRunner(
        strategy, task_cls(params.task), "train", params, str(model_dir)
    )
    runner.run()
    variables = [*runner.trainer.model.variables, *runner.trainer.optimizer.variables]
    return [
        copy.numpy()
        for variable in variables
        for copy in strategy.experimental_local_results(variable.value)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("execution", "replicas", "micro_batches"),
    [("xla", 1, 1), ("xla_loop", 1, 1), ("graph", 1, 3), ("graph", 2, 1), ("xla", 2, 1)],
)
def test_resumed_run_equals_an_uninterrupted_run_bit_for_bit(
    execution, replicas, micro_batches, tmp_path, two_replicas
):
    strategy = two_replicas if replicas == 2 else tf.distribute.OneDeviceStrategy("CPU:0")
    params = _params(execution=execution)
    params.trainer.grad_accum_steps = micro_batches
    unbroken = _train(strategy, params, 20, tmp_path / "unbroken")
    _train(strategy, params, 8, tmp_path / "broken")
    resumed = _train(strategy, params, 20, tmp_path / "broken")
    for expected, got in zip(unbroken, resumed, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_training_resumed_on_more_replicas_reads_the_same_examples_and_logs_a_warning(
    tmp_path, two_replicas, caplog
):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    params = _params(execution="graph")
    unbroken = _train(strategy, params, 20, tmp_path / "unbroken", _PlainTask)
    _train(strategy, params, 8, tmp_path / "broken", _PlainTask)
    resumed = _train(two_replicas, params, 20, tmp_path / "broken", _PlainTask)
    assert "will not be bit for bit the same: replicas 1 → 2." in caplog.text
    for expected, got in zip(unbroken[:2], resumed[0:4:2], strict=True):
        # The resumed run makes 12 steps with 12 examples each.
        rounding.assert_close(got, expected, roundings=12 * 12)


def test_batches_skipped_by_recovery_stay_skipped_after_a_restart(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    task = _Task(_params().task)

    def build():
        return train_lib.OrbitExperimentRunner(strategy, task, "train", _params(), str(tmp_path))

    def next_labels(runner):
        return next(iter(runner.trainer.train_dataset))[1].numpy().tolist()

    runner = build()
    batches = [b[1].numpy().tolist() for b in runner.trainer.train_dataset.take(4)]
    runner.trainer.skip_batches(3)
    assert next_labels(runner) == batches[3]
    runner.controller.save_checkpoint()
    assert next_labels(build()) == batches[3]
