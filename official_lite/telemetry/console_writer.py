"""Records as lines of the log."""

import dataclasses
from collections.abc import Sequence

from absl import logging

from official_lite.common import escapes
from official_lite.telemetry import shown_fields, writer
from official_lite.telemetry.record import Record


class ConsoleWriter(writer.Writer):
    """Logs one plain line a record: `train | step 100 | loss 0.51 | steps_per_second 812`.

    Args:
      fields: Names of numbers to show, or patterns such as `*loss`, in that order; `eta` is the
        time left. By default all values. An evaluation of which they name nothing is shown whole.
      total_steps: The step at which training ends, for records that don't say.
    """

    def __init__(
        self, fields: Sequence[str] | None = None, *, total_steps: int | None = None
    ) -> None:
        self._fields = fields
        self._total_steps = total_steps

    def write(self, record: Record) -> None:
        if record.split == "train" and record.total_steps is None:
            record = dataclasses.replace(record, total_steps=self._total_steps)
        logging.info("%s", format_record(record, self._fields))


def format_record(record: Record, fields: Sequence[str] | None = None) -> str:
    """The record, or the chosen fields of it, on one line."""
    shown = shown_fields.shown_fields(record, fields)
    pairs = [f"{name} {text}" for name, text in shown.items()]
    split = escapes.escape_controls(record.split)
    return " | ".join([split, f"step {record.step}", *pairs])
