"""Two registered experiments that predict the class in one column of a table from the others.

python train.py --experiment=tabular/breast_cancer --mode=train_and_eval --model_dir=/tmp/cancer
python train.py --experiment=tabular/csv --mode=train_and_eval --model_dir=/tmp/table \
  --set=task.input_path=table.csv --set=task.target=class
"""

import dataclasses

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import exp_factory, task_factory
from official_lite.modeling import hyperparams, optimization
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "BreastCancerConfig",
    "TableConfig",
    "TableDataConfig",
    "TableModelConfig",
    "breast_cancer",
    "csv",
]


@dataclasses.dataclass
class TableModelConfig(hyperparams.Config):
    """Dense layers over normalized numbers and embedded categories.

    Attributes:
        units: The units of each hidden layer.
        embedding_size: The length of the vector that represents a category.
        dropout_rate: The dropout rate after each hidden layer.
    """

    units: tuple[int, ...] = (64, 64)
    embedding_size: int = 8
    dropout_rate: float = 0.2

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_positive(self, "embedding_size")


@dataclasses.dataclass
class TableDataConfig(cfg.DataConfig):
    """The rows of a table.

    Attributes:
        split: `train`, `validation` or `test`.
    """

    split: str = "train"

    def validate_fields(self) -> None:
        super().validate_fields()
        field_checks.require_one_of(self, "split", ("train", "validation", "test"))


@dataclasses.dataclass
class TableConfig(cfg.TaskConfig):
    """The config of classifying the rows of a table.

    A column that is not named below holds numbers if all its cells in the file are numbers or
    empty, and categories otherwise.

    Attributes:
        input_path: A CSV file whose first line names the columns.
        target: The column of the class to predict.
        numeric: Columns of numbers. Any other cell in them is an error.
        categorical: Columns of categories, such as codes that are written as numbers.
        ignored: Columns that the model does not read.
        num_folds: The number of parts into which the rows are divided at random.
        fold: The part that is used for testing, from 0.
        validation_fraction: The fraction of the other rows that is used for validation.
        split_seed: The seed of the division.
    """

    MODEL_FILES = ("input_path",)

    input_path: str = ""
    target: str = ""
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    num_folds: int = 5
    fold: int = 0
    validation_fraction: float = 0.15
    split_seed: int = 0
    model: TableModelConfig = dataclasses.field(default_factory=TableModelConfig)
    train_data: TableDataConfig = dataclasses.field(
        default_factory=lambda: TableDataConfig(
            split="train", is_training=True, global_batch_size=64
        )
    )
    validation_data: TableDataConfig = dataclasses.field(
        default_factory=lambda: TableDataConfig(
            split="validation", is_training=False, global_batch_size=500, drop_remainder=False
        )
    )

    def validate_fields(self) -> None:
        super().validate_fields()
        if not 0 <= self.fold < self.num_folds:
            raise errors.ConfigValueError(
                f"`fold` is {self.fold} and `num_folds` is {self.num_folds}; expected a fold from "
                f"0 to {self.num_folds - 1}."
            )
        if not 0 < self.validation_fraction < 1:
            raise errors.ConfigValueError(
                f"`validation_fraction` is {self.validation_fraction}; expected a number between "
                "0 and 1."
            )


@dataclasses.dataclass
class BreastCancerConfig(TableConfig):
    """The 569 tumors of scikit-learn's `load_breast_cancer`; there is no `input_path`."""

    target: str = "diagnosis"


task_factory.register_task_cls(TableConfig, "experiments.tabular.task:TableTask")
task_factory.register_task_cls(BreastCancerConfig, "experiments.tabular.task:BreastCancerTask")


@exp_factory.register_config_factory("tabular/breast_cancer")
def breast_cancer() -> cfg.ExperimentConfig:
    """Return a small network on the 30 numbers that describe each of 569 tumors."""
    task = BreastCancerConfig()
    task.train_data.global_batch_size = 32
    return _experiment(task, train_steps=2000, validation_interval=25)


@exp_factory.register_config_factory("tabular/csv")
def csv() -> cfg.ExperimentConfig:
    """Return a small network on any CSV file."""
    return _experiment(TableConfig(), train_steps=10_000, validation_interval=100)


def _experiment(
    task: TableConfig, train_steps: int, validation_interval: int
) -> cfg.ExperimentConfig:
    early_stopping = {"name": "early_stopping", "metric": "validation_loss", "patience": 10}
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=validation_interval,
            summary_interval=validation_interval,
            checkpoint_interval=10 * validation_interval,
            validation_interval=validation_interval,
            hooks=[hyperparams.PluginConfig(early_stopping)],
            best_checkpoint_export_subdir="best_ckpt",
            best_checkpoint_eval_metric="validation_loss",
            best_checkpoint_metric_comp="lower",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
                }
            ),
        ),
        runtime=cfg.RuntimeConfig(distribution_strategy="one_device", execution="graph"),
    )
