"""The writers as a config asks for them: a name, a run, and what the config says besides."""

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
    """A progress bar on a terminal, else lines of the log; `fields` as in `ConsoleWriter`."""
    return progress_writer.build_console_writer(run.total_steps, fields=fields)


def jsonl(run: RunInfo) -> writer.Writer:
    """`metrics.json` in the run's folder, a JSON object a line."""
    return json_lines_writer.JsonLinesWriter(run.file("metrics.json"))


def csv(run: RunInfo) -> writer.Writer:
    """`metrics_train.csv` and so on in the run's folder."""
    return csv_writer.CsvWriter(run.file("metrics.csv"))


def mlflow(
    run: RunInfo, experiment: str | None = None, tracking_uri: str | None = None
) -> writer.Writer:
    """A run of MLflow; see `MlflowWriter`."""
    return mlflow_writer.MlflowWriter(
        run.model_dir, experiment=experiment, tracking_uri=tracking_uri, params=run.flat_config()
    )


def wandb(run: RunInfo, project: str | None = None, mode: str | None = None) -> writer.Writer:
    """A run of Weights & Biases; see `WandbWriter`."""
    return wandb_writer.WandbWriter(
        run.model_dir, project=project, mode=mode, config=run.flat_config()
    )
