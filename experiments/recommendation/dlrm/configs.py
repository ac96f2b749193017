"""`recommendation/dlrm`: clicks by bottom and top layers, with products of embeddings in between.

python train.py --experiment=recommendation/dlrm --mode=train_and_eval --model_dir=/tmp/dlrm
"""

import dataclasses

from experiments.recommendation.criteo import configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams

__all__ = ["DlrmConfig", "DlrmModelConfig", "dlrm"]


@dataclasses.dataclass
class DlrmModelConfig(hyperparams.Config):
    """The model of https://arxiv.org/abs/1906.00091.

    Attributes:
        embedding_width: The width of each category's embedding and of the vector of the integers.
        bottom_units: The units of each hidden layer on the integers.
        top_units: The units of each hidden layer on the products of embeddings.
    """

    embedding_width: int = 8
    bottom_units: tuple[int, ...] = (64,)
    top_units: tuple[int, ...] = (64, 32)


@dataclasses.dataclass
class DlrmConfig(configs.CriteoConfig):
    """The config of predicting clicks with DLRM."""

    model: DlrmModelConfig = dataclasses.field(default_factory=DlrmModelConfig)


task_factory.register_task_cls(DlrmConfig, "experiments.recommendation.dlrm.task:DlrmTask")


@exp_factory.register_config_factory("recommendation/dlrm")
def dlrm() -> cfg.ExperimentConfig:
    """Return an experiment whose validation AUC is within 0.01 of the best possible AUC."""
    return configs.criteo_experiment(DlrmConfig(), learning_rate=0.07)
