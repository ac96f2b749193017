"""The export of the checkpoint with the best evaluation, which is kept across restarts."""

import json
import math
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import orbit
from official_lite.checkpoint import best_checkpoints, latest
from official_lite.common import errors, files, nested_dict, terminal
from official_lite.config import phase_configs
from official_lite.core import base_task, base_trainer, config_definitions
from official_lite.orbit.hooks import watched_metric

__all__ = [
    "BestCheckpointExporter",
    "check_directories",
    "check_hooks",
    "check_metric",
    "find_best_checkpoint",
    "maybe_create_best_ckpt_exporter",
    "read_best_logs",
]


BEST_CHECKPOINT_NAME = best_checkpoints.BEST_CHECKPOINT_NAME


class BestCheckpointExporter:
    """Saves a checkpoint whenever an evaluation is better than all earlier ones.

    Of two evaluations with the same value, the one with the lower `validation_loss` is better. The
    directory holds one checkpoint, `best_ckpt-<step>`, and `info.json` with all metrics of that
    evaluation; see `checkpoint.best_checkpoints`. A non-finite metric is never the best.

    A run that resumes calls `rewind` to restore the best result at its step. `protect` keeps the
    current best checkpoint, to which the training may have to return, while the next training
    checkpoint is written; `settle` releases it afterwards.

    Args:
        export_dir: The directory; results of an earlier run in it are read.
        metric_name: The metric to compare; `a|b` is key `b` of the dictionary under `a`.
        metric_comp: Whether a `higher` or a `lower` value is better. If it is empty, the name of
            the metric decides, as in the hook `early_stopping`; if the name does not say it,
            `higher` is used.
    """

    def __init__(self, export_dir: str, metric_name: str, metric_comp: str) -> None:
        if metric_comp not in ("lower", "higher", ""):
            raise errors.ConfigValueError(
                f"`best_checkpoint_metric_comp` must be `higher`, `lower` or empty, got "
                f"{metric_comp!r}."
            )
        self._export_dir = export_dir
        self._metric = watched_metric.WatchedMetric(metric_name, metric_comp, default="higher")
        files.makedirs(export_dir)
        self._best = best_checkpoints.BestCheckpoints(export_dir)
        self._best_ckpt_logs = self._read_best_logs()

    @property
    def best_ckpt_logs(self) -> dict[str, Any] | None:
        """All metrics of the best evaluation so far."""
        return self._best_ckpt_logs

    @property
    def best_metric_value(self) -> float | None:
        """The best value so far; None before the first evaluation with a finite value."""
        logs = self._best_ckpt_logs
        return None if logs is None else self._metric.value(logs)

    @property
    def best_ckpt_logs_path(self) -> str:
        return self._best.info_path

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
        if not self._metric.is_improvement(eval_logs, self.best_ckpt_logs):
            # An interrupted export may have left the `info.json` of the previous best checkpoint.
            self._best.write_info()
            return False
        logging.info("Best %s so far: %g.", self._metric.name, value, extra=terminal.DETAIL)
        self._best.save(
            checkpoint, int(global_step), _json_scalars(eval_logs), writes_info=write_logs
        )
        self._best_ckpt_logs = dict(eval_logs)
        return True

    def export_best_eval_metric(self, eval_logs: Mapping[str, Any], global_step: int) -> None:
        """Write the scalar metrics and the step to `info.json`."""
        record = {**_json_scalars(eval_logs), best_checkpoints.STEP_KEY: int(global_step)}
        files.write_text(self.best_ckpt_logs_path, json.dumps(record, indent=4) + "\n")

    def rewind(self, step: int) -> None:
        """Discard the evaluations after `step`, from which training resumes."""
        self._best.rewind(step)
        self._best_ckpt_logs = self._read_best_logs()

    def protect(self) -> None:
        """Protect the best checkpoint from deletion while training saves a checkpoint."""
        self._best.protect()

    def settle(self, step: int) -> None:
        """Release checkpoints that only states before `step` need, now that `step` is saved."""
        self._best.settle(step)

    def _read_best_logs(self) -> dict[str, Any] | None:
        return None if self._best.best is None else dict(self._best.best)


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


def find_best_checkpoint(params: config_definitions.ExperimentConfig, model_dir: str) -> str:
    """Return the best checkpoint of a run.

    Raises:
        errors.CheckpointError: If there is none.
    """
    directory = os.path.join(model_dir, params.trainer.best_checkpoint_export_subdir)
    path = latest.latest_checkpoint(directory)
    if path is None:
        raise errors.CheckpointError(
            f"There is no best checkpoint in {directory}. Train with evaluations first."
        )
    return path


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
            f"`{params.trainer.best_checkpoint_eval_metric}`."
        )
    return best


def check_metric(
    params: config_definitions.ExperimentConfig, trainer: orbit.AbstractTrainer
) -> None:
    """Check before training that the evaluation reports the metric, if this can be known.

    Otherwise the first evaluation shows whether it does.

    Raises:
        errors.UnknownNameError: If the evaluation does not report the metric.
    """
    name = params.trainer.best_checkpoint_eval_metric
    if name:
        _require_metric(trainer, name, "`trainer.best_checkpoint_eval_metric`")


