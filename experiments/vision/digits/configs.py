"""The two registered experiments on handwritten digits.

python train.py --experiment=vision/digits_cnn --mode=train_and_eval --model_dir=/tmp/digits
"""

import dataclasses

from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization

__all__ = ["DigitsConfig", "DigitsModelConfig", "digits_cnn", "digits_mlp"]


@dataclasses.dataclass
class DigitsModelConfig(hyperparams.Config):
    """A stack of convolutions, then of dense layers, with dropout before the last one.

    Attributes:
        filters: The filters of each convolution; each convolution but the first halves the image.
        units: The units of each hidden dense layer.
        dropout_rate: The dropout rate before the last layer.
    """

    filters: tuple[int, ...] = ()
    units: tuple[int, ...] = ()
    dropout_rate: float = 0.0


@dataclasses.dataclass
class DigitsDataConfig(cfg.DataConfig):
    """The 1,797 digits of scikit-learn.

    Attributes:
        split: `train` (1,437 digits) or `validation` (360), always the same ones.
        max_shift: The maximum random shift of training images in each direction, in pixels.
    """

    split: str = "train"
    max_shift: int = 0


@dataclasses.dataclass
class DigitsConfig(cfg.TaskConfig):
    """The config of digit classification."""

    model: DigitsModelConfig = dataclasses.field(default_factory=DigitsModelConfig)
    train_data: DigitsDataConfig = dataclasses.field(
        default_factory=lambda: DigitsDataConfig(
            split="train", is_training=True, global_batch_size=64, max_shift=1, seed=1
        )
    )
    validation_data: DigitsDataConfig = dataclasses.field(
        default_factory=lambda: DigitsDataConfig(
            split="validation", is_training=False, global_batch_size=120, drop_remainder=False
        )
    )


task_factory.register_task_cls(DigitsConfig, "experiments.vision.digits.task:DigitsTask")


@exp_factory.register_config_factory("vision/digits_cnn")
def digits_cnn() -> cfg.ExperimentConfig:
    """Return a small convolutional network with a validation accuracy of 0.98 or better."""
    return _experiment(
        DigitsModelConfig(filters=(32, 64), units=(128,), dropout_rate=0.3), train_steps=1500
    )


@exp_factory.register_config_factory("vision/digits_mlp")
def digits_mlp() -> cfg.ExperimentConfig:
    """Return a network of two dense layers that trains in a few seconds, for experimenting."""
    params = _experiment(DigitsModelConfig(units=(64, 64)), train_steps=600)
    # Shifted images do not improve a network of dense layers.
    params.override({"task": {"train_data": {"max_shift": 0}}})
    return params


def _experiment(model: DigitsModelConfig, train_steps: int) -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=DigitsConfig(model=model),
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=500,
            validation_interval=300,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 3e-3, "decay_steps": train_steps},
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 50}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )
