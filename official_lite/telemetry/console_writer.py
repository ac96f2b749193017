"""The console output of a run: log lines, a progress bar, and a final table."""

import dataclasses
import datetime
import fnmatch
import logging as python_logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import rich.console
import rich.progress
import rich.table
import rich.text
from absl import logging

from official_lite.common import nested_dict, terminal
from official_lite.telemetry.writer import Record, RunInfo, Writer

# On terminals with fewer columns than this, metrics are more useful than the progress bar and the
# elapsed time.
_WIDTH_FOR_DECORATION = 100

# On terminals with fewer columns than this, the pace and the remaining time would leave no room for
# metrics.
_WIDTH_FOR_PACE = 60

ETA = "eta"

RATE = "steps_per_second"


def shown_fields(record: Record, fields: Sequence[str] | None) -> dict[str, str]:
    """Return the values to display, as text by name.

    Args:
        record: The record to display.
        fields: Names, or patterns such as `*loss`, in display order; `eta` is the remaining time.
            If they match nothing (apart from `eta` and `steps_per_second`) in a record of a split
            other than `train`, all its values are shown. `None` shows all values.
    """
    texts = {
        terminal.escape_controls(name): format_number(value)
        for name, value in record.flat().items()
    }
    if fields is None:
        return texts
    chosen = _choose({**texts, **_eta(record)}, fields)
    if record.split != "train" and chosen.keys() <= {ETA, RATE}:
        return texts
    return chosen


def format_number(value: int | float) -> str:
    """Format an integer in full, any other number with five significant digits."""
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def _eta(record: Record) -> dict[str, str]:
    seconds = record.eta_seconds
    return {} if seconds is None else {ETA: str(datetime.timedelta(seconds=round(seconds)))}


def _choose(texts: Mapping[str, str], fields: Sequence[str]) -> dict[str, str]:
    return {
        name: text
        for field in fields
        for name, text in texts.items()
        if name == field or fnmatch.fnmatchcase(name, field)
    }


class ConsoleWriter(Writer):
    """Logs one plain line per record: `train | step 100 | loss 0.51 | steps_per_second 812`.

    If the length of training is given in epochs, the lines also count epochs, and an evaluation
    shares a line with the training report of its step:
    `train | epoch 2/5 | step 100 | loss 0.51 | validation | accuracy 0.93`.

    Args:
        fields: Names of the values to show, or patterns such as `*loss`, in display order; `eta` is
            the remaining time. By default all values are shown. An evaluation record that matches
            no field is shown in full.
        total_steps: The step at which training ends, for records that do not contain it.
        train_epochs: The number of epochs in `total_steps`, if the config gives it.
        stream: Where to print instead of logging, for example in a notebook, which shows no log.
    """

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        *,
        total_steps: int | None = None,
        train_epochs: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream
        self._total_steps = total_steps
        self._lines = _Lines(fields, total_steps, train_epochs)
        self._waiting: Record | None = None

    def write(self, record: Record) -> None:
        if record.split == "train":
            if record.total_steps is None:
                record = dataclasses.replace(record, total_steps=self._total_steps)
            self.flush()
            self._waiting = record
            if not self._lines.count_epochs:
                self.flush()
            return
        train, self._waiting = self._waiting, None
        self._print(*self._lines.join(train, record))

    def flush(self) -> None:
        train, self._waiting = self._waiting, None
        if train is not None:
            self._print(self._lines.format(train))

    def close(self) -> None:
        self.flush()

    def _print(self, *lines: str) -> None:
        for line in lines:
            if self._stream is None:
                logging.info("%s", line)
            else:
                print(line, file=self._stream, flush=True)


class _Lines:
    """A formatter of records as lines, which show the epoch if the number of epochs is known.

    Args:
        fields: As in `ConsoleWriter`.
        total_steps: The step at which training ends.
        train_epochs: The number of epochs in `total_steps`.
    """

    def __init__(
        self, fields: Sequence[str] | None, total_steps: int | None, train_epochs: float | None
    ) -> None:
        self._fields = fields
        self._total_steps = total_steps
        self._train_epochs = train_epochs
        # In a run of less than one epoch, such as a one-step test, an epoch count has no meaning.
        self.count_epochs = bool(total_steps and train_epochs and train_epochs >= 1)

    def format(self, record: Record) -> str:
        """Return the record, or its selected fields, as one line."""
        progress = (self.epoch(record.step), f"step {record.step}")
        split, *pairs = self._values(record)
        return " | ".join([split, *filter(None, progress), *pairs])

    def join(self, train: Record | None, evaluation: Record) -> list[str]:
        """Return the lines for an evaluation and for the preceding training report, if any.

        Both share a line if epochs are counted and both records are from the same step.
        """
        if train is None or train.step != evaluation.step or not self.count_epochs:
            return [self.format(record) for record in (train, evaluation) if record is not None]
        return [" | ".join([self.format(train), *self._values(evaluation)])]

    def epoch(self, step: int) -> str:
        """Return the epoch of a step, such as `epoch 2.5/60`; empty if epochs are not counted."""
        if not self.count_epochs or not self._total_steps or not self._train_epochs:
            return ""
        epoch = round(step / self._total_steps * self._train_epochs, 1)
        return f"epoch {epoch:.12g}/{self._train_epochs:.12g}"

    def _values(self, record: Record) -> list[str]:
        shown = shown_fields(record, self._fields)
        pairs = [f"{name} {text}" for name, text in shown.items()]
        return [terminal.escape_controls(record.split), *pairs]


