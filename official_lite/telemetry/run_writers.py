"""Factories of the writers that a config can name, and the run information passed to them."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import flags, nested_dict
from official_lite.modeling.hyperparams import yaml_io
from official_lite.telemetry import console_writer, text_file_writers, tracking_writers, writer

__all__ = ["RunInfo", "console", "csv", "jsonl", "mlflow", "wandb"]


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """Describes one run.

    Attributes:
      model_dir: The model directory.
      total_steps: The step at which training ends.
      config: The config, as nested mappings of plain values.
      mode: The mode of the run, such as `train_and_eval`.
    """

    model_dir: str
    total_steps: int
    config: Mapping[str, Any]
    mode: str = "train"

    def file(self, name: str) -> str:
        """Return the path of a record file in the model directory.

        An evaluation-only job writes its own file, for example `metrics.eval.json` instead of
        `metrics.json`: it may share the directory with a running training, which rewinds its own
        records when it restarts.
        """
        stem, extension = os.path.splitext(name)
        middle = "" if flags.Mode(self.mode).trains else f".{self.mode}"
        return os.path.join(self.model_dir, f"{stem}{middle}{extension}")

    def flat_config(self) -> dict[str, Any]:
        """Return the config with dotted names, as in overrides.

        Lists become JSON strings, and passwords in URLs are masked.
        """
        flat = nested_dict.flatten_nested_dict(self.config, ".")
        return {path: _plain(value) for path, value in flat.items()}


def _plain(value: object) -> object:
    text = json.dumps(value, default=str) if isinstance(value, list | tuple) else value
    return yaml_io.mask_passwords(text) if isinstance(text, str) else text


def console(run: RunInfo, fields: Sequence[str] | None = None) -> writer.Writer:
    """Build a progress bar on a terminal, or else a `ConsoleWriter` with `fields`."""
    return console_writer.build_console_writer(run.total_steps, fields=fields)


def jsonl(run: RunInfo) -> writer.Writer:
    """Build a `JsonLinesWriter` for `metrics.json` in the model directory."""
    return text_file_writers.JsonLinesWriter(run.file("metrics.json"))


def csv(run: RunInfo) -> writer.Writer:
    """Build a `CsvWriter` for `metrics_train.csv` and so on in the model directory."""
    return text_file_writers.CsvWriter(run.file("metrics.csv"))


def mlflow(
    run: RunInfo, experiment: str | None = None, tracking_uri: str | None = None
) -> writer.Writer:
    """Build an `MlflowWriter` for the run."""
    return tracking_writers.MlflowWriter(
        run.model_dir, experiment=experiment, tracking_uri=tracking_uri, params=run.flat_config()
    )


def wandb(run: RunInfo, project: str | None = None, mode: str | None = None) -> writer.Writer:
    """Build a `WandbWriter` for the run."""
    return tracking_writers.WandbWriter(
        run.model_dir, project=project, mode=mode, config=run.flat_config()
    )
