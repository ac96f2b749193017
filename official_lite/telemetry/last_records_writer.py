"""A writer that keeps the last record of each split."""

from typing import Any

from official_lite.telemetry import writer
from official_lite.telemetry.record import Record


class LastRecordsWriter(writer.Writer):
    """Keeps the values reported last for each split.

    Several records of one step are merged. Values recorded after the last training report, for
    example by a hook's `after_train`, produce a record of their own, which must not hide the loss.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def write(self, record: Record) -> None:
        before = self._rows.get(record.split, {})
        kept = before if before.get("step") == record.step else {}
        # The key is given twice: the first makes `step` the first entry, the second prevents a
        # value named `step` from replacing it.
        key = {"step": record.step}
        self._rows[record.split] = {**key, **kept, **record.flat(), **key}

    def rewind(self, step: int) -> None:
        self._rows = {split: row for split, row in self._rows.items() if row["step"] <= step}

    def rows(self) -> dict[str, Any]:
        """Return the last step and values of each split, as rows for `summary_table`."""
        return dict(self._rows)