def check_hooks(
    trainer: orbit.AbstractTrainer, hooks: Sequence[orbit.Hook], *, evaluates: bool
) -> None:
    """Check before training that evaluations report the metrics that hooks watch.

    Args:
        trainer: The trainer.
        hooks: The hooks of the run.
        evaluates: Whether the run evaluates; if not, the hooks have no effect, with a warning.

    Raises:
        errors.UnknownNameError: If the evaluation does not report a metric.
    """
    for hook in hooks:
        if not (name := hook.watched_metric):
            continue
        kind = type(hook).__name__
        if not evaluates:
            logging.warning(
                "The hook %s watches the metric `%s`, but this run has no evaluations, so the hook "
                "has no effect. Use the mode `train_and_eval`.",
                kind,
                name,
            )
        _require_metric(trainer, name, f"The metric of the hook {kind}")


def _require_metric(trainer: orbit.AbstractTrainer, name: str, field: str) -> None:
    if not _reports_only_its_metrics(trainer):
        return
    known = [metric.name for metric in trainer.validation_metrics]
    known.append(trainer.validation_loss.name)
    best = trainer.config.trainer.best_checkpoint_eval_metric
    if name not in known and not (best and name == f"best_{best}"):
        raise errors.UnknownNameError(
            f"{field} is {name!r}, which the evaluation does not report. "
            f"{watched_metric.did_you_mean(name, known)}"
        )


def check_directories(
    params: config_definitions.ExperimentConfig,
    model_dir: str,
    hooks: Sequence[orbit.hooks.BestCheckpoint],
) -> None:
    """Check that all best checkpoints of a run have a directory of their own.

    If two shared a directory, they would delete each other's checkpoints.

    Args:
        params: The config of the run.
        model_dir: The model directory.
        hooks: The hooks that keep a best checkpoint.

    Raises:
        errors.ConfigValueError: If two directories are the same or one lies inside the other, or if
            one is a directory of the run itself.
    """
    trainer = params.trainer
    # The run's own directories. An optional one may have no name.
    taken = {
        "train": "the event files of training",
        trainer.validation_summary_subdir: "the event files of evaluations",
        "ema_checkpoints": "the averaged weights",
        "swa": "the weights of the hook `stochastic_weight_averaging`",
    }
    root = _real(model_dir, "")
    owners = {_real(model_dir, name): owner for name, owner in taken.items() if name}
    keepers = []
    if trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric:
        metric = trainer.best_checkpoint_eval_metric
        owner = (
            "`trainer.best_checkpoint_export_subdir`, which keeps the checkpoint with the best "
            f"`{metric}`"
        )
        keepers.append((owner, trainer.best_checkpoint_export_subdir))
    keepers += [(f"the hook `best_checkpoint` on `{h.metric}`", h.directory) for h in hooks]
    for owner, directory in keepers:
        path = _real(model_dir, directory)
        other = next((owners[each] for each in owners if _overlap(path, each)), None)
        if path == root:
            other = "the checkpoints of the run"
        if other is not None:
            raise errors.ConfigValueError(
                f"The directory `{directory}` would be shared by {other} and {owner}. Use "
                "separate directories, none inside another: "
                "`trainer.best_checkpoint_export_subdir`, or `directory` of the hook."
            )
        owners[path] = owner


def _real(model_dir: str, directory: str) -> str:
    """Return the resolved path of a directory of the run, for comparison with another."""
    path = directory if files.is_remote(directory) else os.path.join(model_dir, directory)
    return posixpath.normpath(path) if files.is_remote(path) else os.path.realpath(path)


def _overlap(path: str, other: str) -> bool:
    return phase_configs.lies_in(path, other) or phase_configs.lies_in(other, path)


def _reports_only_its_metrics(trainer: orbit.AbstractTrainer) -> bool:
    """Return whether no custom code decides which results an evaluation has."""
    if not isinstance(trainer, base_trainer.Trainer) or not trainer.evaluates:
        return False
    default = (
        (type(trainer), base_trainer.Trainer, "evaluate"),
        (type(trainer), base_trainer.Trainer, "eval_end"),
        (type(trainer.task), base_task.Task, "reduce_aggregated_logs"),
    )
    return (
        all(getattr(own, name) is getattr(base, name) for own, base, name in default)
        and not getattr(trainer.model, "compiled", False)
        # A custom metric may return a dictionary, whose keys are then the names.
        and all(_is_of_keras(metric) for metric in trainer.validation_metrics)
    )


def _is_of_keras(metric: Any) -> bool:
    return bool(type(metric).result.__module__.startswith("keras."))


def _is_scalar(value: tf.Tensor | float) -> bool:
    # Images and tables of an evaluation stay out of a small text file.
    return len(getattr(orbit.utils.get_value(value), "shape", ())) == 0


def _json_scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
    scalars = nested_dict.filter_leaf_nested_dict(logs, _is_scalar)
    return dict(nested_dict.cast_leaf_nested_dict(scalars, _json_number))


def _json_number(value: tf.Tensor | float) -> float | None:
    number = float(orbit.utils.get_value(value))
    return number if math.isfinite(number) else None
