"""The two registered experiments on Fashion-MNIST.

python train.py --experiment=vision/fashion_mnist --mode=train_and_eval --model_dir=/tmp/fashion \
    --set=task.input_path=/data/fashion-mnist
"""

import dataclasses

from experiments.vision.classification import configs as classification
from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "DEBIAN_DIRECTORY",
    "FashionMnistConfig",
    "FashionMnistDataConfig",
    "FashionMnistModelConfig",
    "fashion_mnist",
    "fashion_mnist_best",
]

# The directory in which Debian's package `dataset-fashion-mnist` installs the files.
DEBIAN_DIRECTORY = "/usr/share/datasets/fashion-mnist"

_NUM_TRAIN_EXAMPLES = 60_000


@dataclasses.dataclass
class FashionMnistModelConfig(hyperparams.Config):
    """A residual network whose blocks work at several image sizes, each half of the one before.

    Attributes:
        filters: The filters at each image size. The first size is 28×28 divided by `stem_strides`.
        num_blocks: The number of two-convolution blocks at each image size.
        stem_strides: The strides of the first convolution. With 1, the first blocks see all pixels,
            which is more accurate and takes longer.
        dropout_rate: The dropout rate before the last layer.
    """

    filters: tuple[int, ...] = (16, 32, 64)
    num_blocks: int = 2
    stem_strides: int = 2
    dropout_rate: float = 0.0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "num_blocks", "stem_strides")
        if not self.filters or min(self.filters) < 1:
            raise errors.ConfigValueError(
                f"`filters` is {self.filters}; expected at least one number, all of them positive."
            )
        if not 0 <= self.dropout_rate < 1:
            raise errors.ConfigValueError(
                f"`dropout_rate` is {self.dropout_rate}; expected 0 or more, and less than 1."
            )


@dataclasses.dataclass
class FashionMnistDataConfig(cfg.DataConfig):
    """The images of Fashion-MNIST, from `FashionMnistConfig.input_path`.

    Attributes:
        max_shift: The maximum random shift of training images in each direction, in pixels.
        random_flip: Whether half of the training images are flipped.
        erase_size: The side of the square that is erased at a random place of each training image,
            in pixels; 0 erases nothing.
    """

    max_shift: int = 0
    random_flip: bool = False
    erase_size: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "max_shift", "erase_size")


@dataclasses.dataclass
class FashionMnistConfig(classification.ClassificationConfig):
    """The config of Fashion-MNIST classification.

    Attributes:
        input_path: The directory of the four original files, `train-images-idx3-ubyte.gz` and so
            on.
        num_held_out: The number of training images, the last ones, that are held out and evaluated
            on, to compare settings without looking at the test images. With 0, all of them are used
            for training, and the test images are evaluated. An epoch always has the steps of all
            60,000 images.
    """

    input_path: str = DEBIAN_DIRECTORY
    num_held_out: int = 0
    top_k: int = 0
    losses: classification.LossesConfig = dataclasses.field(
        default_factory=lambda: classification.LossesConfig(
            label_smoothing=0.1, l2_weight_decay=5e-4
        )
    )
    model: FashionMnistModelConfig = dataclasses.field(default_factory=FashionMnistModelConfig)
    train_data: FashionMnistDataConfig = dataclasses.field(
        default_factory=lambda: FashionMnistDataConfig(
            is_training=True,
            global_batch_size=128,
            num_examples=_NUM_TRAIN_EXAMPLES,
            random_flip=True,
        )
    )
    validation_data: FashionMnistDataConfig = dataclasses.field(
        default_factory=lambda: FashionMnistDataConfig(
            is_training=False, global_batch_size=500, drop_remainder=False
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "num_held_out")


task_factory.register_task_cls(
    FashionMnistConfig, "experiments.vision.fashion_mnist.task:FashionMnistTask"
)


@exp_factory.register_config_factory("vision/fashion_mnist")
def fashion_mnist() -> cfg.ExperimentConfig:
    """Return a small residual network that reaches 0.93 on the test images within minutes."""
    return _experiment(FashionMnistConfig(), train_epochs=12)


@exp_factory.register_config_factory("vision/fashion_mnist_best")
def fashion_mnist_best() -> cfg.ExperimentConfig:
    """Return a wider network with stronger augmentation, which trains for up to an hour."""
    task = FashionMnistConfig(
        model=FashionMnistModelConfig(filters=(32, 64, 128), num_blocks=1, stem_strides=1)
    )
    task.train_data.override({"max_shift": 2, "erase_size": 8})
    return _experiment(task, train_epochs=24)


def _experiment(task: FashionMnistConfig, train_epochs: int) -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_epochs=train_epochs,
            validate_every_epochs=1,
            checkpoint_every_epochs=1,
            steps_per_loop=100,
            # No best checkpoint is exported, because it would be selected by the test images.
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9, "nesterov": True}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 0.1, "decay_ratio": 1.0},
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_ratio": 0.1}},
                }
            ),
        ),
        # This mode is the fastest for convolutions; `auto` would also choose it.
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="graph"),
    )
