"""The data, task and training configs that experiments on Criteo's clicks share."""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.modeling import optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = ["CriteoConfig", "CriteoDataConfig", "criteo_experiment"]

FORMATS = ("tsv", "tfrecord")
SPLITS = ("train", "validation")

# The row numbers of the single table for all 26 categories must fit into an int32.
_MAX_TABLE_ROWS = 2**31 // 26

_BATCH_SIZE = 1024
_TRAIN_STEPS = 1500


@dataclasses.dataclass
class CriteoDataConfig(cfg.DataConfig):
    """Clicks in files of Criteo's format, or generated in memory if there is no `input_path`.

    Attributes:
        file_format: `tsv` as Criteo publishes it, or `tfrecord` as `criteo.generate` writes it.
        split: The generated examples to use: `train` or `validation`. Both are drawn from the same
            truth.
        num_generated: The number of generated examples.
        truth_seed: The seed of the truth, which is the model that labels are drawn from.
    """

    file_format: str = "tsv"
    split: str = "train"
    num_generated: int = 0
    truth_seed: int = 0

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "file_format", FORMATS)
        field_checks.require_one_of(self, "split", SPLITS)
        field_checks.require_not_negative(self, "num_generated", "truth_seed")


@dataclasses.dataclass
class CriteoConfig(cfg.TaskConfig):
    """The config of predicting a click on an impression from 13 integers and 26 categories.

    Attributes:
        table_rows: The number of rows for each of the 26 categories; values are hashed into them.
    """

    table_rows: int = 10_000
    train_data: CriteoDataConfig = dataclasses.field(
        default_factory=lambda: CriteoDataConfig(
            split="train",
            num_generated=_BATCH_SIZE * _TRAIN_STEPS,
            is_training=True,
            global_batch_size=_BATCH_SIZE,
            shuffle_buffer_size=10_000,
        )
    )
    validation_data: CriteoDataConfig = dataclasses.field(
        default_factory=lambda: CriteoDataConfig(
            split="validation",
            num_generated=100_000,
            is_training=False,
            global_batch_size=5000,
            drop_remainder=False,
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        if not 2 <= self.table_rows <= _MAX_TABLE_ROWS:
            raise errors.ConfigValueError(
                f"`table_rows` is {self.table_rows}; expected 2 to {_MAX_TABLE_ROWS}, because "
                "one row is reserved for missing values."
            )


def criteo_experiment(task: CriteoConfig, learning_rate: float) -> cfg.ExperimentConfig:
    """Return the config of a training run that sees each generated example once.

    Args:
        task: The task with the model.
        learning_rate: Adagrad's learning rate, which rises in the first steps and then falls to 0.
    """
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=_TRAIN_STEPS,
            steps_per_loop=100,
            summary_interval=100,
            checkpoint_interval=500,
            validation_interval=500,
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="auc",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {
                        "type": "adagrad",
                        # A row that occurs in only one example of a batch has a tiny gradient,
                        # which would be negligible compared with a larger initial value.
                        "adagrad": {"initial_accumulator_value": 1e-6},
                    },
                    "learning_rate": {
                        "type": "polynomial",
                        "polynomial": {
                            "initial_learning_rate": learning_rate,
                            "end_learning_rate": 0.0,
                            "decay_steps": _TRAIN_STEPS,
                        },
                    },
                    # Adagrad's first steps change every weight by the whole learning rate. With
                    # parameter servers, a worker may also compute its gradients from weights that
                    # lack the latest updates of other workers.
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 300}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device"),
    )
