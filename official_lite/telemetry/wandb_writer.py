"""A writer that logs records to Weights & Biases."""

import os
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from official_lite.common import errors, files
from official_lite.telemetry import writer
from official_lite.telemetry.record import Histogram, Record

_STEP = "global_step"


class WandbWriter(writer.Writer):
    """Logs to one Weights & Biases run: values, images and histograms named `split/name`.

    The run ID is stored in the file `wandb_run_id` in `model_dir`, so that training that is
    restarted resumes the same W&B run. Curves use `global_step` as their x-axis: W&B's own step
    can't decrease, but the training step does when an earlier checkpoint is restored. If the writer
    is closed while an exception is propagating, the run is marked as failed.

    Args:
      model_dir: Directory that holds the run ID and, if it is local, W&B's files. Its name becomes
        the name of the run.
      project: The W&B project. Defaults to `WANDB_PROJECT`, or else W&B's own default.
      mode: `online`, `offline` (upload later with `wandb sync`) or `disabled`. Defaults to
        `WANDB_MODE`, or else `online` if `WANDB_API_KEY` is set and `offline` if not.
      config: The config of the run.

    Raises:
      errors.ConfigValueError: W&B is not installed.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        project: str | None = None,
        mode: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._wandb = _import_wandb()
        self._model_dir = os.fspath(model_dir)
        self._project = project
        self._mode = mode or _default_mode()
        self._config = dict(config or {})
        self._run: Any = self._start()

    def write(self, record: Record) -> None:
        self._run = self._run or self._start()
        values = {
            **record.flat(),
            **{name: self._wandb.Image(image) for name, image in record.images.items()},
            **{name: self._to_histogram(found) for name, found in record.histograms.items()},
        }
        named = {f"{record.split}/{name}": value for name, value in values.items()}
        self._run.log({**named, _STEP: record.step})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if sys.exception() is None else 1)
            self._run = None

    def _start(self) -> Any:
        run = self._wandb.init(
            id=_read_or_create_id(self._model_dir),
            name=os.path.basename(os.path.abspath(self._model_dir)),
            project=self._project,
            mode=self._mode,
            config=self._config,
            allow_val_change=True,
            dir=None if files.is_remote(self._model_dir) else self._model_dir,
            resume="allow",
            reinit="create_new",
        )
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)
        return run

    def _to_histogram(self, found: Histogram) -> Any:
        return self._wandb.Histogram(np_histogram=(np.asarray(found.counts), found.edges))


def _import_wandb() -> Any:
    # W&B is optional and slow to import.
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "The writer `wandb` requires Weights & Biases: `pip install official-lite[wandb]`."
        ) from error
    return wandb


def _default_mode() -> str:
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if "WANDB_API_KEY" in os.environ:
        return "online"
    logging.info("W&B runs offline, because neither WANDB_MODE nor WANDB_API_KEY is set.")
    return "offline"


def _read_or_create_id(model_dir: str) -> str:
    path = os.path.join(model_dir, "wandb_run_id")
    if files.exists(path):
        return files.read_text(path).strip()
    run_id = uuid.uuid4().hex
    files.makedirs(model_dir)
    files.write_text(path, run_id)
    return run_id
