"""`sequence/mnist1d`: a residual network on the curves of MNIST-1D.

python -m experiments.sequence.mnist1d.write_data /tmp/mnist1d_data
python train.py --experiment=sequence/mnist1d --mode=train_and_eval --model_dir=/tmp/mnist1d \
  --set=task.input_path=/tmp/mnist1d_data
"""

import dataclasses

from experiments.vision.classification import configs as classification
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["Mnist1dConfig", "Mnist1dDataConfig", "Mnist1dModelConfig", "mnist1d"]

# This number of steps makes 20 epochs of 4,000 curves.
_TRAIN_STEPS = 800


@dataclasses.dataclass
class Mnist1dModelConfig(hyperparams.Config):
    """A residual network of convolutions over the points of a curve.

    Attributes:
        filters: The filters of each pair of convolutions; each pair but the first halves the number
            of points.
        kernel_size: The number of neighboring points that a convolution reads.
        dropout_rate: The dropout rate before the last layer.
    """

    filters: tuple[int, ...] = (32, 64, 128)
    kernel_size: int = 5
    dropout_rate: float = 0.2

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "kernel_size")


@dataclasses.dataclass
class Mnist1dDataConfig(cfg.DataConfig):
    """The curves of MNIST-1D: 4,000 for training and 1,000 for testing.

    The random changes are those with which the curves were generated. They apply in training only.

    Attributes:
        split: `train` or `test`.
        max_shift: The maximum circular shift of a curve, in points.
        max_scale: The maximum relative change of the height of a curve.
        max_shear: The maximum height of a straight line that is added to a curve.
        noise: The standard deviation of the noise that is added to each point.
    """

    split: str = "train"
    max_shift: int = 0
    max_scale: float = 0.0
    max_shear: float = 0.0
    noise: float = 0.0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", ("train", "test"))
        field_checks.require_not_negative(self, "max_shift", "max_scale", "max_shear", "noise")


@dataclasses.dataclass
class Mnist1dConfig(classification.ClassificationConfig):
    """The config of MNIST-1D classification.

    Attributes:
        input_path: The directory with `mnist1d.npz`.
    """

    top_k: int = 0
    input_path: str = ""
    model: Mnist1dModelConfig = dataclasses.field(default_factory=Mnist1dModelConfig)
    train_data: Mnist1dDataConfig = dataclasses.field(
        default_factory=lambda: Mnist1dDataConfig(
            split="train",
            is_training=True,
            global_batch_size=100,
            max_shift=3,
            max_scale=0.1,
            max_shear=0.5,
            noise=0.05,
        )
    )
    validation_data: Mnist1dDataConfig = dataclasses.field(
        default_factory=lambda: Mnist1dDataConfig(
            split="test", is_training=False, global_batch_size=500, drop_remainder=False
        )
    )


task_factory.register_task_cls(Mnist1dConfig, "experiments.sequence.mnist1d.task:Mnist1dTask")


@exp_factory.register_config_factory("sequence/mnist1d")
def mnist1d() -> cfg.ExperimentConfig:
    """Return a residual network with a test accuracy of 0.98 or better in 800 steps."""
    return cfg.ExperimentConfig(
        task=Mnist1dConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=200,
            summary_interval=200,
            checkpoint_interval=400,
            validation_interval=200,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 3e-3, "decay_steps": _TRAIN_STEPS},
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 100}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="graph"),
    )
