"""The config of `--mode=predict`. This module does not need TensorFlow."""

import dataclasses

from official_lite.common import errors
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = ["CHECKPOINTS", "FORMATS", "PredictionConfig"]

FORMATS = ("jsonl", "parquet", "tfrecord")

CHECKPOINTS = ("latest", "best", "init")


@dataclasses.dataclass
class PredictionConfig(hyperparams.Config):
    """The config of `--mode=predict`: which weights predict, and where the predictions go.

    Attributes:
        output_dir: The directory of the predictions. A relative path is in the model directory.
        format: The format of the files: `jsonl` (a JSON object per line), `parquet` or `tfrecord`.
            Parquet requires the extra `parquet`.
        rows_per_shard: The number of rows in a file. The last file may have fewer. A killed run
            repeats at most the rows of one file.
        checkpoint: The weights: `latest` for the latest checkpoint of the run, or
            `task.init_checkpoint` if the run has none; `best` for the checkpoint in
            `trainer.best_checkpoint_export_subdir`; `init` for `task.init_checkpoint` in any case.
    """

    output_dir: str = "predictions"
    format: str = "jsonl"
    rows_per_shard: int = 10_000
    checkpoint: str = "latest"

    def validate_fields(self) -> None:
        field_checks.require_one_of(self, "format", FORMATS)
        field_checks.require_one_of(self, "checkpoint", CHECKPOINTS)
        field_checks.require_positive(self, "rows_per_shard")
        if not self.output_dir:
            raise errors.ConfigValueError("`output_dir` is empty; expected a directory.")
