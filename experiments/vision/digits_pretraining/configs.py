"""Pre-training on all images, fine-tuning on the labeled ones, and export, in one command.

python train.py --experiment=vision/digits_pretraining --mode=train_and_eval --model_dir=/tmp/few
"""

import dataclasses

from experiments.vision.digits import configs as digits
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["FewLabelsConfig", "FewLabelsDataConfig", "digits_few_labels", "digits_pretraining"]

OBJECTIVES = ("class", "image")

_PRETRAIN_STEPS = 1000
_FINETUNE_STEPS = 300


@dataclasses.dataclass
class FewLabelsDataConfig(digits.DigitsDataConfig):
    """Digits of which only some have a label.

    Attributes:
        labels_per_class: Use only this number of digits of each class, the first ones; 0 uses all.
    """

    labels_per_class: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_not_negative(self, "labels_per_class")


@dataclasses.dataclass
class FewLabelsConfig(cfg.TaskConfig):
    """The config of classifying or reconstructing digits.

    Attributes:
        objective: `class`, which requires labels, or `image`, which reconstructs the digit from the
            128 numbers that the encoder returns.
    """

    objective: str = "class"
    model: digits.DigitsModelConfig = dataclasses.field(
        default_factory=lambda: digits.DigitsModelConfig(
            filters=(32, 64), units=(128,), dropout_rate=0.3
        )
    )
    train_data: FewLabelsDataConfig = dataclasses.field(
        default_factory=lambda: FewLabelsDataConfig(
            split="train",
            is_training=True,
            global_batch_size=20,
            max_shift=1,
            labels_per_class=2,
            seed=1,
        )
    )
    validation_data: FewLabelsDataConfig = dataclasses.field(
        default_factory=lambda: FewLabelsDataConfig(
            split="validation", is_training=False, global_batch_size=120, drop_remainder=False
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "objective", OBJECTIVES)


task_factory.register_task_cls(
    FewLabelsConfig, "experiments.vision.digits_pretraining.task:FewLabelsTask"
)


@exp_factory.register_config_factory("vision/digits_few_labels")
def digits_few_labels() -> cfg.ExperimentConfig:
    """Return the baseline: training from scratch on two labeled digits per class."""
    return cfg.ExperimentConfig(
        task=FewLabelsConfig(),
        trainer=cfg.TrainerConfig(
            train_steps=_FINETUNE_STEPS,
            steps_per_loop=50,
            summary_interval=100,
            checkpoint_interval=100,
            validation_interval=100,
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": 3e-3, "decay_ratio": 1.0},
                    },
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )


@exp_factory.register_config_factory("vision/digits_pretraining")
def digits_pretraining() -> cfg.ExperimentConfig:
    """Return an experiment that pre-trains on all digits and fine-tunes on the labeled ones."""
    params = digits_few_labels()
    params.phases = [
        cfg.PhaseConfig(
            name="pretrain",
            overrides=hyperparams.FreeConfig(
                {
                    "task.objective": "image",
                    "task.train_data.labels_per_class": 0,
                    "task.train_data.global_batch_size": 128,
                    "trainer.train_steps": _PRETRAIN_STEPS,
                    "trainer.validation_interval": 500,
                    "trainer.checkpoint_interval": 500,
                }
            ),
        ),
        cfg.PhaseConfig(
            name="finetune",
            init_from="previous",
            overrides=hyperparams.FreeConfig(
                {
                    # Only the encoder is loaded, because the two phases have different last layers.
                    "task.init_checkpoint_modules": "encoder",
                    "trainer.hooks": [{"name": "export_model", "format": "tf_saved_model"}],
                }
            ),
        ),
    ]
    return params
