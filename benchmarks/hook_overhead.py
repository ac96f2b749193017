"""A benchmark of hooks: no hook, one at every step, and one at every 100 steps.

python -m benchmarks.hook_overhead
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import app, flags, logging

from benchmarks import paired
from official_lite import orbit, telemetry
from official_lite.core import base_task, base_trainer
from official_lite.core import config_definitions as cfg

ROUNDS = flags.DEFINE_integer("rounds", 15, "Counted rounds of each variant.")

NUM_FEATURES = NUM_CLASSES = 10
# The layer width, the batch size and the number of steps in a round.
MODELS = ((32, 32, 2000), (32, 64, 2000), (512, 32, 500), (512, 64, 500))


class MlpTask(base_task.Task):
    """A task with three layers on random data in memory."""

    def __init__(self, params: cfg.TaskConfig, width: int, batch_size: int) -> None:
        super().__init__(params)
        self._width, self._batch_size = width, batch_size

    def build_model(self) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((self._width,)),
                keras.layers.Dense(self._width, activation="relu"),
                keras.layers.Dense(self._width, activation="relu"),
                keras.layers.Dense(NUM_CLASSES),
            ]
        )

    def build_inputs(
        self, params: cfg.DataConfig, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        x = tf.random.stateless_normal((self._batch_size * 8, self._width), (0, 1))
        y = tf.random.stateless_uniform((self._batch_size * 8,), (0, 2), 0, NUM_CLASSES, tf.int32)
        return (
            tf.data.Dataset.from_tensor_slices((x, y)).batch(self._batch_size).repeat().prefetch(2)
        )

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[tf.Tensor] | None = None
    ) -> tf.Tensor:
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, model_outputs, from_logits=True
        )
        return tf.reduce_mean(losses)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.SparseCategoricalAccuracy("accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3"),
        ]


class EveryStep(orbit.Hook):
    """A hook that reads the current step, as most hooks do."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self.seen = 0

    def after_step(self) -> None:
        self.seen += self.iter


def build_run(
    width: int, batch_size: int, steps: int, hooks: Sequence[orbit.Hook]
) -> Callable[[], None]:
    """Return a function that trains `steps` further steps."""
    params = cfg.ExperimentConfig(
        trainer=cfg.TrainerConfig(
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
                }
            )
        )
    )
    task = MlpTask(params.task, width, batch_size)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    trainer = base_trainer.Trainer(params, task, task.build_model(), optimizer, evaluate=False)
    controller = orbit.Controller(
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=steps,
        hooks=hooks,
        writers=[telemetry.LastRecordsWriter()],
    )
    return lambda: controller.train(int(trainer.global_step.numpy()) + steps)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.ERROR)
    for width, batch_size, steps in MODELS:
        hooks = {"no hook": [], "every step": [EveryStep(1)], "every 100 steps": [EveryStep(100)]}
        variants = {
            name: build_run(width, batch_size, steps, listed) for name, listed in hooks.items()
        }
        seconds = paired.time_in_turn(variants, ROUNDS.value)
        print(f"mlp of width {width}, batch {batch_size}")
        for name, times in seconds.items():
            microseconds = 1e6 * statistics.median(times) / steps
            ratio = paired.ratio(seconds, name, "no hook")
            print(f"  {name:16} {microseconds:8.1f} µs/step   {ratio:5.3f} x no hook")


if __name__ == "__main__":
    app.run(main)
