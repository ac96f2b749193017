"""Small runs of official_lite: a task composed of functions, and its controller."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite import orbit, telemetry
from official_lite.core import base_task, base_trainer, train_lib
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.run import runtime

__all__ = [
    "ToyTask",
    "build_controller",
    "build_mlp",
    "create_params",
    "open_run",
    "regression_batches",
    "train_further",
]

BATCH_SIZE = 32
_NEVER = 10**9


class ToyTask(base_task.Task):
    """A regression task that is composed of functions.

    Args:
        build_model: A function that returns the model.
        batches: `(features, labels)`, arrays whose first axis is the batch.
        metrics: A function that returns the metrics.
    """

    def __init__(
        self,
        build_model: Callable[[], keras.Model],
        batches: tuple[np.ndarray, np.ndarray],
        metrics: Callable[[], list[keras.metrics.Metric]] = list,
    ) -> None:
        super().__init__(cfg.TaskConfig())
        self._build_model = build_model
        self._batches = batches
        self._metrics = metrics

    def build_model(self) -> keras.Model:
        return self._build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._batches).repeat().prefetch(2)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return self._metrics()


def build_mlp(width: int = 32) -> keras.Model:
    """Build a model of two layers."""
    inputs = keras.Input((width,))
    x = keras.layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def regression_batches(width: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return batches for `build_mlp`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, BATCH_SIZE, width)).astype(np.float32)
    return x, x.mean(-1, keepdims=True)


def create_params(
    optimizer: str = "adamw", assignments: Sequence[str] = ()
) -> cfg.ExperimentConfig:
    """Return a config that saves no checkpoints and has no limit on the number of steps.

    Args:
        optimizer: The type of the optimizer.
        assignments: Other changes, as `path=value`.
    """
    params = cfg.ExperimentConfig(
        trainer=cfg.TrainerConfig(
            train_steps=_NEVER,
            checkpoint_interval=_NEVER,
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": optimizer},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
                }
            ),
        )
    )
    for assignment in assignments:
        hyperparams.override_params_dict(params, assignment, is_strict=True)
    return params


def build_controller(
    task: base_task.Task,
    params: cfg.ExperimentConfig,
    *,
    steps_per_loop: int,
    log_interval: int | None = None,
    hooks: Sequence[orbit.Hook] = (),
    writers: Sequence[telemetry.Writer] = (),
) -> orbit.Controller:
    """Build a trainer and a controller that have only the given hooks and writers."""
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    trainer = base_trainer.Trainer(params, task, task.build_model(), optimizer, evaluate=False)
    return orbit.Controller(
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=steps_per_loop,
        log_interval=log_interval,
        hooks=hooks,
        # If the list of writers were empty, the controller would add its default writers.
        writers=writers or [telemetry.LastRecordsWriter()],
    )


@contextlib.contextmanager
def open_run(
    task: base_task.Task,
    params: cfg.ExperimentConfig,
    directory: str | None = None,
    hooks: Sequence[orbit.Hook] = (),
) -> Iterator[train_lib.OrbitExperimentRunner]:
    """Open a run as `train.py` builds it, in a temporary directory.

    Args:
        task: The task.
        params: Its config.
        directory: The directory in which to create the run's directory.
        hooks: The hooks.
    """
    strategy = runtime.build_strategy(params.runtime)
    with tempfile.TemporaryDirectory(dir=directory) as model_dir, strategy.scope():
        runner = train_lib.OrbitExperimentRunner(
            strategy, task, "train", params, model_dir, hooks=hooks
        )
        with contextlib.closing(runner):
            yield runner


def train_further(controller: orbit.Controller, steps: int) -> None:
    """Train for a number of further steps, and save no checkpoint."""
    step = int(controller.global_step.numpy())
    controller.train(step + steps, checkpoint_at_completion=False)
