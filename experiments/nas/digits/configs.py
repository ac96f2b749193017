"""The experiments on the 64 architectures for handwritten digits, one for each trainer.

python train.py --experiment=nas/digits_darts --mode=train_and_eval --model_dir=/tmp/search
python train.py --experiment=nas/digits --set=task.arch=/tmp/search --mode=train_and_eval \
    --model_dir=/tmp/found
"""

import dataclasses
from typing import Any

from experiments.vision.digits import configs as digits
from official_lite import nas
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization

__all__ = ["CellsConfig", "NasDigitsConfig", "nas_digits"]


@dataclasses.dataclass
class CellsConfig(hyperparams.Config):
    """Layers in a row, each with a choice of operations and each added to its input.

    Attributes:
        num_choices: The number of layers.
        filters: The number of filters of each layer.
    """

    num_choices: int = 3
    filters: int = 8


@dataclasses.dataclass
class NasDigitsConfig(nas.ArchTaskConfig):
    """The config of classifying digits by a model with choices."""

    model: CellsConfig = dataclasses.field(default_factory=CellsConfig)
    train_data: digits.DigitsDataConfig = dataclasses.field(
        default_factory=lambda: digits.DigitsDataConfig(
            split="train", is_training=True, global_batch_size=64
        )
    )
    validation_data: digits.DigitsDataConfig = dataclasses.field(
        default_factory=lambda: digits.DigitsDataConfig(
            split="validation", is_training=False, global_batch_size=120, drop_remainder=False
        )
    )


task_factory.register_task_cls(NasDigitsConfig, "experiments.nas.digits.task:NasDigitsTask")


@exp_factory.register_config_factory("nas/digits")
def nas_digits() -> cfg.ExperimentConfig:
    """Return the training of a single architecture: 400 steps; `task.arch` must be set."""
    return _experiment(None, train_steps=400)


@exp_factory.register_config_factory("nas/digits_darts")
def nas_digits_darts() -> cfg.ExperimentConfig:
    """Return a first-order DARTS search."""
    return _experiment("darts", train_steps=600)


@exp_factory.register_config_factory("nas/digits_darts_second_order")
def nas_digits_darts_second_order() -> cfg.ExperimentConfig:
    """Return an exact second-order DARTS search."""
    return _experiment("darts", train_steps=600, darts={"order": "second"})


@exp_factory.register_config_factory("nas/digits_gumbel")
def nas_digits_gumbel() -> cfg.ExperimentConfig:
    """Return a Gumbel softmax search with a decreasing temperature."""
    return _experiment("gumbel", train_steps=600, arch_learning_rate=0.02)


@exp_factory.register_config_factory("nas/digits_proxyless")
def nas_digits_proxyless() -> cfg.ExperimentConfig:
    """Return a ProxylessNAS search."""
    return _experiment("proxyless", train_steps=2000, arch_learning_rate=0.01)


@exp_factory.register_config_factory("nas/digits_enas")
def nas_digits_enas() -> cfg.ExperimentConfig:
    """Return an ENAS search, whose controller starts once the shared weights are trained."""
    return _experiment(
        "enas", train_steps=3000, warmup_steps=1500, reward="accuracy", arch_learning_rate=0.01
    )


@exp_factory.register_config_factory("nas/digits_spos")
def nas_digits_spos() -> cfg.ExperimentConfig:
    """Return a single-path one-shot search that ranks all 64 architectures."""
    return _experiment("spos", train_steps=4000, reward="accuracy")


def _experiment(name: str | None, *, train_steps: int, **one_shot: Any) -> cfg.ExperimentConfig:
    return cfg.ExperimentConfig(
        task=NasDigitsConfig(),
        trainer=nas.OneShotTrainerConfig(
            name=name,
            # The twelve architecture parameters are trained for only some hundred steps, so they
            # can use a higher learning rate than the parameters of a large search space.
            one_shot=nas.OneShotConfig({"arch_learning_rate": 0.005, **one_shot}),
            train_steps=train_steps,
            steps_per_loop=200,
            summary_interval=400,
            checkpoint_interval=400,
            validation_interval=400,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 3e-3}},
                }
            ),
        ),
        # For 8 x 8 images, two threads take longer to share a convolution than one takes to
        # compute it.
        runtime=cfg.RuntimeConfig(
            distribution_strategy="one_device", execution="graph", intra_op_parallelism_threads=1
        ),
    )
