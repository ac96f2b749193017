"""A search on Fashion-MNIST, and the training of an architecture.

python train.py --experiment=nas/fashion_mnist_spos --mode=train --model_dir=/tmp/search \
    --set=task.input_path=/data/fashion-mnist
python train.py --experiment=nas/fashion_mnist --mode=train_and_eval --model_dir=/tmp/found \
    --set=task.arch=/tmp/search --set=task.input_path=/data/fashion-mnist
"""

import dataclasses
from typing import Any

from experiments.vision.fashion_mnist import configs as fashion_mnist
from official_lite import nas
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory

__all__ = ["LayersConfig", "NasFashionMnistConfig", "nas_fashion_mnist", "nas_fashion_mnist_spos"]


@dataclasses.dataclass
class LayersConfig(fashion_mnist.FashionMnistModelConfig):
    """A network without shortcuts whose layers are choices of operations.

    Attributes:
        filters: The filters at each image size: 14×14, 7×7 and so on.
        num_blocks: The number of layers at each image size.
    """

    filters: tuple[int, ...] = (16, 32)
    num_blocks: int = 4


@dataclasses.dataclass
class NasFashionMnistConfig(fashion_mnist.FashionMnistConfig, nas.ArchTaskConfig):
    """The config of classifying Fashion-MNIST by a model with choices."""

    model: LayersConfig = dataclasses.field(default_factory=LayersConfig)


task_factory.register_task_cls(
    NasFashionMnistConfig, "experiments.nas.fashion_mnist.task:NasFashionMnistTask"
)


@exp_factory.register_config_factory("nas/fashion_mnist")
def nas_fashion_mnist() -> cfg.ExperimentConfig:
    """Return the training of a single architecture; `task.arch` must be set."""
    return _experiment(NasFashionMnistConfig(), train_steps=1500, validation_interval=500)


@exp_factory.register_config_factory("nas/fashion_mnist_spos")
def nas_fashion_mnist_spos() -> cfg.ExperimentConfig:
    """Return a single-path one-shot search that rates architectures on held-out training images.

    A thousand parameters must improve the accuracy by 0.001, or evolution prefers an architecture
    without them.
    """
    return _experiment(
        NasFashionMnistConfig(num_held_out=10_000),
        train_steps=4000,
        # The moving averages of the normalization layers mix all paths, so the accuracy of a path
        # says little before a rating recomputes them.
        validation_interval=0,
        name="spos",
        one_shot=nas.OneShotConfig(
            arch_data=cfg.DataConfig(
                is_training=False, global_batch_size=500, drop_remainder=False
            ),
            reward="accuracy",
            # Momentum would move the weights of operations that a step does not use.
            idle_paths="freeze",
            penalty=nas.PenaltyConfig(weight=0.001, resource="parameters", unit=1000.0),
            spos=nas.SposConfig(
                rank_batches=6, calibration_batches=2, population=40, generations=8
            ),
        ),
    )


def _experiment(task: NasFashionMnistConfig, **trainer: Any) -> cfg.ExperimentConfig:
    recipe = fashion_mnist.fashion_mnist()
    return cfg.ExperimentConfig(
        task=task,
        trainer=nas.OneShotTrainerConfig(
            steps_per_loop=100,
            checkpoint_interval=500,
            optimizer_config=recipe.trainer.optimizer_config,
            **trainer,
        ),
        runtime=recipe.runtime,
    )
