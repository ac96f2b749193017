"""A training run of a few seconds on generated data, to check that the installation works.

It trains, evaluates and saves, and is then resumed from its checkpoint, as after an interruption.
"""

import contextlib
import dataclasses
import io
import tempfile
import time
from typing import Any

import keras
import tensorflow as tf

from official_lite import pipeline
from official_lite.core import base_task
from official_lite.core import config_definitions as cfg
from official_lite.modeling.hyperparams import base_config
from official_lite.run import run_reading

_NUM_EXAMPLES = 256
_FIRST_STEPS = 100
_ALL_STEPS = 150


@dataclasses.dataclass
class LineConfig(cfg.TaskConfig):
    """Config of a regression task: points on a line."""

    slope: float = 3.0


@base_config.bind(LineConfig)
class LineTask(base_task.Task):
    """A task that learns the slope of a line."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="line")])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        points = tf.random.stateless_normal((_NUM_EXAMPLES, 2), (1, 2))
        heights = self.task_config.slope * points[:, :1]
        batch_size = params.global_batch_size
        if input_context:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
        return tf.data.Dataset.from_tensor_slices((points, heights)).batch(batch_size)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(tf.cast(model_outputs, tf.float32) - labels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """The result of the smoke run.

    Attributes:
        steps: The final step.
        resumed_from: The step from which the second start resumed.
        seconds: Duration in seconds, including compilation.
        first_loss: Loss of the first evaluation.
        last_loss: Loss of the last evaluation.
    """

    steps: int
    resumed_from: int
    seconds: float
    first_loss: float
    last_loss: float

    @property
    def is_good(self) -> bool:
        """Whether the model has learned, and training resumed where it had stopped."""
        return self.last_loss < self.first_loss / 10 and self.resumed_from == _FIRST_STEPS


def run() -> SmokeResult:
    """Run the training in a temporary directory on one device; errors propagate."""
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as model_dir,
        # Hide the summary table that each run prints at its end.
        contextlib.redirect_stderr(io.StringIO()),
    ):
        pipeline.RunPipeline(experiment(_FIRST_STEPS), "train_and_eval", model_dir).run()
        first = run_reading.read_run(model_dir)
        pipeline.RunPipeline(experiment(_ALL_STEPS), "train_and_eval", model_dir).run()
        last = run_reading.read_run(model_dir)
    losses = last.series["validation"]["validation_loss"].values
    return SmokeResult(
        steps=last.step,
        resumed_from=_resumed_from(first, last),
        seconds=time.monotonic() - start,
        first_loss=losses[0],
        last_loss=losses[-1],
    )


def _resumed_from(first: run_reading.Run, last: run_reading.Run) -> int:
    """Return the step from which the second run resumed: the last that it did not execute again."""
    before, after = (each.series["train"]["training_loss"] for each in (first, last))
    times = zip(before.steps, before.wall_times, after.wall_times, strict=False)
    return max((step for step, one, other in times if one == other), default=0)


def experiment(train_steps: int) -> cfg.ExperimentConfig:
    """Build the config of a run with `train_steps` steps."""
    params = cfg.ExperimentConfig(
        task=LineConfig(
            train_data=cfg.DataConfig(global_batch_size=32, is_training=True),
            validation_data=cfg.DataConfig(global_batch_size=32, is_training=False),
        ),
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=10,
            checkpoint_interval=50,
            validation_interval=10,
            writers=["jsonl"],
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.05}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )
    params.lock()
    return params
