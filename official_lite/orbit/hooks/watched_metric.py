"""A metric that a hook watches: its place in the logs, and which direction is better."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from official_lite.common import errors, log_once, nested_dict, suggestions
from official_lite.orbit import utils

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
        log_once.warn_once(
            "The name of the metric `%s` does not say whether higher or lower values are better, "
            "so `%s` is used. Set the direction: `direction` of a hook, or "
            "`trainer.best_checkpoint_metric_comp`.",
            name,
            default,
        )
    if direction and said not in (None, _MAXIMIZES[direction]):
        log_once.warn_once(
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
