"""`recommendation/ml100k_bpr`: movies for the users of MovieLens-100k, by RecBole's protocol.

python train.py --experiment=recommendation/ml100k_bpr --mode=train_and_eval \
  --model_dir=/tmp/bpr --set=task.input_path=/data/ml-100k
"""

import dataclasses

from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["BprConfig", "BprModelConfig", "Ml100kConfig", "Ml100kDataConfig", "ml100k_bpr"]

SPLITS = ("train", "validation", "test")

# The 80,808 ratings of the training split in batches of 2,048, rounded up.
_STEPS_PER_EPOCH = 40
_MAX_EPOCHS = 300


@dataclasses.dataclass
class Ml100kDataConfig(cfg.DataConfig):
    """A part of the ratings, all of which count as positive.

    Attributes:
        split: `train`, `validation` or `test`.
    """

    split: str = "train"

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", SPLITS)


@dataclasses.dataclass
class Ml100kConfig(cfg.TaskConfig):
    """The config of recommending movies, which the experiments on MovieLens-100k share.

    Attributes:
        input_path: The directory of `ml-100k.inter` and other files in RecBole's format.
        split_seed: The seed of the assignment of ratings to the three splits.
        num_recommended: The number of movies that are recommended to each user.
    """

    input_path: str = ""
    split_seed: int = 0
    num_recommended: int = 10
    train_data: Ml100kDataConfig = dataclasses.field(
        default_factory=lambda: Ml100kDataConfig(
            split="train", is_training=True, global_batch_size=2048
        )
    )
    # One batch holds all 943 users.
    validation_data: Ml100kDataConfig = dataclasses.field(
        default_factory=lambda: Ml100kDataConfig(
            split="validation", is_training=False, global_batch_size=1024, drop_remainder=False
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "split_seed")
        field_checks.require_positive(self, "num_recommended")


@dataclasses.dataclass
class BprModelConfig(hyperparams.Config):
    """A matrix factorization.

    Attributes:
        embedding_width: The width of the vectors of users and items.
    """

    embedding_width: int = 64

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "embedding_width")


@dataclasses.dataclass
class BprConfig(Ml100kConfig):
    """The config of Bayesian personalized ranking, https://arxiv.org/abs/1205.2618."""

    model: BprModelConfig = dataclasses.field(default_factory=BprModelConfig)


task_factory.register_task_cls(BprConfig, "experiments.recommendation.ml100k.task:BprTask")


@exp_factory.register_config_factory("recommendation/ml100k_bpr")
def ml100k_bpr() -> cfg.ExperimentConfig:
    """Return a matrix factorization with the results of RecBole's: a test MRR@10 of about 0.45."""
    return _experiment(BprConfig(), learning_rate=1e-3)


def _experiment(task: Ml100kConfig, learning_rate: float) -> cfg.ExperimentConfig:
    """Return a training with early stopping, and a test of its best checkpoint."""
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=_MAX_EPOCHS * _STEPS_PER_EPOCH,
            steps_per_loop=_STEPS_PER_EPOCH,
            summary_interval=_STEPS_PER_EPOCH,
            checkpoint_interval=50 * _STEPS_PER_EPOCH,
            validation_interval=_STEPS_PER_EPOCH,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="mrr",
            # RecBole stops one evaluation later than its `stopping_step` of 10 says.
            hooks=[
                hyperparams.PluginConfig(
                    {"name": "early_stopping", "metric": "mrr", "patience": 11}
                )
            ],
            optimizer_config=optimization.OptimizationConfig(
                {
                    # The epsilon of PyTorch.
                    "optimizer": {"type": "adam", "adam": {"epsilon": 1e-8}},
                    "learning_rate": {
                        "type": "constant",
                        "constant": {"learning_rate": learning_rate},
                    },
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
        phases=[
            cfg.PhaseConfig(name="training"),
            cfg.PhaseConfig(
                name="test",
                mode="eval",
                init_from="training/best_ckpt",
                overrides=hyperparams.FreeConfig({"task.validation_data.split": "test"}),
            ),
        ],
    )
