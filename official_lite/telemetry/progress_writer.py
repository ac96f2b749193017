"""A writer that shows a progress bar."""

import dataclasses
import datetime
import logging as python_logging
import sys
from collections.abc import Sequence
from typing import TextIO

import rich.console
import rich.progress
import rich.table
import rich.text
from absl import logging

from official_lite.telemetry import console_writer, shown_fields, writer
from official_lite.telemetry.record import Record


def build_console_writer(
    total_steps: int, stream: TextIO | None = None, *, fields: Sequence[str] | None = None
) -> writer.Writer:
    """Build a progress bar if `stream` is a terminal, or else a `ConsoleWriter`.

    Args:
      total_steps: The step at which the run ends.
      stream: Where to draw the bar. Defaults to stderr.
      fields: Which values to show, as in `ConsoleWriter`.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        return ProgressWriter(total_steps, stream, fields=fields)
    return console_writer.ConsoleWriter(fields, total_steps=total_steps)


class ProgressWriter(writer.Writer):
    """A live progress bar with the training step, metrics, steps per second and remaining time.

    Records of other splits, such as those of an evaluation, are printed above the bar.

    Args:
      total_steps: The step at which the run ends.
      stream: Where to draw. Defaults to stderr.
      fields: Which metrics to show, as in `ConsoleWriter`. Steps per second and the remaining time
        are always shown.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._fields = fields
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(bar_width=10),
            rich.progress.TextColumn("{task.fields[pace]}", markup=False),
            # On a narrow terminal the metrics are truncated, not the step and the remaining time.
            rich.progress.TextColumn(
                "{task.fields[metrics]}",
                markup=False,
                table_column=rich.table.Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=rich.console.Console(file=stream or sys.stderr),
            expand=True,
        )
        self._log_stream: TextIO | None = None
        self._task: rich.progress.TaskID | None = None

    def write(self, record: Record) -> None:
        if record.split != "train":
            line = rich.text.Text(console_writer.format_record(record, self._fields))
            self._progress.console.print(line)
            return
        pace, metrics = self._describe(record)
        self._progress.update(
            self._started_task(), completed=record.step, pace=pace, metrics=metrics
        )

    def flush(self) -> None:
        if self._task is not None:
            self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()
        if self._log_stream is not None:
            _absl_handler().setStream(self._log_stream)
            self._log_stream = None
        self._task = None

    def _started_task(self) -> rich.progress.TaskID:
        if self._task is None:
            self._progress.start()
            # While the bar is live, `sys.stderr` is a proxy that prints above the bar. The log
            # handler still holds the real stream and would write into the bar.
            self._log_stream = _absl_handler().setStream(sys.stderr)
            self._task = self._progress.add_task(
                "train", total=self._total_steps, pace="", metrics=""
            )
        return self._task

    def _describe(self, record: Record) -> tuple[str, str]:
        if record.total_steps is None:
            record = dataclasses.replace(record, total_steps=self._total_steps)
        shown = shown_fields.shown_fields(record, self._fields)
        in_pace = {shown_fields.RATE, shown_fields.ETA}
        metrics = "  ".join(f"{name} {text}" for name, text in shown.items() if name not in in_pace)
        return _pace(record), metrics


def _pace(record: Record) -> str:
    # rich's own estimate is not used: a resumed run would include the steps of the earlier run, and
    # time spent on evaluation is not training time.
    if record.eta_seconds is None:
        return ""
    time_left = datetime.timedelta(seconds=round(record.eta_seconds))
    return f"{record.flat()[shown_fields.RATE]:.1f} steps/s, ETA {time_left}"


def _absl_handler() -> python_logging.StreamHandler[TextIO]:
    handler: python_logging.StreamHandler[TextIO] = logging.get_absl_handler().python_handler
    return handler
