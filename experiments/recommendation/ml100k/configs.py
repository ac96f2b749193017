"""Three experiments that recommend movies to the users of MovieLens-100k, by RecBole's protocol.

python train.py --experiment=recommendation/ml100k_bpr --mode=train_and_eval \
  --model_dir=/tmp/bpr --set=task.input_path=/data/ml-100k
"""

import dataclasses

from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "BprConfig",
    "BprModelConfig",
    "Ml100kConfig",
    "Ml100kDataConfig",
    "SasRecConfig",
    "SasRecModelConfig",
    "TwoTowerConfig",
    "TwoTowerModelConfig",
    "ml100k_bpr",
    "ml100k_sasrec",
    "ml100k_two_tower",
]

SPLITS = ("train", "validation", "test")

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
    # A single batch contains all 943 users.
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


@dataclasses.dataclass
class TwoTowerModelConfig(hyperparams.Config):
    """Two networks, one of users and one of items.

    Attributes:
        embedding_width: The width of the embeddings and of the vectors that are compared.
        units: The units of the hidden layers of each network.
        dropout_rate: The dropout rate after each hidden layer.
        temperature: The divisor of the cosine of two vectors.
    """

    embedding_width: int = 64
    units: tuple[int, ...] = (128,)
    dropout_rate: float = 0.0
    temperature: float = 0.2

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "embedding_width", "temperature")


@dataclasses.dataclass
class TwoTowerConfig(Ml100kConfig):
    """The config of retrieval by the ids and the features of users and items."""

    model: TwoTowerModelConfig = dataclasses.field(default_factory=TwoTowerModelConfig)


task_factory.register_task_cls(
    TwoTowerConfig, "experiments.recommendation.ml100k.task:TwoTowerTask"
)


@dataclasses.dataclass
class SasRecModelConfig(hyperparams.Config):
    """The model of https://arxiv.org/abs/1808.09781, with RecBole's defaults.

    Attributes:
        seq_length: The number of last items that the model sees.
        hidden_size: The width of the vectors of items and positions.
        num_layers: The number of blocks.
        num_attention_heads: The number of heads of a block.
        intermediate_size: The width of the hidden layer of a block.
        hidden_activation: The activation of this layer.
        dropout_rate: The dropout rate of the input and of each part of a block.
        attention_dropout_rate: The dropout rate of the attention weights.
        initializer_range: The standard deviation of the initial weights.
        layer_norm_epsilon: The epsilon of the normalizations.
        use_bias: Whether dense layers and normalizations add a vector.
    """

    seq_length: int = 50
    hidden_size: int = 64
    num_layers: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 256
    hidden_activation: str = "gelu"
    dropout_rate: float = 0.5
    attention_dropout_rate: float = 0.5
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-12
    use_bias: bool = True

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(
            self,
            "seq_length",
            "hidden_size",
            "num_layers",
            "num_attention_heads",
            "intermediate_size",
        )


@dataclasses.dataclass
class SasRecConfig(Ml100kConfig):
    """The config of predicting the next movie of a user."""

    model: SasRecModelConfig = dataclasses.field(default_factory=SasRecModelConfig)


task_factory.register_task_cls(SasRecConfig, "experiments.recommendation.ml100k.task:SasRecTask")


@exp_factory.register_config_factory("recommendation/ml100k_bpr")
def ml100k_bpr() -> cfg.ExperimentConfig:
    """Return a matrix factorization that matches RecBole's test MRR@10 of about 0.45."""
    # An epoch has 80,808 ratings in batches of 2,048, which makes 40 steps.
    params = _experiment(BprConfig(), steps_per_epoch=40)
    # This mode is the fastest for such small steps, but the run is too short for `auto` to
    # benchmark modes.
    params.runtime.execution = "xla_loop"
    return params


def _experiment(task: Ml100kConfig, steps_per_epoch: int) -> cfg.ExperimentConfig:
    """Return a config that trains with RecBole's early stopping and tests the best checkpoint.

    Args:
        task: The task.
        steps_per_epoch: The number of steps between two evaluations.
    """
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=_MAX_EPOCHS * steps_per_epoch,
            steps_per_loop=steps_per_epoch,
            summary_interval=steps_per_epoch,
            checkpoint_interval=50 * steps_per_epoch,
            validation_interval=steps_per_epoch,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="mrr",
            # RecBole stops one evaluation later than its default `stopping_step` of 10.
            hooks=[
                hyperparams.PluginConfig(
                    {"name": "early_stopping", "metric": "mrr", "patience": 11}
                )
            ],
            optimizer_config=optimization.OptimizationConfig(
                {
                    # RecBole trains with PyTorch, whose default epsilon is 1e-8.
                    "optimizer": {"type": "adam", "adam": {"epsilon": 1e-8}},
                    "learning_rate": {
                        "type": "constant",
                        "constant": {"learning_rate": 1e-3},
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


@exp_factory.register_config_factory("recommendation/ml100k_two_tower")
def ml100k_two_tower() -> cfg.ExperimentConfig:
    """Return a network of users and one of items, trained against the other items of a batch."""
    params = _experiment(TwoTowerConfig(), steps_per_epoch=158)
    params.override({"task": {"train_data": {"global_batch_size": 512}}})
    return params


@exp_factory.register_config_factory("recommendation/ml100k_sasrec")
def ml100k_sasrec() -> cfg.ExperimentConfig:
    """Return self-attention over the last 50 movies of a user."""
    # An epoch has 3,336 windows in batches of 64, which makes 53 steps.
    params = _experiment(SasRecConfig(), steps_per_epoch=53)
    params.override({"task": {"train_data": {"global_batch_size": 64}}})
    return params
