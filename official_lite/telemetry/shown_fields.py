"""Selection and formatting of the values that are displayed."""

import datetime
import fnmatch
from collections.abc import Mapping, Sequence

from official_lite.common import escapes
from official_lite.telemetry.record import Record

__all__ = ["ETA", "RATE", "format_number", "shown_fields"]

ETA = "eta"
RATE = "steps_per_second"


def shown_fields(record: Record, fields: Sequence[str] | None) -> dict[str, str]:
    """Return the values to display, as text by name.

    Args:
      record: The record to display.
      fields: Names, or patterns such as `*loss`, in display order; `eta` is the remaining time. If
        they match nothing (apart from `eta` and `steps_per_second`) in a record of a split other
        than `train`, all its values are shown. `None` shows all values.
    """
    texts = {
        escapes.escape_controls(name): format_number(value) for name, value in record.flat().items()
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
