"""A regression with three splits, whose best checkpoint is not the latest one."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_lite.core import base_task, exp_factory, input_reader, task_factory
from official_lite.core import config_definitions as cfg

# No number is a multiple of the batch size, so each evaluation ends with a partial batch.
NUM_EXAMPLES = {"train": 16, "validation": 13, "test": 21}


@dataclasses.dataclass
class SplitDataConfig(cfg.DataConfig):
    split: str = "train"


def _data(split: str) -> SplitDataConfig:
    return SplitDataConfig(
        split=split, global_batch_size=8, is_training=split == "train", drop_remainder=False
    )


@dataclasses.dataclass
class SplitsConfig(cfg.TaskConfig):
    train_data: SplitDataConfig = dataclasses.field(default_factory=lambda: _data("train"))
    validation_data: SplitDataConfig = dataclasses.field(
        default_factory=lambda: _data("validation")
    )


def arrays_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels; those of `validation` are so noisy that its loss is higher."""
    numbers = np.random.default_rng(list(NUM_EXAMPLES).index(split))
    features = numbers.normal(size=(NUM_EXAMPLES[split], 2)).astype(np.float32)
    noise = numbers.normal(size=(NUM_EXAMPLES[split], 1)) * (9.0 if split == "validation" else 0.1)
    return features, (features @ [[1.0], [2.0]] + noise).astype(np.float32)


@task_factory.register_task_cls(SplitsConfig)
class SplitsTask(base_task.Task):
    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        return input_reader.from_arrays(arrays_of(params.split), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.reduce_mean(tf.square(model_outputs - labels))

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="mae")]


@exp_factory.register_config_factory("tests/splits")
def splits() -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=SplitsConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=8,
            steps_per_loop=2,
            checkpoint_interval=4,
            validation_interval=2,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="validation_loss",
            optimizer_config=cfg.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd"},
                    # At this rate, the weights diverge after the first evaluation.
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 1.5}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="off", execution="graph"),
    )
