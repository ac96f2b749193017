"""Keeps the checkpoint of the best evaluation."""

import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite import telemetry
from official_lite.checkpoint import async_checkpoint_manager, directories
from official_lite.common import errors, files
from official_lite.modeling.optimization import ema_optimizer
from official_lite.orbit import actions
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.output_directory import output_directory
from official_lite.orbit.hooks.watched_metric import WatchedMetric


class BestCheckpoint(Hook):
    """Saves a checkpoint whenever an evaluation beats all before it, also those before a restart.

    The folder holds `best_ckpt-<step>` and `info.json`, all metrics of the best evaluation. A
    metric that is not a finite number is never best. With averaged weights it is the average that
    was evaluated and that is saved as the model.

    Args:
      metric: Its name in the logs of an evaluation; `a/b` or `a|b` for nested ones.
      direction: `minimize` or `maximize`.
      directory: The folder, within the run's `model_dir` unless it is absolute.
      max_to_keep: How many checkpoints to keep: the best, and those that were it before.
    """

    def __init__(
        self,
        metric: str,
        direction: str = "maximize",
        directory: str = "best_ckpt",
        max_to_keep: int = 1,
    ) -> None:
        self._metric = WatchedMetric(metric, direction)
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._best = actions.NewBestMetric(self._metric.value, self._metric.maximizes)
        self._manager: tf.train.CheckpointManager | None = None

    def before_train(self) -> None:
        self._open()

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        manager = self._open()
        if not self._best.test(dict(logs)):
            return
        logging.info("Best %s so far: %g.", self._metric.name, self._metric.value(logs))
        average = ema_optimizer.get_moving_average(getattr(self.trainer, "optimizer", None))
        with ema_optimizer.averaged_weights(average):
            manager.save(checkpoint_number=self.controller.step, check_interval=False)
        # After the checkpoint: a crash in between leaves one that is better than `info.json` says.
        self._write_info(logs)
        self._best.commit(dict(logs))

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self._metric.name, "best_value": self._best.best_value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["metric"] == self._metric.name:
            self._best.commit({state["metric"]: state["best_value"]})

    def _open(self) -> tf.train.CheckpointManager:
        """The manager of the best checkpoints; the first time, reads what an earlier run left."""
        if self._manager is not None:
            return self._manager
        if self.controller.checkpoint_manager is None:
            raise errors.ConfigValueError(
                "BestCheckpoint saves what the `checkpoint_manager` of the controller saves, and "
                "there is none; pass one to `Controller`."
            )
        if files.exists(self._info_path()):
            info = json.loads(files.read_text(self._info_path()))
            if self._metric.name.replace("|", "/") in info:
                self._best.commit(info)
        directory = output_directory(self, self._directory)
        self._manager = async_checkpoint_manager.AsyncCheckpointManager(
            self.controller.checkpoint_manager.checkpoint,
            directories.writable_directory(directory, self.controller.strategy),
            max_to_keep=self._max_to_keep,
            checkpoint_name="best_ckpt",
        )
        return self._manager

    def _write_info(self, logs: Mapping[str, Any]) -> None:
        if not directories.is_chief(self.controller.strategy):
            return
        record = telemetry.Record(
            step=self.controller.step, split="", values=telemetry.numbers(logs)
        )
        info = {"best_ckpt_global_step": self.controller.step, **record.flat()}
        files.write_text(self._info_path(), telemetry.to_json(info) + "\n")

    def _info_path(self) -> str:
        return os.path.join(output_directory(self, self._directory), "info.json")
