"""Sections that compare the configs and environments of runs and mark the differences."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.config import compatibility
from official_lite.reports import layout
from official_lite.reports.markup import Markup, tag
from official_lite.reports.run_reading import Run

__all__ = ["config", "environment"]

# The space is non-breaking.
_DIFFERENT = "≠\N{NO-BREAK SPACE}"


def config(runs: Sequence[Run]) -> layout.Section:
    """Build the config section: of a single run, all fields; of several, the differences."""
    rows = _rows([_flat(run) for run in runs])
    content = _fields(runs, rows) if rows else layout.note("No config was found.")
    return layout.Section(name="config", title="Config", content=content)


def environment(runs: Sequence[Run]) -> layout.Section:
    """Build the section with hosts and versions."""
    found = [
        {
            **run.environment,
            "seed": run.seed,
            "execution": run.execution.describe() if run.execution else None,
        }
        for run in runs
    ]
    known = [{key: value for key, value in one.items() if value is not None} for one in found]
    table = layout.Table(
        caption="Hosts and versions",
        columns=["", *(run.name for run in runs)],
        rows=_rows(known),
        class_="broken",
    )
    return layout.Section(name="environment", title="Environment", content=layout.table(table))


def _fields(runs: Sequence[Run], rows: Sequence[layout.Row]) -> Markup:
    table = layout.Table(
        caption="Config fields by path",
        columns=["field", *(run.name for run in runs)],
        rows=rows,
        name="config-fields",
        class_="long broken",
    )
    number = sum(row.class_ is not None for row in rows)
    has_one_run = len(runs) == 1
    return tag(
        "details",
        tag(
            "summary",
            f"All {len(rows)} fields" if has_one_run else f"{number} of {len(rows)} fields differ",
        ),
        _search(can_hide_equal=not has_one_run, is_hiding=number > 0),
        layout.table(table),
        open=not has_one_run,
    )


def _flat(run: Run) -> dict[str, Any]:
    return compatibility.flatten(run.config or run.given)


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[layout.Row]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [_row(name, columns) for name in names]


def _row(name: str, columns: Sequence[Mapping[str, Any]]) -> layout.Row:
    # JSON distinguishes the string "3" from the number 3.
    given = {json.dumps(column[name]) if name in column else None for column in columns}
    return layout.Row(
        head=[_DIFFERENT if len(given) > 1 else None, name],
        cells=[_text(column[name]) if name in column else None for column in columns],
        class_="differs" if len(given) > 1 else None,
    )


def _text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _search(*, can_hide_equal: bool, is_hiding: bool) -> Markup:
    field = tag("input", type="search", placeholder="Search fields", aria_label="Search fields")
    box = tag("input", type="checkbox", checked=is_hiding)
    return tag(
        "div",
        field,
        tag("label", box, " only differences") if can_hide_equal else None,
        class_="search",
        data_table="config-fields",
    )
