"""Factories of the writers that a config can name.

Each takes the run and the options given in the config.
"""

from collections.abc import Sequence

from official_lite.telemetry import (
    csv_writer,
    json_lines_writer,
    mlflow_writer,
    progress_writer,
    wandb_writer,
    writer,
)
from official_lite.telemetry.run_info import RunInfo

__all__ = ["console", "csv", "jsonl", "mlflow", "wandb"]


def console(run: RunInfo, fields: Sequence[str] | None = None) -> writer.Writer:
    """Build a progress bar on a terminal, or else a `ConsoleWriter` with `fields`."""
    return progress_writer.build_console_writer(run.total_steps, fields=fields)


def jsonl(run: RunInfo) -> writer.Writer:
    """Build a `JsonLinesWriter` for `metrics.json` in the model directory."""
    return json_lines_writer.JsonLinesWriter(run.file("metrics.json"))


def csv(run: RunInfo) -> writer.Writer:
    """Build a `CsvWriter` for `metrics_train.csv` and so on in the model directory."""
    return csv_writer.CsvWriter(run.file("metrics.csv"))


def mlflow(
    run: RunInfo, experiment: str | None = None, tracking_uri: str | None = None
) -> writer.Writer:
    """Build an `MlflowWriter` for the run."""
    return mlflow_writer.MlflowWriter(
        run.model_dir, experiment=experiment, tracking_uri=tracking_uri, params=run.flat_config()
    )


def wandb(run: RunInfo, project: str | None = None, mode: str | None = None) -> writer.Writer:
    """Build a `WandbWriter` for the run."""
    return wandb_writer.WandbWriter(
        run.model_dir, project=project, mode=mode, config=run.flat_config()
    )
