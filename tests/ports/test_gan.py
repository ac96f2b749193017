"""A GAN trainer whose second model, second optimizer and noise are only attributes."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite import orbit
from official_lite.common import errors
from official_lite.core import base_task, base_trainer, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.data import arrays
from official_lite.modeling.optimization import optimizer_factory

_POINTS = np.random.default_rng(0).normal([2.0, -1.0], 0.5, [64, 2]).astype(np.float32)
_loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")


@dataclasses.dataclass
class GanConfig(cfg.TaskConfig):
    pass


class GanTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dense(2)])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return arrays.from_arrays(
            _POINTS,
            params.global_batch_size,
            shuffle=True,
            repeat=True,
            input_context=input_context,
        )


class GanTrainer(base_trainer.Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discriminator = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dropout(0.3, seed=5),
                keras.layers.Dense(1),
            ]
        )
        self.discriminator_optimizer = optimizer_factory.prepare_optimizer(
            keras.optimizers.Adam(0.01), self.discriminator
        )
        self.noise = keras.random.SeedGenerator(11)

    def train_step(self, iterator: Any) -> None:
        self.strategy.run(self._replica_step, args=(next(iterator),))

    def _replica_step(self, real: tf.Tensor) -> None:
        size = self.config.task.train_data.global_batch_size
        noise = keras.random.normal([real.shape[0] or size, 3], seed=self.noise)
        with tf.GradientTape(persistent=True) as tape:
            fake = self.model(noise, training=True)
            on_fake = self.discriminator(fake, training=True)
            on_real = self.discriminator(real, training=True)
            generated = _loss(tf.ones_like(on_fake), on_fake) / size
            judged = (
                _loss(tf.ones_like(on_real), on_real) + _loss(tf.zeros_like(on_fake), on_fake)
            ) / size
        for loss, model, optimizer in (
            (generated, self.model, self.optimizer),
            (judged, self.discriminator, self.discriminator_optimizer),
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        self.train_loss.update_state(judged)
        self.global_step.assign_add(1)


class _Interrupt(orbit.Hook):
    every_n_steps = 1

    def after_step(self) -> None:
        if self.controller.step == 7:
            raise KeyboardInterrupt


def _run(
    model_dir: Any,
    strategy: tf.distribute.Strategy | None = None,
    trainer_cls: type[base_trainer.Trainer] = GanTrainer,
    hooks: Any = (),
    steps: int = 12,
) -> base_trainer.Trainer:
    data = cfg.DataConfig(global_batch_size=8, is_training=True)
    params = cfg.ExperimentConfig(
        task=GanConfig(train_data=data, validation_data=data),
        trainer=cfg.TrainerConfig(
            train_steps=steps,
            steps_per_loop=4,
            checkpoint_interval=4,
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", seed=3),
    )
    strategy = strategy or tf.distribute.get_strategy()
    keras.utils.set_random_seed(3)
    with strategy.scope():
        task = GanTask(params.task)
        optimizer = task.create_optimizer(params.trainer.optimizer_config)
        trainer = trainer_cls(params, task, task.build_model(), optimizer, evaluate=False)
    train_lib.run_experiment(
        strategy, task, "train", params, str(model_dir), trainer=trainer, hooks=hooks
    )
    return trainer


def _state(trainer: Any) -> list[Any]:
    parts = (
        trainer.model,
        trainer.optimizer,
        trainer.discriminator,
        trainer.discriminator_optimizer,
    )
    variables = [v for part in parts for v in part.variables]
    return [np.asarray(v) for v in [*variables, trainer.noise.state, trainer.global_step]]


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_resumed_gan_training_ends_in_the_same_state_as_an_uninterrupted_one(
    replicas, tmp_path, request
) -> None:
    strategy = request.getfixturevalue("two_replicas") if replicas == 2 else None
    undisturbed = _run(tmp_path / "undisturbed", strategy)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "resumed", strategy, hooks=[_Interrupt()])
    resumed = _run(tmp_path / "resumed", strategy)
    for expected, actual in zip(_state(undisturbed), _state(resumed), strict=True):
        np.testing.assert_array_equal(expected, actual)


def test_unbuilt_discriminator_optimizer_raises_before_the_first_step(tmp_path) -> None:
    class Unbuilt(GanTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.discriminator_optimizer = keras.optimizers.Adam(0.01)

    with pytest.raises(
        errors.ConfigValueError,
        match=r"Unbuilt.discriminator_optimizer.*prepare_optimizer\(",
    ):
        _run(tmp_path, trainer_cls=Unbuilt)
    assert not list(tmp_path.glob("ckpt*"))


def test_restoring_a_gan_checkpoint_without_the_discriminator_raises(tmp_path) -> None:
    class OneModel(base_trainer.Trainer):
        def train_step(self, iterator: Any) -> None:
            next(iterator)
            self.strategy.run(lambda: self.global_step.assign_add(1))

    _run(tmp_path, trainer_cls=OneModel, steps=4)
    before = sorted(path.name for path in tmp_path.glob("ckpt*"))
    with pytest.raises(errors.CheckpointError, match="trainer_attributes/discriminator"):
        _run(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("ckpt*")) == before