def build_console_writer(
    total_steps: int,
    stream: TextIO | None = None,
    *,
    fields: Sequence[str] | None = None,
    train_epochs: float | None = None,
) -> Writer:
    """Build a progress bar if `stream` is a terminal, or else a `ConsoleWriter`.

    In a notebook, the lines are printed to stdout, because absl's log is not shown there.

    Args:
        total_steps: The step at which the run ends.
        stream: Where to draw the bar. Defaults to stderr.
        fields: Which values to show, as in `ConsoleWriter`.
        train_epochs: The number of epochs in `total_steps`, if the config gives it.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        return ProgressWriter(total_steps, stream, fields=fields, train_epochs=train_epochs)
    notebook_stream = sys.stdout if terminal.ipython_shell() is not None else None
    return ConsoleWriter(
        fields, total_steps=total_steps, train_epochs=train_epochs, stream=notebook_stream
    )


def console_of(run: RunInfo, fields: Sequence[str] | None = None) -> Writer:
    """Build a progress bar on a terminal, or else a `ConsoleWriter` with `fields`."""
    return build_console_writer(run.total_steps, fields=fields, train_epochs=run.train_epochs)


class ProgressWriter(Writer):
    """A live progress bar: step, elapsed time, steps per second, remaining time and metrics.

    The bar appears when training begins, and moves between the records, too. Records of other
    splits, such as those of an evaluation, are printed above the bar, as by `ConsoleWriter`. To
    leave room for metrics, a terminal of fewer than 100 columns shows no bar and no elapsed time,
    and one of fewer than 60 columns no steps per second and no remaining time either.

    Args:
        total_steps: The step at which the run ends.
        stream: Where to draw. Defaults to stderr.
        fields: Which metrics to show, as in `ConsoleWriter`. Steps per second and the remaining
            time do not depend on it.
        train_epochs: The number of epochs in `total_steps`, if the config gives it.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        fields: Sequence[str] | None = None,
        train_epochs: float | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._fields = fields
        self._lines = _Lines(fields, total_steps, train_epochs)
        self._last_train: Record | None = None
        console = rich.console.Console(file=stream or sys.stderr)
        decoration: list[rich.progress.ProgressColumn] = [
            rich.progress.BarColumn(bar_width=max(10, console.width // 6)),
            rich.progress.TimeElapsedColumn(),
        ]
        epoch = rich.progress.TextColumn("{task.fields[epoch]}", markup=False)
        pace = rich.progress.TextColumn("{task.fields[pace]}", markup=False)
        self._progress = rich.progress.Progress(
            *([epoch] if self._lines.count_epochs else []),
            rich.progress.MofNCompleteColumn(),
            *(decoration if console.width >= _WIDTH_FOR_DECORATION else []),
            *([pace] if console.width >= _WIDTH_FOR_PACE else []),
            # If the line is too long, the metrics are truncated, not the step.
            rich.progress.TextColumn(
                "{task.fields[metrics]}",
                markup=False,
                table_column=rich.table.Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            expand=True,
        )
        # The step and time of the first `progress` call, from which the pace is computed until a
        # record contains the pace.
        self._start: tuple[int, float] | None = None
        self._has_pace = False
        self._log_stream: TextIO | None = None
        self._task: rich.progress.TaskID | None = None

    def write(self, record: Record) -> None:
        if record.split != "train":
            # If epochs are not counted, only the progress bar shows the training report.
            train = self._last_train if self._lines.count_epochs else None
            for line in self._lines.join(train, record)[-1:]:
                self._progress.console.print(rich.text.Text(line))
            self._last_train = None
            return
        self._last_train = record
        pace, metrics = self._describe(record)
        self._has_pace = bool(pace)
        self._update(record.step, pace=pace, metrics=metrics)

    def progress(self, step: int) -> None:
        now = time.monotonic()
        if self._start is None:
            self._start = step, now
        self._update(step)
        first, began = self._start
        if not self._has_pace and step > first and now > began:
            rate = (step - first) / (now - began)
            self._update(step, pace=_pace(rate, (self._total_steps - step) / rate))

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
                "", total=self._total_steps, epoch="", pace="", metrics=""
            )
        return self._task

    def _update(self, step: int, **texts: Any) -> None:
        epoch = self._lines.epoch(step)
        self._progress.update(self._started_task(), completed=step, epoch=epoch, **texts)

    def _describe(self, record: Record) -> tuple[str, str]:
        if record.total_steps is None:
            record = dataclasses.replace(record, total_steps=self._total_steps)
        shown = shown_fields(record, self._fields)
        in_pace = {RATE, ETA}
        metrics = "  ".join(f"{name} {text}" for name, text in shown.items() if name not in in_pace)
        # The estimate by `rich` is not used: in a resumed run, it would include the steps of the
        # earlier run, and it would treat evaluation time as training time.
        seconds = record.eta_seconds
        return "" if seconds is None else _pace(record.flat()[RATE], seconds), metrics


def _pace(rate: float, seconds_left: float) -> str:
    return f"{rate:.1f} steps/s, ETA {datetime.timedelta(seconds=round(seconds_left))}"


def _absl_handler() -> python_logging.StreamHandler[TextIO]:
    handler: python_logging.StreamHandler[TextIO] = logging.get_absl_handler().python_handler
    return handler


def summary_table(
    rows: Mapping[str, Any], *, title: str | None = None, stream: TextIO | None = None
) -> None:
    """Print names and values as a table.

    Args:
        rows: Values of the second column by names in the first; a nested mapping becomes rows named
            `outer/inner`.
        title: Title above the table.
        stream: Where to print. Defaults to stderr, which keeps stdout free for results.
    """
    shown_title = None if title is None else _text(title)
    table = rich.table.Table(title=shown_title, show_header=False, title_justify="left", box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in nested_dict.flatten_nested_dict(rows, "/").items():
        table.add_row(_text(name), _text(value))
    rich.console.Console(file=stream or sys.stderr).print(table)


def _text(value: object) -> rich.text.Text:
    # In a plain `str`, `rich` would interpret brackets, such as those in a path, as markup.
    text = format_number(value) if isinstance(value, float) else str(value)
    return rich.text.Text(terminal.escape_controls(text))
