"""`recommendation/deepfm`: a factorization machine and deep layers on one embedding of clicks.

python train.py --experiment=recommendation/deepfm --mode=train_and_eval --model_dir=/tmp/deepfm
"""

import dataclasses

from experiments.recommendation.criteo import configs
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams

__all__ = ["DeepFmConfig", "DeepFmModelConfig", "deepfm"]


@dataclasses.dataclass
class DeepFmModelConfig(hyperparams.Config):
    """The model of https://arxiv.org/abs/1703.04247.

    Attributes:
        embedding_width: The width of the vector of each integer and of each category value.
        units: The units of each hidden layer on these vectors.
        dropout_rate: The dropout rate after each hidden layer.
    """

    embedding_width: int = 8
    units: tuple[int, ...] = (64, 64)
    dropout_rate: float = 0.0


@dataclasses.dataclass
class DeepFmConfig(configs.CriteoConfig):
    """The config of predicting clicks with DeepFM."""

    model: DeepFmModelConfig = dataclasses.field(default_factory=DeepFmModelConfig)


task_factory.register_task_cls(DeepFmConfig, "experiments.recommendation.deepfm.task:DeepFmTask")


@exp_factory.register_config_factory("recommendation/deepfm")
def deepfm() -> cfg.ExperimentConfig:
    """Return an experiment whose validation AUC is within 0.01 of the best possible AUC."""
    return configs.criteo_experiment(DeepFmConfig(), learning_rate=0.1)
