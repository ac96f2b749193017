"""A digit with few known labels, and its parity, which is known for all images.

python train.py --experiment=vision/digits_multitask --mode=train_and_eval --model_dir=/tmp/parity
"""

import dataclasses

from experiments.vision.digits import configs as digits
from experiments.vision.digits_pretraining import configs as few_labels
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import optimization
from official_lite.modeling.hyperparams import field_checks
from official_lite.modeling.multitask import configs as multitask

__all__ = ["DigitsTasksConfig", "TargetConfig", "digits_multitask"]

TARGETS = ("digit", "parity")

_TRAIN_STEPS = 1000


@dataclasses.dataclass
class TargetConfig(cfg.TaskConfig):
    """One of the targets.

    Attributes:
        target: `digit`, one of ten, or `parity`, even or odd.
    """

    target: str = "digit"
    train_data: few_labels.FewLabelsDataConfig = dataclasses.field(
        default_factory=lambda: few_labels.FewLabelsConfig().train_data
    )
    validation_data: few_labels.FewLabelsDataConfig = dataclasses.field(
        default_factory=lambda: few_labels.FewLabelsConfig().validation_data
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "target", TARGETS)


@dataclasses.dataclass
class DigitsTasksConfig(multitask.MultiTaskConfig):
    """Targets whose networks share all layers but the last."""

    model: digits.DigitsModelConfig = dataclasses.field(
        default_factory=lambda: digits.DigitsModelConfig(
            filters=(32, 64), units=(128,), dropout_rate=0.3
        )
    )


task_factory.register_task_cls(TargetConfig, "experiments.vision.digits_multitask.task:TargetTask")
task_factory.register_task_cls(
    DigitsTasksConfig, "experiments.vision.digits_multitask.task:make_tasks"
)


@exp_factory.register_config_factory("vision/digits_multitask")
def digits_multitask() -> cfg.ExperimentConfig:
    """Return an experiment that trains both targets in every step."""
    return multitask.MultiTaskExperimentConfig(
        task=DigitsTasksConfig(
            task_routines=(
                _routine("digit", batch_size=20, labels_per_class=2),
                _routine("parity", batch_size=64, labels_per_class=0),
            )
        ),
        trainer=multitask.MultiTaskTrainerConfig(
            trainer_type="joint",
            train_steps=_TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=500,
            validation_interval=250,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="digit|accuracy",
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
        pipeline=cfg.PipelineConfig(build="official_lite.pipeline.multitask_build:MultiTaskBuild"),
    )


def _routine(target: str, batch_size: int, labels_per_class: int) -> multitask.TaskRoutine:
    config = TargetConfig(target=target)
    config.train_data.global_batch_size = batch_size
    config.train_data.labels_per_class = labels_per_class
    return multitask.TaskRoutine(task_name=target, task_config=config)
