"""`recommendation/tdm`: the next item of a user, found by a search down a tree of all items.

python train.py --experiment=recommendation/tdm --mode=train_and_eval --model_dir=/tmp/tdm
"""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["TdmConfig", "TdmDataConfig", "TdmModelConfig", "tdm"]

SPLITS = ("train", "validation")

_TRAIN_STEPS = 1000


@dataclasses.dataclass
class TdmModelConfig(hyperparams.Config):
    """The model of https://arxiv.org/abs/1801.02294.

    Attributes:
        embedding_width: The width of the embeddings of items and of nodes.
        units: The units of each hidden layer of the network that scores a node.
        num_negatives: The number of other nodes of the same level that each node of a path is
            compared with.
        beam_width: The number of nodes of a level whose children the search visits.
    """

    embedding_width: int = 16
    units: tuple[int, ...] = (32,)
    num_negatives: int = 3
    beam_width: int = 20

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "embedding_width", "num_negatives", "beam_width")


@dataclasses.dataclass
class TdmDataConfig(cfg.DataConfig):
    """Generated histories of the items that a user took, and the next item.

    Attributes:
        split: `train` or `validation`.
        num_generated: The number of users.
    """

    split: str = "train"
    num_generated: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", SPLITS)
        field_checks.require_not_negative(self, "num_generated")


@dataclasses.dataclass
class TdmConfig(cfg.TaskConfig):
    """The config of predicting the next item.

    Attributes:
        num_topics: The number of topics of the generated items; each has 20 items.
        num_recommended: The number of recommended items, among which the next one should be.
    """

    num_topics: int = 50
    num_recommended: int = 10
    model: TdmModelConfig = dataclasses.field(default_factory=TdmModelConfig)
    train_data: TdmDataConfig = dataclasses.field(
        default_factory=lambda: TdmDataConfig(
            split="train", num_generated=100_000, is_training=True, global_batch_size=256
        )
    )
    validation_data: TdmDataConfig = dataclasses.field(
        default_factory=lambda: TdmDataConfig(
            split="validation",
            num_generated=10_000,
            is_training=False,
            global_batch_size=500,
            drop_remainder=False,
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "num_topics", "num_recommended")
        if self.num_recommended > self.model.beam_width:
            raise errors.ConfigValueError(
                f"`num_recommended` is {self.num_recommended}, but the search finds fewer items; "
                f"expected at most `model.beam_width`, {self.model.beam_width}."
            )


task_factory.register_task_cls(TdmConfig, "experiments.recommendation.tdm.task:TdmTask")


@exp_factory.register_config_factory("recommendation/tdm")
def tdm() -> cfg.ExperimentConfig:
    """Return an experiment whose recall is many times that of the most popular items."""
    return cfg.ExperimentConfig(
        task=TdmConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=500,
            validation_interval=500,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="recall",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 5e-3, "decay_steps": _TRAIN_STEPS},
                    },
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
        pipeline=cfg.PipelineConfig(
            initialize="experiments.recommendation.tdm.startup:TreeStartup"
        ),
    )
