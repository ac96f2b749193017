"""Output of the tools: a table, or one JSON document.

A row is a mapping of plain values. Its keys are both column headers and JSON fields. Missing and
NaN values are `-` in a table and null in JSON.
"""

import argparse
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

from official_lite.common import files, terminal

Format = Callable[[Any], str]

_UNLIMITED = 1_000_000


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="Print a JSON document instead of a table."
    )


def print_json(document: Any) -> None:
    """Print a JSON document, with null for numbers that are not finite."""
    print(files.to_json(document, indent=2, ensure_ascii=False))


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    formats: Mapping[str, Format] | None = None,
) -> None:
    """Print rows: long values are folded to fit a terminal; a pipe gets one line per row.

    Args:
        rows: The rows.
        columns: Keys of the columns, from left to right.
        formats: Functions that format the values of a column. Defaults to `value_text`.
    """
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    texts = []
    for name in columns:
        values = [row.get(name) for row in rows]
        is_text = any(isinstance(value, str | list | tuple) for value in values)
        table.add_column(_cell(name), justify="left" if is_text else "right", overflow="fold")
        texts.append(map(_cell, map((formats or {}).get(name, value_text), values)))
    for cells in zip(*texts, strict=True):
        table.add_row(*cells)
    console = rich.console.Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNLIMITED
    with console.capture() as printed:
        console.print(table)
    # Print the captured table with `print`, without trailing spaces, so that `main` instead of rich
    # handles a closed pipe.
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


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


def share_text(share: float | None) -> str:
    """Format a fraction in percent."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _cell(text: str) -> rich.text.Text:
    # Return a `Text`, because rich would search a string for markup.
    return rich.text.Text(" ".join(terminal.escape_controls(text).split()))
