"""The summary table that is printed at the end of a run."""

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
    """Print names and values as a table.

    Args:
      rows: Values of the second column by names in the first; a nested mapping becomes rows named
        `outer/inner`.
      title: Title above the table.
      stream: Where to print. Defaults to stderr, which keeps stdout free for results.
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
    # Not a `str`: rich would interpret brackets, for example in a path, as markup.
    text = shown_fields.format_number(value) if isinstance(value, float) else str(value)
    return rich.text.Text(escapes.escape_controls(text))
