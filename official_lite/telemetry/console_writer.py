"""Records as lines of the log."""

from absl import logging

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class ConsoleWriter(writer.Writer):
    """Logs one plain line a record: `train | step 100 | loss 0.51 | steps_per_second 812`."""

    def write(self, record: Record) -> None:
        logging.info("%s", format_record(record))


def format_record(record: Record) -> str:
    """The record on one line."""
    parts = [record.split, f"step {record.step}"]
    parts += [f"{name} {format_number(value)}" for name, value in record.flat().items()]
    return " | ".join(parts)


def format_number(value: int | float) -> str:
    """Integers in full, other numbers with five significant digits."""
    return str(value) if isinstance(value, int) else f"{value:.5g}"
