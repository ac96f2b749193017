"""The last record of each split, for who asks at the end."""

from typing import Any

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class LastRecordsWriter(writer.Writer):
    """Remembers what was reported last.

    Several records of one step are one: what comes up after the last report of a training, such as
    numbers of a hook's `after_train`, makes a record of its own and must not hide the loss.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def write(self, record: Record) -> None:
        before = self._rows.get(record.split, {})
        kept = before if before.get("step") == record.step else {}
        # Twice: the first keeps it in front, the second keeps a value from taking its name.
        key = {"step": record.step}
        self._rows[record.split] = {**key, **kept, **record.flat(), **key}

    def rewind(self, step: int) -> None:
        self._rows = {split: row for split, row in self._rows.items() if row["step"] <= step}

    def rows(self) -> dict[str, Any]:
        """The step and the values reported last, by split: rows for `summary_table`."""
        return dict(self._rows)
