"""Records, which writers receive."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from official_lite.common import log_once
from official_lite.telemetry.histogram import Histogram

Values: TypeAlias = Mapping[str, "int | float | Values"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The values of one report.

    Attributes:
      step: The global step at which the values were read.
      split: What the values were measured on: `"train"`, `"validation"`, …
      values: Python numbers by name. A nested mapping groups related values, such as the metrics of
        one of several data sets.
      images: Images by name: `[height, width, channels]`, uint8. Text writers ignore them.
      histograms: Histograms by name. Text writers ignore them.
      total_steps: The step at which training ends, if this is a training report.
    """

    step: int
    split: str
    values: Values
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)
    total_steps: int | None = None

    @property
    def eta_seconds(self) -> float | None:
        """The remaining training time at the rate of this report, in seconds.

        It is `None` without `total_steps` or without `steps_per_second` among the values.
        """
        rate = self.values.get("steps_per_second")
        if self.total_steps is None or not isinstance(rate, int | float) or rate <= 0:
            return None
        return max(self.total_steps - self.step, 0) / rate

    def flat(self) -> dict[str, int | float]:
        """Return the values with nested names joined by `/`."""
        return _flatten(self.values)


def numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars in `logs` as Python numbers, with the same nesting.

    Accepts Python and NumPy values. Values that are not single numbers (an image, a string, a
    confusion matrix) are skipped, with one warning per name.
    """
    kept: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            kept[name] = numbers(value)
        elif (number := as_number(value)) is not None:
            kept[name] = number
        else:
            _warn_left_out(name, value)
    return kept


def as_number(value: Any) -> int | float | None:
    """Return a Python or NumPy value as a number, or `None` if it is not a single number."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUMmc":
        return None
    # bfloat16 and similar types are of kind "V" or "f"; all of them convert to a Python float.
    return int(array.item()) if array.dtype.kind in "biu" else float(array.reshape(()))


def _flatten(values: Values, prefix: str = "") -> dict[str, int | float]:
    flat: dict[str, int | float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}/"))
        else:
            flat[prefix + name] = value
    return flat


def _warn_left_out(name: str, value: Any) -> None:
    log_once.warn_once(
        "`%s` is a %s and not a single number: the writers leave it out.",
        name,
        type(value).__name__,
    )
