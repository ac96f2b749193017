"""The four models as a task, once for official_lite and once for the Model Garden.

The classes have different bases and Keras versions; their bodies are the same.
"""

import argparse
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.steps import keras_models, models, worker

__all__ = ["call_trainer", "create_params", "create_task_class"]

# A number of steps that no benchmark reaches.
_NEVER = 10**9


def create_task_class(base: type, keras: Any) -> type:
    """Create a task class for the models.

    Args:
        base: `base_task.Task` of either framework.
        keras: The module `keras` or `tf_keras`.
    """

    class BenchmarkTask(base):
        """A task that trains one of the models on its data in memory."""

        def __init__(self, params: Any, model: models.Model) -> None:
            super().__init__(params)
            self._benchmark_model = model
            self._is_auc = model.metric == "auc"

        def build_model(self) -> Any:
            return keras_models.build(self._benchmark_model, keras)

        def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
            return keras_models.build_dataset(self._benchmark_model)

        def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
            if self._is_auc:
                labels = tf.cast(labels, tf.float32)[:, tf.newaxis]
                outputs = model_outputs[:, tf.newaxis]
                losses = keras.losses.binary_crossentropy(labels, outputs, from_logits=True)
            else:
                losses = keras.losses.sparse_categorical_crossentropy(
                    labels, model_outputs, from_logits=True
                )
            return tf.reduce_mean(losses)

        def build_metrics(self, training: bool = True) -> list[Any]:
            if self._is_auc:
                return [keras.metrics.AUC(from_logits=True, name="metric")]
            return [keras.metrics.SparseCategoricalAccuracy(name="metric")]

    return BenchmarkTask


def create_params(cfg: Any, optimization: Any, model: models.Model, interval: int) -> Any:
    """Return the default experiment with the model's optimizer and no checkpoint during a round.

    Args:
        cfg: The module `config_definitions` of either framework.
        optimization: The package `modeling.optimization` of the same framework.
        model: The model to train.
        interval: The number of steps between two reports.
    """
    if model.optimizer == "adagrad":
        optimizer = {
            "initial_accumulator_value": models.INITIAL_ACCUMULATOR,
            "epsilon": models.EPSILON,
        }
    else:
        optimizer = {
            "weight_decay_rate": models.WEIGHT_DECAY,
            "epsilon": models.EPSILON,
            # Both frameworks clip by default, but the other contestants do not.
            "gradient_clip_norm": 0.0,
        }
    return cfg.ExperimentConfig(
        task=cfg.TaskConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=_NEVER,
            steps_per_loop=interval,
            summary_interval=interval,
            checkpoint_interval=_NEVER,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": model.optimizer, model.optimizer: optimizer},
                    "learning_rate": {
                        "type": "constant",
                        "constant": {"learning_rate": models.LEARNING_RATE},
                    },
                }
            ),
        ),
    )


def call_trainer(
    args: argparse.Namespace, trainer: Any, prepare: Callable[[], object] = lambda: None
) -> None:
    """Call `trainer.train` in each round, without a runner, a controller or writers.

    Args:
        args: The arguments of the worker.
        trainer: A trainer of either framework.
        prepare: Called before the first step, but within a round, so that the other workers are
            idle.
    """
    is_prepared = False

    def train_steps(num_steps: int) -> dict[str, float]:
        nonlocal is_prepared
        if not is_prepared:
            prepare()
            is_prepared = True
        logs = trainer.train(tf.constant(num_steps))
        return {"loss": float(logs["training_loss"]), "metric": float(logs["metric"])}

    worker.run_rounds(args, train_steps)
