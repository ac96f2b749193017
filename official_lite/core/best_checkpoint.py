"""The export of the checkpoint with the best evaluation, which is kept across restarts."""

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import best_checkpoints, latest
from official_lite.common import errors, files, nested_dict, terminal
from official_lite.core import config_definitions
from official_lite.orbit.hooks import saving_and_stopping

BEST_CHECKPOINT_NAME = best_checkpoints.BEST_CHECKPOINT_NAME


class BestCheckpointExporter(best_checkpoints.BestCheckpoints):
    """Saves a checkpoint whenever an evaluation is better than all earlier ones.

    If two evaluations have the same metric value, the one with the lower `validation_loss` is
    better. The directory holds one checkpoint, `best_ckpt-<step>`, and `info.json` with all metrics
    of that evaluation. A non-finite metric is never the best. The best evaluation of an earlier run
    is ignored if it lacks the metric.

    Args:
        export_dir: The directory; results of an earlier run in it are read.
        metric_name: The metric to compare; `a|b` is key `b` of the dictionary under `a`.
        metric_comp: Whether a `higher` or a `lower` value is better. If it is empty, the name of
            the metric decides, as in the hook `early_stopping`; if the name suggests no direction,
            `higher` is used.

    Attributes:
        may_export: Returns whether this process may change the directory. If not, the exporter only
            reads which evaluation is the best so far.
    """

    def __init__(self, export_dir: str, metric_name: str, metric_comp: str) -> None:
        if metric_comp not in ("lower", "higher", ""):
            raise errors.ConfigValueError(
                f"`best_checkpoint_metric_comp` must be `higher`, `lower` or empty; got "
                f"{metric_comp!r}."
            )
        self._export_dir = export_dir
        self._metric = saving_and_stopping.WatchedMetric(metric_name, metric_comp, default="higher")
        self.may_export: Callable[[], bool] = lambda: True
        files.makedirs(export_dir)
        super().__init__(export_dir)

    @property
    def best_ckpt_logs(self) -> dict[str, Any] | None:
        """The scalar metrics of the best evaluation so far, and its step."""
        return None if self.best is None else dict(self.best)

    @property
    def best_metric_value(self) -> float | None:
        """The best value so far; None before the first evaluation with a finite value."""
        best = self._metric.record_with_value(self.best)
        return None if best is None else self._metric.value(best)

    @property
    def best_ckpt_logs_path(self) -> str:
        return self.info_path

    @property
    def best_ckpt_path(self) -> str | None:
        """The path of the best checkpoint; None if there is none yet."""
        return latest.latest_checkpoint(self._export_dir)

    def maybe_export_checkpoint(
        self,
        checkpoint: tf.train.Checkpoint,
        eval_logs: Mapping[str, Any],
        global_step: int,
        write_logs: bool = True,
    ) -> bool:
        """Save the checkpoint if the evaluation is the best so far, and return whether it is.

        Raises:
            errors.UnknownKeyError: If the metric is not among the logs.
        """
        value = self._metric.value(eval_logs)
        if not self.may_export():
            self.reload()
            return False
        best = self._metric.record_with_value(self.best)
        if not self._metric.is_improvement(eval_logs, best):
            # Rewrite `info.json`, because an interrupted export may have left the file of an
            # earlier checkpoint.
            self.write_info()
            return False
        logging.info("Best %s so far: %g.", self._metric.name, value, extra=terminal.DETAIL)
        self.save(checkpoint, int(global_step), _json_scalars(eval_logs), writes_info=write_logs)
        return True

    def rewind(self, step: int) -> None:
        """Discard all evaluations after `step`; see `BestCheckpoints`."""
        if self.may_export():
            super().rewind(step)
        else:
            self.reload()

    def protect(self) -> None:
        """Keep the current best checkpoint from now on; see `BestCheckpoints`."""
        if self.may_export():
            super().protect()

    def settle(self, step: int) -> None:
        """Stop protecting files that only states before `step` need; see `BestCheckpoints`."""
        if self.may_export():
            super().settle(step)

    def export_best_eval_metric(self, eval_logs: Mapping[str, Any], global_step: int) -> None:
        """Write the scalar metrics and the step to `info.json`."""
        record = {**_json_scalars(eval_logs), best_checkpoints.STEP_KEY: int(global_step)}
        files.write_text(self.info_path, json.dumps(record, indent=4) + "\n")


def maybe_create_best_ckpt_exporter(
    params: config_definitions.ExperimentConfig, data_dir: str
) -> BestCheckpointExporter | None:
    """Create the exporter of a config in a subdirectory of `data_dir`; None if it is disabled."""
    trainer = params.trainer
    if not (
        data_dir and trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric
    ):
        return None
    metric, comp = trainer.best_checkpoint_eval_metric, trainer.best_checkpoint_metric_comp
    export_dir = os.path.join(data_dir, trainer.best_checkpoint_export_subdir)
    return BestCheckpointExporter(export_dir, metric, comp)


def read_best_logs(
    params: config_definitions.ExperimentConfig, model_dir: str
) -> Mapping[str, Any]:
    """Return the metrics of the best checkpoint of a run; None stands for a non-finite value.

    Raises:
        errors.CheckpointError: If there is none.
    """
    directory = os.path.join(model_dir, params.trainer.best_checkpoint_export_subdir)
    best = best_checkpoints.BestCheckpoints(directory).best
    if best is None:
        raise errors.CheckpointError(
            f"There is no best checkpoint in {directory}: no evaluation has had a finite value of "
            f"`{params.trainer.best_checkpoint_eval_metric}`. Train with evaluations first, for "
            "example in the mode `train_and_eval`."
        )
    return best


def _is_scalar(value: tf.Tensor | float) -> bool:
    # Exclude images and tables, because `info.json` is a small text file.
    return bool(np.size(orbit.utils.get_value(value)) == 1)


def _json_scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
    scalars = nested_dict.filter_leaf_nested_dict(logs, _is_scalar)
    return dict(nested_dict.cast_leaf_nested_dict(scalars, _json_number))


def _json_number(value: tf.Tensor | float) -> float | None:
    number = float(np.reshape(orbit.utils.get_value(value), ()))
    return number if math.isfinite(number) else None
