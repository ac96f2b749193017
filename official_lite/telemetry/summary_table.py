"""The table that ends a run."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

import rich.console
import rich.table
import rich.text

from official_lite.common import escapes
from official_lite.telemetry import shown_fields


def summary_table(
    rows: Mapping[str, Any], *, title: str | None = None, stream: TextIO | None = None
) -> None:
    """Prints names and values as a table.

    Args:
      rows: The second column by the first; a nested mapping makes rows named `outer/inner`.
      title: What stands above the table.
      stream: Where to print; stderr by default, so that stdout stays free for results.
    """
    shown_title = None if title is None else _text(title)
    table = rich.table.Table(title=shown_title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    _add_rows(table, rows)
    rich.console.Console(file=stream or sys.stderr).print(table)


def _add_rows(table: rich.table.Table, rows: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in rows.items():
        if isinstance(value, Mapping):
            _add_rows(table, value, f"{prefix}{name}/")
        else:
            table.add_row(_text(prefix + name), _text(value))


def _text(value: Any) -> rich.text.Text:
    # Not a `str`, in which rich would read brackets as markup; a path may hold some.
    text = shown_fields.format_number(value) if isinstance(value, float) else str(value)
    return rich.text.Text(escapes.escape_controls(text))
