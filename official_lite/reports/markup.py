"""HTML elements, tables and notes. Strings that are not `Markup` are escaped."""

import dataclasses
import datetime
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from official_lite.common import terminal

__all__ = [
    "Child",
    "Markup",
    "Row",
    "Section",
    "code",
    "duration",
    "facts",
    "json_script",
    "note",
    "number",
    "share",
    "status",
    "table",
    "tag",
    "when",
]


class Markup(str):
    """A string that already is HTML."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
"""Content of an element; None stands for no content."""

_WITHOUT_END = frozenset({"img", "input", "meta"})


def tag(element: str, /, *children: Child, **attributes: Any) -> Markup:
    """Build an HTML element.

    Args:
        element: Name of the element.
        *children: Content; strings that are not `Markup` are escaped.
        **attributes: Attributes of the element. `class_` becomes `class` and `data_value` becomes
            `data-value`. An attribute that is None or False is omitted; one that is True has no
            value.
    """
    start = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _WITHOUT_END:
        return Markup(f"<{element}{start}>")
    return Markup(f"<{element}{start}>{_content(children)}</{element}>")


def json_script(data: object) -> Markup:
    """Build an element with JSON for the page's script; browsers do not execute the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escape(value)}"'


def _content(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return _escape(child)
    return "".join(map(_content, child))


def _escape(value: object) -> str:
    # Replace lone surrogates, which JSON can contain but UTF-8 can't encode.
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape(terminal.escape_controls(text))


_GOOD = ("done", "complete")
_BAD = ("failed", "killed", "fail")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page.

    Attributes:
        name: Anchor of the section: `#name` links to it.
        title: Title above the section.
        content: Content of the section.
    """

    name: str
    title: str
    content: Child


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        head: The header cell of the row.
        cells: The other cells. Numbers are formatted; None is shown as a dash.
        class_: CSS class of the row, such as `best`.
    """

    head: Child
    cells: list[Any]
    class_: str | None = None


def facts(entries: Mapping[str, Child], wide: Iterable[str] = ()) -> Markup:
    """Build a list of short facts; entries that are None are skipped."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", key), tag("dd", value), class_="wide" if key in wide else None)
            for key, value in entries.items()
            if value is not None
        ],
        class_="facts",
    )


def table(
    *,
    caption: str,
    columns: Sequence[Child],
    rows: Sequence[Row],
    is_sortable: bool = False,
    name: str | None = None,
    class_: str = "",
) -> Markup:
    """Build a table with a header for each column and row, which scrolls if it is too wide.

    Args:
        caption: Caption of the table, also for screen readers.
        columns: Column headers, including that of the first column.
        rows: The rows.
        is_sortable: Whether a click on a column sorts by it.
        name: HTML id, for the field that searches the table.
        class_: CSS classes of the frame: `long` keeps the table from filling the page, `broken`
            breaks long words so that the table needs no horizontal scrolling.
    """
    numeric = [_is_numeric(row.cells[index] for row in rows) for index in range(len(columns) - 1)]
    head = [_column(columns[0], is_number=False)]
    head += [
        _column(title, is_number=is_number)
        for title, is_number in zip(columns[1:], numeric, strict=True)
    ]
    element = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", head)),
        tag("tbody", [_row(row, numeric) for row in rows]),
        class_="sortable" if is_sortable else None,
        id=name,
    )
    return tag(
        "div",
        element,
        class_=f"scroll {class_}".strip(),
        # Make the element focusable, so that it can be scrolled with the keyboard.
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def note(*children: Child) -> Markup:
    """Build a paragraph with a note to the reader."""
    return tag("p", *children, class_="note")


def share(part: float, text: str) -> Markup:
    """Build a bar that is filled to the fraction `part`, with a text next to it."""
    bar = tag("span", class_="share", style=f"background-size:{100 * part:.1f}% 100%")
    return tag("span", bar, text)


def code(text: str | None) -> Child:
    """Build a code element; return None for an empty text or None."""
    return tag("code", text) if text else None


def status(word: str) -> Markup:
    """Build a label for the status of a run or trial."""
    kind = "good" if word in _GOOD else "bad" if word in _BAD else ""
    return tag("span", word, class_=f"status {kind}".strip())


def number(value: float | None) -> str:
    """Format a number for display."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.5g}"


def duration(seconds: float | None) -> str | None:
    """Format a duration in seconds for display."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def when(seconds: float | None) -> str | None:
    """Format seconds since 1970 as a date, in the local time zone."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _is_numeric(cells: Iterable[Any]) -> bool:
    given = [cell for cell in cells if cell is not None]
    return bool(given) and all(_is_number(cell) for cell in given)


def _is_number(cell: object) -> TypeGuard[int | float]:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _column(name: Child, *, is_number: bool) -> Markup:
    return tag("th", name, scope="col", class_="number" if is_number else None)


def _row(row: Row, numeric: Sequence[bool]) -> Markup:
    cells = [_cell(cell, is_number=n) for cell, n in zip(row.cells, numeric, strict=True)]
    head = tag("th", row.head, scope="row", data_value=_key(row.head))
    return tag("tr", head, cells, class_=row.class_)


def _cell(cell: Child, *, is_number: bool) -> Markup:
    kind = "number" if is_number else "text"
    if cell is None:
        return tag("td", "–", class_=kind, data_value="")
    if _is_number(cell):
        return tag("td", number(cell), class_=kind, data_value=_key(cell))
    return tag("td", cell if isinstance(cell, Markup | str) else str(cell), class_=kind)


def _key(value: object) -> str | None:
    """Return the sort key of a number; None for other cells, which are sorted by their text."""
    if not _is_number(value):
        return None
    return repr(value) if math.isfinite(value) else ""
