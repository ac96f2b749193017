"""`vision/resnet_cifar10`, with the recipe of https://arxiv.org/abs/1512.03385, section 4.2.

python train.py --experiment=vision/resnet_cifar10 --mode=train_and_eval --model_dir=/tmp/cifar10
"""

import dataclasses
from typing import ClassVar

from experiments.vision.classification import configs as classification
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["Cifar10Config", "Cifar10DataConfig", "Cifar10ResNetConfig", "resnet_cifar10"]

# The directory in which `keras.datasets.cifar10.load_data()` stores the files.
_KERAS_FILES = "~/.keras/datasets/cifar-10-batches-py-target/cifar-10-batches-py"

_TRAIN_STEPS = 64_000


@dataclasses.dataclass
class Cifar10ResNetConfig(hyperparams.Config):
    """A network of `6 * num_blocks + 2` layers: 3 is ResNet-20, 9 is ResNet-56.

    Attributes:
        num_blocks: The number of two-convolution blocks at each of the three image sizes.
        filters: The filters at the largest image size; each halving doubles them.
    """

    num_blocks: int = 3
    filters: int = 16

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "num_blocks", "filters")


@dataclasses.dataclass
class Cifar10DataConfig(cfg.DataConfig):
    """The 32×32 images of CIFAR-10, 50,000 for training and 10,000 for testing.

    They come from the files of its Python version, in the directory `input_path`, or from
    TensorFlow Datasets, if `tfds_name` and `tfds_split` are set and `input_path` is empty.

    Attributes:
        split: The files to read: `train` or `test`.
        max_shift: The maximum random shift of training images in each direction, in pixels.
        random_flip: Whether half of the training images are flipped.
    """

    # The files are not checked before the run begins, because the task's own error also explains
    # where to get them.
    NAMES_FILES: ClassVar[bool] = False

    split: str = "train"
    max_shift: int = 0
    random_flip: bool = False

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", ("train", "test"))
        field_checks.require_not_negative(self, "max_shift")


@dataclasses.dataclass
class Cifar10Config(classification.ClassificationConfig):
    """The config of CIFAR-10 classification."""

    top_k: int = 0
    losses: classification.LossesConfig = dataclasses.field(
        default_factory=lambda: classification.LossesConfig(l2_weight_decay=1e-4)
    )
    model: Cifar10ResNetConfig = dataclasses.field(default_factory=Cifar10ResNetConfig)
    train_data: Cifar10DataConfig = dataclasses.field(
        default_factory=lambda: Cifar10DataConfig(
            input_path=_KERAS_FILES,
            split="train",
            is_training=True,
            global_batch_size=128,
            max_shift=4,
            random_flip=True,
        )
    )
    validation_data: Cifar10DataConfig = dataclasses.field(
        default_factory=lambda: Cifar10DataConfig(
            input_path=_KERAS_FILES,
            split="test",
            is_training=False,
            global_batch_size=500,
            drop_remainder=False,
        )
    )


task_factory.register_task_cls(Cifar10Config, "experiments.vision.resnet_cifar10.task:Cifar10Task")


@exp_factory.register_config_factory("vision/resnet_cifar10")
def resnet_cifar10() -> cfg.ExperimentConfig:
    """Return ResNet-20, trained for 64,000 steps; the learning rate is twice divided by ten."""
    return cfg.ExperimentConfig(
        task=Cifar10Config(),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=200,
            summary_interval=1000,
            checkpoint_interval=2000,
            validation_interval=2000,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
                    "learning_rate": {
                        "type": "stepwise",
                        "stepwise": {
                            "boundary_ratios": [0.5, 0.75],
                            "values": [0.1, 0.01, 0.001],
                        },
                    },
                }
            ),
        ),
    )
