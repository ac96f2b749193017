"""The hook that reports each evaluation of a trial to the study."""

from collections.abc import Mapping
from typing import Any

import keras

from official_lite.modeling import model_summary
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.saving_and_stopping import WatchedMetric
from official_lite.search import trial_run

__all__ = ["ReportTrial", "with_num_parameters"]


class ReportTrial(Hook):
    """A hook that reports the study's metric after each evaluation and stops pruned trials.

    A study adds this hook to the config of each trial. Outside of a study the hook does nothing, so
    the `params.yaml` of a trial can be used to repeat the training on its own.
    """

    every_n_steps = 0

    def __init__(self) -> None:
        self._trial = trial_run.current_trial()
        self._was_pruned = False

    def before_train(self) -> None:
        if self._trial is None:
            return
        self._trial.loop = self.controller
        if self._was_pruned:
            # The process was killed after it pruned the trial and before it recorded the outcome.
            self._trial.is_pruned = True
            self.controller.request_stop("pruned: before the run was resumed")

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        if self._trial is None or self._trial.is_pruned:
            return
        config = self._trial.config
        # Report only for a single metric: Optuna does not support intermediate values with several
        # objectives.
        if len(config.metrics) == 1:
            watched = WatchedMetric(config.metrics[0], config.directions[0])
            sized = with_num_parameters(logs, runner.model_of(self.trainer))
            # The final evaluation of `train_and_post_eval` runs after training, when pruning saves
            # nothing.
            is_training = self._trial.loop is not None
            self._trial.report(watched.value(sized), self.controller.step, may_prune=is_training)

    def after_train(self, success: bool) -> None:
        if self._trial is not None:
            self._trial.loop = None

    def state_dict(self) -> dict[str, Any]:
        return {"is_pruned": self._was_pruned or bool(self._trial and self._trial.is_pruned)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._was_pruned = bool(state["is_pruned"])


def with_num_parameters(logs: Mapping[str, Any], model: keras.Model | None) -> Mapping[str, Any]:
    """Return the metrics of an evaluation, plus `num_parameters` if there is a model."""
    if model is None:
        return logs
    return {"num_parameters": float(model_summary.try_count_params(model) or 0), **logs}
