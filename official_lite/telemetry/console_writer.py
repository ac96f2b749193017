"""A writer that logs records as plain lines."""

import dataclasses
from collections.abc import Sequence

from absl import logging

from official_lite.common import escapes
from official_lite.telemetry import shown_fields, writer
from official_lite.telemetry.record import Record


class ConsoleWriter(writer.Writer):
    """Logs one plain line per record: `train | step 100 | loss 0.51 | steps_per_second 812`.

    Args:
      fields: Names of the values to show, or patterns such as `*loss`, in display order; `eta` is
        the remaining time. By default all values are shown. An evaluation record that matches no
        field is shown in full.
      total_steps: The step at which training ends, for records that do not contain it.
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
    """Return the record, or its selected fields, as one line."""
    shown = shown_fields.shown_fields(record, fields)
    pairs = [f"{name} {text}" for name, text in shown.items()]
    split = escapes.escape_controls(record.split)
    return " | ".join([split, f"step {record.step}", *pairs])
