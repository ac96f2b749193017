"""Output of the tools: a table that fits into the terminal, or one JSON document.

A row is a mapping of plain values. Its keys are both column headers and JSON fields. Missing and
NaN values are `-` in a table and null in JSON.
"""

import argparse
import datetime
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import cells

from official_lite.common import escapes

__all__ = [
    "Format",
    "add_json_argument",
    "bytes_text",
    "duration_text",
    "print_json",
    "print_table",
    "table",
    "time_text",
    "value_text",
]

Format = Callable[[Any], str]

_GAP = 2
# Names shortened to less than this are unreadable.
_LEAST_TEXT = 16


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="Print one JSON document in place of a table."
    )


def print_json(document: Any) -> None:
    """Print a JSON document, with null for numbers that are not finite."""
    print(json.dumps(_plain(document), indent=2, default=str, ensure_ascii=False))


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    formats: Mapping[str, Format] | None = None,
) -> None:
    """Print rows; on a terminal, shorten long texts and drop the last columns if necessary.

    Args:
        rows: The rows.
        columns: Keys of the columns, from left to right; the first is always shown.
        formats: Functions that format the values of a column. Defaults to `value_text`.
    """
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    text, left_out = table(rows, columns, formats=formats, width=width)
    print(text)
    if left_out:
        print(f"Not shown: {', '.join(left_out)}. See --json.", file=sys.stderr)


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    formats: Mapping[str, Format] | None = None,
    width: int | None = None,
) -> tuple[str, list[str]]:
    """Return the text of a table and the columns that did not fit.

    Args:
        rows: The rows.
        columns: Keys of the columns, from left to right; the first is always shown.
        formats: Functions that format the values of a column. Defaults to `value_text`.
        width: Maximum width of a line in terminal cells; None for no limit.
    """
    shown = [_Column(name, rows, (formats or {}).get(name, value_text)) for name in columns]
    left_out: list[str] = []
    while width is not None and _width(shown) > width:
        if wide := [column for column in shown if column.is_text and column.width > _LEAST_TEXT]:
            widest = max(wide, key=lambda column: column.width)
            widest.width = min(widest.width - 1, width)
        elif len(shown) > 1:
            left_out.insert(0, shown.pop().name)
        else:
            break
    lines = ["".join(column.line(n) for column in shown).rstrip() for n in range(len(rows) + 1)]
    return "\n".join(lines), left_out


def value_text(value: Any) -> str:
    """Format a value: numbers with five significant digits, lists with commas."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "-"
    return str(value) if value != "" else "-"


def bytes_text(size: float | None) -> str:
    """Format a size in bytes: `1.4 MB`."""
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def time_text(seconds: float | None) -> str:
    """Format seconds since 1970 as local time, to the minute."""
    if seconds is None:
        return "-"
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def duration_text(seconds: float | None) -> str:
    """Format a duration in seconds."""
    if seconds is None:
        return "-"
    return f"{seconds:.3g} s" if seconds < 60 else str(datetime.timedelta(seconds=round(seconds)))


class _Column:
    """A column: its texts and its width in terminal cells."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]], text_of: Format) -> None:
        values = [row.get(name) for row in rows]
        texts = [name, *map(text_of, values)]
        self.name = name
        self._texts = [" ".join(escapes.escape_controls(text).split()) for text in texts]
        self.is_text = any(isinstance(value, str | list | tuple) for value in values)
        self.width = max(map(cells.cell_len, self._texts))

    def line(self, number: int) -> str:
        text = self._texts[number]
        missing = self.width - cells.cell_len(text)
        if missing < 0:
            text = _shortened(text, self.width)
            # Zero, or one if a character of two cells had to be dropped.
            missing = self.width - cells.cell_len(text)
        space = " " * missing
        return (text + space if self.is_text else space + text) + " " * _GAP


def _shortened(text: str, width: int) -> str:
    """Shorten a text at the end, but a name or path at the start, as its end says the most."""
    if " " in text:
        return cells.set_cell_size(text, width - 1) + "…"
    while cells.cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
