"""Metrics that hooks watch: where they are in the logs, which direction is better, early stops."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from official_lite.common import errors, nested_dict, suggestions, terminal
from official_lite.orbit import utils
from official_lite.orbit.hooks.hook import Hook

_MAXIMIZES = {
    "minimize": False,
    "min": False,
    "lower": False,
    "maximize": True,
    "max": True,
    "higher": True,
}

# The words in the name of a metric that say which direction is better. The first pattern decides if
# a name has words of both, such as `brier_score`.
_LOWER = re.compile(
    "loss|losses|err|error|errors|mae|mse|rmse|mape|smape|msle|perplexity|ppl|bits|bpc|bpb|bpd"
    "|divergence|kl|distance|cost|regret|entropy|crossentropy|nll|hinge|logcosh|poisson|fid|kid"
    "|wer|cer|ter|eer|ece|brier|deviance|mistakes|false|misses|penalty|hausdorff"
)
_HIGHER = re.compile(
    "acc|accuracy|auc|auroc|auprc|roc|prc|ap|map|ar|mar|precision|recall|f1|f2|fbeta|fmeasure"
    "|fscore|score|iou|io|miou|dice|jaccard|bleu|rouge|meteor|cider|spice|r2|kappa|mcc|psnr|ssim"
    "|ndcg|dcg|mrr|hit|hits|reward|return|correlation|corr|similarity|sensitivity|specificity"
    "|likelihood|top|correct|true|pck"
)


def maximizes(name: str, direction: str = "", *, default: str) -> bool:
    """Return whether larger values of a metric are better.

    Args:
      name: The name of the metric. For nested metrics, the last part of it counts.
      direction: `minimize` (also `min`, `lower`) or `maximize` (also `max`, `higher`). If it is
        empty, the words in the name decide: `loss` and `error` are minimized; `acc`, `auc`, `f1`
        and the like are maximized.
      default: The direction if neither says it, which is used with a warning.

    Raises:
      errors.ConfigValueError: The direction is unknown.
    """
    if direction and direction not in _MAXIMIZES:
        raise errors.ConfigValueError(
            f"The direction of `{name}` is {direction!r}; expected `minimize` or `maximize`. "
            + suggestions.did_you_mean(str(direction), _MAXIMIZES)
        )
    said = _said_by(name)
    if not direction and said is None:
        terminal.warn_once(
            "The name of the metric `%s` does not say whether higher or lower values are better, "
            "so `%s` is used. Set the direction: `direction` of a hook, or "
            "`trainer.best_checkpoint_metric_comp`.",
            name,
            default,
        )
    if direction and said not in (None, _MAXIMIZES[direction]):
        terminal.warn_once(
            "The direction of the metric `%s` is set to `%s`, but by its name, %s values are "
            "better. If the name is right, change the direction or leave it out.",
            name,
            direction,
            "higher" if said else "lower",
        )
    return _MAXIMIZES[direction or default] if direction or said is None else said


def _said_by(name: str) -> bool | None:
    """Return whether a name says that higher values are better; None if it says nothing."""
    last = re.split(r"[/|]", name)[-1]
    words = re.findall(r"[a-z]+\d*", re.sub(r"([a-z])([A-Z])", r"\1_\2", last).lower())
    # The number may be a part of the word, as in `f1`, or not, as in `auc_1` and `hits10`.
    found = {*words, *(word.rstrip("0123456789") for word in words)}
    if any(map(_LOWER.fullmatch, found)) or {"negative", "log"} <= found:
        return False
    return True if any(map(_HIGHER.fullmatch, found)) else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests a metric of an evaluation, also for Keras' `val_` names."""
    names = list(known)
    bare = name.removeprefix("val_")
    for candidate in (bare, f"validation_{bare}"):
        if candidate in names and candidate != name:
            return f"Did you mean `{candidate}`?"
    return suggestions.did_you_mean(name, names)


def find_metric(name: str, logs: Mapping[str, Any]) -> Any:
    """Return the value of a metric in the logs of an evaluation.

    Args:
      name: A key of the logs. `a/b` or `a|b` means key `b` of the dictionary under `a`.
      logs: The logs.

    Raises:
      errors.UnknownKeyError: The metric is missing.
    """
    flat = nested_dict.flatten_nested_dict(logs, "/")
    found = name if name in flat else name.replace("|", "/")
    if found not in flat:
        raise errors.UnknownKeyError(
            f"The evaluation has no metric `{name}`. {did_you_mean(found, flat)}"
        )
    return flat[found]


class WatchedMetric:
    """Finds a metric in the logs of an evaluation and compares its values.

    Args:
      name: A key of the logs. `a/b` or `a|b` means key `b` of the dictionary under `a`.
      direction: As in `maximizes`.
      default: As in `maximizes`.

    Raises:
      errors.ConfigValueError: The direction is unknown.
    """

    def __init__(self, name: str, direction: str = "", *, default: str = "maximize") -> None:
        self.name = name
        self.maximizes = maximizes(name, direction, default=default)

    def value(self, logs: Mapping[str, Any]) -> float:
        """Return the value of the metric in `logs`.

        Raises:
          errors.UnknownKeyError: The metric is missing.
          errors.ConfigTypeError: The metric is not a single number.
        """
        # JSON files record a value that is not finite as null, which becomes NaN here.
        array = np.asarray(utils.get_value(find_metric(self.name, logs)), dtype=float)
        if array.size != 1:
            raise errors.ConfigTypeError(
                f"`{self.name}` has the shape {array.shape}; expected a single number."
            )
        return float(array.reshape(()))

    def is_improvement(self, logs: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
        """Return whether an evaluation beats the best one so far.

        If the metric is the same in both, the lower `validation_loss` beside the metric decides.

        Args:
          logs: The logs of the evaluation.
          best: The logs of the best evaluation; None if there is none.
        """
        value = self.value(logs)
        than = None if best is None else self.value(best)
        return self.is_better(value, than) or (
            best is not None and value == than and _loss(self.name, logs) < _loss(self.name, best)
        )

    def is_better(self, value: float, than: float | None, by_more_than: float = 0.0) -> bool:
        """Return whether `value` beats `than`.

        Any finite value beats `None` and a value that is not finite. NaN and infinity never beat
        anything.

        Args:
          value: The measured value.
          than: The value to compare with.
          by_more_than: Smaller or equal differences do not count.
        """
        if not np.isfinite(value):
            return False
        if than is None or not np.isfinite(than):
            return True
        gain = value - than if self.maximizes else than - value
        return gain > by_more_than


def _loss(name: str, logs: Mapping[str, Any]) -> float:
    """Return the validation loss beside a metric; NaN, which beats nothing, if there is none."""
    *parents, _ = re.split(r"[/|]", name)
    flat = nested_dict.flatten_nested_dict(logs, "/")
    value = utils.get_value(flat.get("/".join([*parents, "validation_loss"])))
    return math.nan if value is None or np.size(value) != 1 else float(np.reshape(value, ()))


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
