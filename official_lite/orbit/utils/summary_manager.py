"""A summary manager that writes the outputs of a run as TensorBoard summaries."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from official_lite import telemetry
from official_lite.orbit.utils import summary_manager_interface


class SummaryManager(
    telemetry.TensorBoardWriter, summary_manager_interface.SummaryManagerInterface
):
    """Writes summaries below a directory, as `telemetry.TensorBoardWriter` does.

    Args:
        summary_dir: The root directory of the event files. `None` writes nothing.
        summary_fn: Called as `summary_fn(name, value, step=step)`, for example
            `telemetry.scalar_summary`.
        global_step: The variable that counts the steps. Defaults to the variable passed to
            `tf.summary.experimental.set_step`.
        job: The name of an evaluation-only job; see `telemetry.TensorBoardWriter`.
    """

    def __init__(
        self,
        summary_dir: str | os.PathLike[str] | None,
        summary_fn: Callable[..., Any],
        global_step: tf.Variable | None = None,
        *,
        job: str = "",
    ) -> None:
        super().__init__(summary_dir, job=job)
        self._summary_fn = summary_fn
        self._global_step = (
            tf.summary.experimental.get_step() if global_step is None else global_step
        )

    def summary_writer(self, relative_path: str = "") -> Any:
        return self.file_writer(relative_path)

    def write_summaries(self, summary_dict: Mapping[str, Any]) -> None:
        self.write_values(summary_dict, step=self._global_step, summary_fn=self._summary_fn)
