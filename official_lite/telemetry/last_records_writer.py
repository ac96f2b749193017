"""The last record of each split, for who asks at the end."""

from typing import Any

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class LastRecordsWriter(writer.Writer):
    """Remembers what was reported last."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def write(self, record: Record) -> None:
        self._records[record.split] = record

    def rows(self) -> dict[str, Any]:
        """The step and the values of the last record, by split: rows for `summary_table`."""
        return {
            split: {"step": record.step, **record.values} for split, record in self._records.items()
        }
