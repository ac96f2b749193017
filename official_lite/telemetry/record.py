"""What a writer receives: the numbers of one report."""

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
    """The numbers of one report.

    Attributes:
      step: The global step at which they were read.
      split: What they were measured on: `"train"`, `"validation"`, …
      values: Python numbers by name. A nested mapping groups those that belong together, such as
        the metrics of one of several data sets.
      images: By name: `[height, width, channels]`, uint8. Writers of text leave them out.
      histograms: By name; likewise.
      total_steps: The step at which training ends, if this is a report of training.
    """

    step: int
    split: str
    values: Values
    images: Mapping[str, npt.NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    histograms: Mapping[str, Histogram] = dataclasses.field(default_factory=dict)
    total_steps: int | None = None

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest of training takes at the pace of this report.

        `None` without `total_steps` or without `steps_per_second` among the values.
        """
        rate = self.values.get("steps_per_second")
        if self.total_steps is None or not isinstance(rate, int | float) or rate <= 0:
            return None
        return max(self.total_steps - self.step, 0) / rate

    def flat(self) -> dict[str, int | float]:
        """The values with the names along the path joined by `/`."""
        return _flatten(self.values)


def numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The scalars among `logs`, as Python numbers in the same nesting.

    Takes Python and NumPy values. What is not a single number (an image, a string, a confusion
    matrix) has no place in a record: it is left out, with one warning a name.
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
    """A value of Python or NumPy as a number; `None` if it is not a single one."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUMmc":
        return None
    # bfloat16 and its kin are of kind "V" or "f"; all of them convert to a Python float.
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
