"""Hooks that keep what training produces: best checkpoints, more checkpoints and exports."""

import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import best_checkpoints, commit, directories
from official_lite.common import errors, suggestions, terminal
from official_lite.modeling import model_export
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import Hook, output_directory
from official_lite.orbit.hooks.watched_metric import WatchedMetric


class BestCheckpoint(Hook):
    """Saves a checkpoint whenever an evaluation beats all previous ones, including earlier runs.

    The directory contains `best_ckpt-<step>`, and `info.json` with all metrics of the best
    evaluation. A resumed run discards the evaluations after its last checkpoint, because they will
    be repeated. A non-finite metric value is never the best. Of two evaluations with the same
    value, the one with the lower `validation_loss` is better. If the optimizer averages the
    weights, the averaged weights are evaluated and saved as the model.

    Args:
      metric: The name of the metric in the evaluation logs. Use `a/b` or `a|b` for nested metrics.
      direction: `minimize` or `maximize`. By default, the name of the metric decides: `loss` and
        `error` are minimized, `accuracy`, `auc` and the like are maximized. If the name does not
        say it, the metric is maximized.
      directory: The output directory, relative to the run's `model_dir` unless it is absolute.
      max_to_keep: The number of checkpoints to keep: the best one, and earlier best ones.
    """

    def __init__(
        self,
        metric: str,
        direction: str = "",
        directory: str = "best_ckpt",
        max_to_keep: int = 1,
    ) -> None:
        self._metric = WatchedMetric(metric, direction, default="maximize")
        self.watched_metric = metric
        self.metric = metric
        self.directory = directory
        self._max_to_keep = max_to_keep
        self._best: best_checkpoints.BestCheckpoints | None = None

    def before_train(self) -> None:
        self._open().rewind(self.controller.step)

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        best = self._open()
        value = self._metric.value(logs)
        if not self._metric.is_improvement(logs, self._best_logs()):
            return
        logging.info("Best %s so far: %g.", self._metric.name, value, extra=terminal.DETAIL)
        step = self.controller.step
        record = telemetry.Record(step=step, split="", values=telemetry.numbers(logs))
        with ema_optimizer.evaluated_state(runner.optimizer_of(self.trainer)):
            best.save(
                _checkpoint_manager(self).checkpoint,
                step,
                json.loads(telemetry.to_json(record.flat())),
            )

    def on_checkpoint(self, path: str) -> None:
        self._open().settle(commit.step_of(path))

    def state_dict(self) -> dict[str, Any]:
        # Called when a state is about to be saved.
        self._open().protect()
        best = self._open().best
        return {
            "metric": self._metric.name,
            "best_value": self._best_value(),
            "best_step": None if best is None else best[best_checkpoints.STEP_KEY],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Only of a training that goes back in the midst of a run; one that starts says where.
        if self._best is not None and self.trainer is not None and "best_step" in state:
            step = state["best_step"]
            self._best.rewind(-1 if step is None else step)

    def _best_logs(self) -> Mapping[str, Any] | None:
        """Return the evaluation to beat, or `None` if there is none for this metric.

        A best value of a different metric does not count.
        """
        best = self._open().best or {}
        return best if best.get(self._metric.name.replace("|", "/")) is not None else None

    def _best_value(self) -> float | None:
        best = self._best_logs()
        return None if best is None else self._metric.value(best)

    def _open(self) -> best_checkpoints.BestCheckpoints:
        """Return the best checkpoints. The first call reads the results of earlier runs."""
        if self._best is None:
            _checkpoint_manager(self)
            self._best = best_checkpoints.BestCheckpoints(
                output_directory(self, self.directory),
                max_to_keep=self._max_to_keep,
                strategy=self.controller.strategy,
            )
        return self._best


class PeriodicCheckpoint(Hook):
    """Saves a checkpoint every `every_n_steps` steps, and at the end.

    These checkpoints are in addition to those of the checkpoint manager's interval; each step is
    saved at most once. The controller saves them after the evaluation of the step, so they include
    the state of the hooks after that evaluation.

    Args:
      every_n_steps: The interval.

    Raises:
      errors.ConfigValueError: The interval is not positive.
    """

    def __init__(self, every_n_steps: int) -> None:
        if every_n_steps < 1:
            raise errors.ConfigValueError(
                f"`every_n_steps` of PeriodicCheckpoint is {every_n_steps}; it must be at least 1."
            )
        self._interval = every_n_steps

    def before_train(self) -> None:
        _checkpoint_manager(self)
        self.controller.checkpoint_every(self._interval)


class ExportModel(Hook):
    """Exports the model to `<directory>/<step>.keras`, or as a SavedModel to `<directory>/<step>`.

    An export is written under a temporary name first, so every export under its final name is
    complete. If the optimizer averages the weights, the averaged weights are exported.

    Args:
      every_n_steps: The interval. 0 exports only at the end. Successful training always exports at
        the end.
      format: `keras` for `keras.models.load_model`, `tf_saved_model` for serving, `litert`, or
        `onnx`.
      subdir: The output directory, relative to the run's `model_dir` unless it is absolute.

    Raises:
      errors.ConfigValueError: The format is unknown.
    """

    def __init__(
        self, every_n_steps: int = 0, format: str = "keras", subdir: str = "export"
    ) -> None:
        if format not in model_export.FORMATS:
            raise errors.ConfigValueError(
                f"`format` of ExportModel is {format!r}. "
                + suggestions.did_you_mean(str(format), model_export.FORMATS)
            )
        self.every_n_steps = every_n_steps
        self._format = format
        self._subdir = subdir
        self._exported_step: int | None = None

    def before_train(self) -> None:
        self._model()
        output_directory(self, self._subdir)

    def after_step(self) -> None:
        self._export()

    def after_train(self, success: bool) -> None:
        is_new = self._exported_step != self.controller.step
        if success and is_new and not self.controller.is_interrupted:
            self._export()

    def _export(self) -> None:
        name = f"{self.controller.step}{model_export.FORMATS[self._format]}"
        path = os.path.join(self._directory, name)
        average = ema_optimizer.averaged_weights(runner.optimizer_of(self.trainer))
        # A model that puts numbers into the event storage would be saved with the storage.
        with average, self.controller.storage.muted():
            model_export.write_model(self._model(), path, self._format)
        self._exported_step = self.controller.step
        logging.info("Exported %s.", path)

    @functools.cached_property
    def _directory(self) -> str:
        # Every worker takes part, since reading a variable may be collective; the chief's is kept.
        return directories.writable_directory(
            output_directory(self, self._subdir), self.controller.strategy
        )

    def _model(self) -> keras.Model:
        model = runner.model_of(self.trainer)
        if not isinstance(model, keras.Model):
            raise errors.ConfigValueError(
                "ExportModel requires a trainer whose `model` is a Keras model; the `model` of "
                f"{type(self.trainer).__name__} is {type(model).__name__}."
            )
        return model


def _checkpoint_manager(hook: Hook) -> tf.train.CheckpointManager:
    manager = hook.controller.checkpoint_manager
    if manager is None:
        raise errors.ConfigValueError(
            f"{type(hook).__name__} requires a `checkpoint_manager`. Pass one to `Controller`."
        )
    return manager
