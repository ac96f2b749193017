"""Which numbers of a record are shown to a person, and how."""

import datetime
import fnmatch
from collections.abc import Mapping, Sequence

from official_lite.common import escapes
from official_lite.telemetry.record import Record

__all__ = ["ETA", "RATE", "format_number", "shown_fields"]

ETA = "eta"
RATE = "steps_per_second"


def shown_fields(record: Record, fields: Sequence[str] | None) -> dict[str, str]:
    """The numbers to show, as text by name.

    Args:
      record: What was reported.
      fields: Names, or patterns such as `*loss`, in the order in which to show them; `eta` is the
        time left. Of another split than training, of which they may name nothing, all is shown
        then. `None` shows all the values there are.
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
    """Integers in full, other numbers with five significant digits."""
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
