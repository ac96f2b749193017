"""`vision/resnet_imagenet`, with the recipe of the Model Garden.

python train.py --experiment=vision/resnet_imagenet --mode=train_and_eval --model_dir=/tmp/run \
    --set=task.train_data.input_path='imagenet/train*' \
    --set=task.validation_data.input_path='imagenet/valid*'
"""

import dataclasses

from experiments.vision.classification import configs as classification
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "ImageNetConfig",
    "ImageNetDataConfig",
    "ImageNetResNetConfig",
    "RandAugmentConfig",
    "resnet_imagenet",
]

_NUM_TRAIN_EXAMPLES = 1_281_167

_BATCH_SIZE = 4096
# The learning rate is proportional to the batch size: 0.1 for a batch of 256 images.
_LEARNING_RATE = 0.1 * _BATCH_SIZE / 256


@dataclasses.dataclass
class RandAugmentConfig(hyperparams.Config):
    """The RandAugment layer of Keras, in the model; it draws its operations once per batch.

    Attributes:
        num_ops: The number of consecutive operations; 0 leaves images unchanged.
        factor: The strength of the operations, from 0 to 1.
    """

    num_ops: int = 0
    factor: float = 0.5

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "num_ops")
        if not 0 <= self.factor <= 1:
            raise errors.ConfigValueError(f"`factor` is {self.factor}; expected 0 to 1.")


@dataclasses.dataclass
class ImageNetResNetConfig(hyperparams.Config):
    """A residual network of keras-hub; by default ResNet-50.

    ResNet-18 has basic blocks, 2, 2, 2 and 2 of them; ResNet-101 has 3, 4, 23 and 3 bottlenecks.

    Attributes:
        input_size: The height and width of the images.
        num_classes: The number of classes. Labels in the Model Garden's files start at 1.
        block: `bottleneck_block` or `basic_block`.
        num_blocks: The number of blocks at each image size.
        rand_augment: Random changes of training images after crop and flip.
    """

    input_size: tuple[int, int] = (224, 224)
    num_classes: int = 1001
    block: str = "bottleneck_block"
    num_blocks: tuple[int, ...] = (3, 4, 6, 3)
    rand_augment: RandAugmentConfig = dataclasses.field(default_factory=RandAugmentConfig)

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "num_classes")
        field_checks.require_one_of(self, "block", ("bottleneck_block", "basic_block"))


@dataclasses.dataclass
class ImageNetDataConfig(cfg.DataConfig):
    """JPEG images with a label, in TFRecord files or from TensorFlow Datasets.

    Attributes:
        image_field_key: The feature that contains the image.
        label_field_key: The feature that contains the class.
        crop_area_range: The smallest and the largest fraction of an image that a training crop
            covers.
        aug_rand_hflip: Whether half of the training images are flipped.
        center_crop_fraction: The side of the center square used in evaluation, as a fraction of the
            shorter side of the image.
    """

    tfds_skip_decoding_feature: str = "image"
    image_field_key: str = "image/encoded"
    label_field_key: str = "image/class/label"
    crop_area_range: tuple[float, float] = (0.08, 1.0)
    aug_rand_hflip: bool = True
    center_crop_fraction: float = 0.875

    def validate_fields(self) -> None:
        super().validate_fields()
        smallest, largest = self.crop_area_range
        if not 0 < smallest <= largest <= 1:
            raise errors.ConfigValueError(
                f"`crop_area_range` is {self.crop_area_range}; expected two ascending "
                "numbers, above 0 and up to 1."
            )
        if not 0 < self.center_crop_fraction <= 1:
            raise errors.ConfigValueError(
                f"`center_crop_fraction` is {self.center_crop_fraction}; expected a number above 0 "
                "and up to 1."
            )


@dataclasses.dataclass
class ImageNetConfig(classification.ClassificationConfig):
    """The config of ImageNet classification."""

    losses: classification.LossesConfig = dataclasses.field(
        default_factory=lambda: classification.LossesConfig(l2_weight_decay=1e-4)
    )
    model: ImageNetResNetConfig = dataclasses.field(default_factory=ImageNetResNetConfig)
    train_data: ImageNetDataConfig = dataclasses.field(
        default_factory=lambda: ImageNetDataConfig(
            input_path="imagenet-2012-tfrecord/train*",
            is_training=True,
            global_batch_size=_BATCH_SIZE,
            shuffle_buffer_size=10_000,
            cycle_length=10,
            num_examples=_NUM_TRAIN_EXAMPLES,
        )
    )
    validation_data: ImageNetDataConfig = dataclasses.field(
        default_factory=lambda: ImageNetDataConfig(
            input_path="imagenet-2012-tfrecord/valid*",
            is_training=False,
            global_batch_size=_BATCH_SIZE,
            drop_remainder=False,
        )
    )


task_factory.register_task_cls(
    ImageNetConfig, "experiments.vision.resnet_imagenet.task:ImageNetTask"
)


@exp_factory.register_config_factory("vision/resnet_imagenet")
def resnet_imagenet() -> cfg.ExperimentConfig:
    """Return ResNet-50 with 90 epochs; the learning rate is divided by ten after 30, 60 and 80."""
    return cfg.ExperimentConfig(
        task=ImageNetConfig(),
        trainer=cfg.TrainerConfig(
            train_epochs=90,
            validate_every_epochs=1,
            checkpoint_every_epochs=1,
            steps_per_loop=100,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
                    "learning_rate": {
                        "type": "stepwise",
                        "stepwise": {
                            "boundary_ratios": [30 / 90, 60 / 90, 80 / 90],
                            "values": [_LEARNING_RATE * 0.1**n for n in range(4)],
                        },
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_ratio": 5 / 90}},
                }
            ),
        ),
    )
