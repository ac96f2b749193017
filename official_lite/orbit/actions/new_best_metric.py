"""A condition that tracks whether a metric is the best so far, including earlier runs."""

import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from official_lite.common import errors, files, suggestions
from official_lite.orbit import runner
from official_lite.orbit.utils import common

MetricFn = Callable[[runner.Output], Any]


class NewBestMetric:
    """A condition that holds when a metric is better than all previous values.

    `test` only compares; `commit` compares and stores the value. If the export of a best model runs
    between the two, a failed export is not recorded as done. Calling the object calls `commit`. A
    non-finite value is never the best. With several workers, all of them must see the same metric,
    and only one should write the file.

    Args:
        metric: A key of the output, or a function of the output.
        higher_is_better: Whether higher values are better.
        filename: A file that keeps the best value across restarts. `None` keeps it in memory.
        write_metric: Whether this process writes the file. If false, it only reads the file at the
            start.
    """

    def __init__(
        self,
        metric: str | MetricFn,
        higher_is_better: bool = True,
        filename: str | None = None,
        write_metric: bool = True,
    ) -> None:
        self.metric = metric
        self.higher_is_better = higher_is_better
        # Start with the worst finite value, because JSON can't represent infinity.
        worst = -sys.float_info.max if higher_is_better else sys.float_info.max
        self._best_value = JSONPersistedValue(worst, filename, write_metric)

    def __call__(self, output: runner.Output) -> bool:
        return self.commit(output)

    @property
    def best_value(self) -> float:
        """Return the best value committed so far."""
        return self._best_value.read()

    def metric_value(self, output: runner.Output) -> float:
        """Return the value of the metric in `output`.

        Raises:
            errors.UnknownKeyError: The output has no such metric.
        """
        if callable(self.metric):
            return float(common.get_value(self.metric(output)))
        if self.metric not in output:
            raise errors.UnknownKeyError(
                f"The output has no metric `{self.metric}`. "
                + suggestions.did_you_mean(self.metric, output)
            )
        return float(common.get_value(output[self.metric]))

    def test(self, output: runner.Output) -> bool:
        """Return whether the metric in `output` is the best so far, without storing it."""
        value = self.metric_value(output)
        if not math.isfinite(value):
            return False
        return value > self.best_value if self.higher_is_better else value < self.best_value

    def commit(self, output: runner.Output) -> bool:
        """Return the result of `test`, and store the value if it is the best so far."""
        is_best = self.test(output)
        if is_best:
            self._best_value.write(self.metric_value(output))
        return is_best


class JSONPersistedValue:
    """A JSON value that a file keeps across restarts.

    The file is read once at the start. Each write replaces the whole file.

    Args:
        initial_value: The value if the file is missing or empty.
        filename: The file. `None` keeps the value only in memory.
        write_value: Whether to write the file.
    """

    def __init__(self, initial_value: Any, filename: str | None, write_value: bool = True) -> None:
        self._filename = filename
        self._writes = write_value and filename is not None
        self._value = self._read_file()
        if self._value is None:
            self.write(initial_value)

    def read(self) -> Any:
        """Return the current value."""
        return self._value

    def write(self, value: Any) -> None:
        """Set the value and write it to the file."""
        self._value = value
        if self._writes and self._filename:
            files.makedirs(os.path.dirname(self._filename) or ".")
            files.write_text(self._filename, json.dumps(value))

    def _read_file(self) -> Any:
        if self._filename is None or not files.exists(self._filename):
            return None
        try:
            content = files.read_text(self._filename)
            return json.loads(content) if content else None
        except ValueError as error:
            files.set_aside(self._filename, error)
            return None
