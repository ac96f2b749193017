"""A hook that ends training when an evaluation metric stops improving."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from official_lite.common import errors
from official_lite.orbit.hooks.hook import Hook
from official_lite.orbit.hooks.watched_metric import WatchedMetric


class EarlyStopping(Hook):
    """Requests a stop after `patience` consecutive evaluations without an improvement.

    The state is stored in checkpoints. A run that was killed and resumed therefore stops at the
    same step as an uninterrupted one. A run that was stopped early does not continue when it is
    started again, unless `patience` is increased. A non-finite metric value is never an
    improvement.

    Args:
      metric: The name of the metric in the evaluation logs. Use `a/b` or `a|b` for nested metrics.
      patience: The number of evaluations without an improvement that ends training.
      min_delta: An improvement must be larger than this value.
      direction: `minimize` or `maximize`. By default, the name of the metric decides: `loss` and
        `error` are minimized, `accuracy`, `auc` and the like are maximized. If the name does not
        say it, the metric is minimized.
      baseline: No evaluation counts as an improvement until the metric beats this value.
      start_step: Evaluations before this step are ignored.

    Raises:
      errors.ConfigValueError: An argument is out of range.
    """

    def __init__(
        self,
        metric: str,
        patience: int,
        min_delta: float = 0.0,
        direction: str = "",
        baseline: float | None = None,
        start_step: int = 0,
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise errors.ConfigValueError(
                f"EarlyStopping requires `patience` >= 1 and `min_delta` >= 0; got {patience} and "
                f"{min_delta}."
            )
        self._metric = WatchedMetric(metric, direction, default="minimize")
        self.watched_metric = metric
        self._patience = patience
        self._min_delta = min_delta
        self._baseline = baseline
        self._start_step = start_step
        self.best_value: float | None = None
        self.best_step: int | None = None
        self._bad_evaluations = 0
        self._evaluated_step: int | None = None

    def before_train(self) -> None:
        self._stop_if_out_of_patience()

    def after_eval(self, logs: Mapping[str, Any]) -> None:
        value = self._metric.value(logs)
        # The same step is evaluated again when a finished run is restarted.
        if self.controller.step < self._start_step or self.controller.step == self._evaluated_step:
            return
        self._evaluated_step = self.controller.step
        self._bad_evaluations += 1
        if self._metric.is_better(value, self.best_value, self._min_delta):
            self.best_value, self.best_step = value, self.controller.step
            if self._metric.is_better(value, self._baseline, self._min_delta):
                self._bad_evaluations = 0
        self._stop_if_out_of_patience()

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self._metric.name,
            "best_value": self.best_value,
            "best_step": self.best_step,
            "bad_evaluations": self._bad_evaluations,
            "evaluated_step": self._evaluated_step,
            "stopped": self._is_out_of_patience(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["metric"] != self._metric.name:
            logging.warning(
                "Early stopping now monitors `%s` instead of `%s`, so its state is reset.",
                self._metric.name,
                state["metric"],
            )
            return
        self.best_value, self.best_step = state["best_value"], state["best_step"]
        self._bad_evaluations = state["bad_evaluations"]
        self._evaluated_step = state["evaluated_step"]

    def _is_out_of_patience(self) -> bool:
        return self._bad_evaluations >= self._patience

    def _stop_if_out_of_patience(self) -> None:
        if not self._is_out_of_patience():
            return
        best = (
            "" if self.best_value is None else f" on {self.best_value:g} of step {self.best_step}"
        )
        self.controller.request_stop(
            f"early stopping: `{self._metric.name}` has not improved{best} in "
            f"{self._bad_evaluations} evaluations"
        )
