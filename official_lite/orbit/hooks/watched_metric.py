"""A metric that a hook watches: its place in the logs, and which direction is better."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from official_lite.common import errors, nested_dict, suggestions
from official_lite.orbit import utils

_MAXIMIZES = {
    "minimize": False,
    "min": False,
    "lower": False,
    "maximize": True,
    "max": True,
    "higher": True,
}


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
      direction: `minimize` (also `min`, `lower`) or `maximize` (also `max`, `higher`).

    Raises:
      errors.ConfigValueError: The direction is unknown.
    """

    def __init__(self, name: str, direction: str) -> None:
        if direction not in _MAXIMIZES:
            raise errors.ConfigValueError(
                f"The direction of `{name}` is {direction!r}; expected `minimize` or `maximize`. "
                + suggestions.did_you_mean(str(direction), _MAXIMIZES)
            )
        self.name = name
        self.maximizes = _MAXIMIZES[direction]

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
