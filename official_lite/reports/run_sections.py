"""Sections about runs: overview, configs, environments, checkpoints, architecture, and time."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import errors, goodput
from official_lite.config import compatibility
from official_lite.nas import architecture
from official_lite.reports import charts, layout
from official_lite.reports.markup import Child, Markup, tag
from official_lite.run.run_reading import Run

__all__ = ["architectures", "checkpoints", "config", "environment", "overview", "time_spent"]

_STATES = {
    "starting": "imports, building, restoring, closing",
    "compiling": "the first call of each loop, and the choice of the execution mode",
    "waiting_for_input": "steps that wait for data",
    "stepping": "the training loop, with its hooks and reports",
    "evaluating": "evaluations during or after training",
    "saving": "training waits for a checkpoint",
    "lost": "work that was repeated after the last checkpoint",
    "stopped": "between the end of a start and the next start",
}
# The space is non-breaking.
_DIFFERENT = "≠\N{NO-BREAK SPACE}"


def overview(runs: Sequence[Run]) -> layout.Section:
    """Build the section with the facts about the runs and how they ended."""
    shown = _one(runs[0]) if len(runs) == 1 else _several(runs)
    content = [shown, [_problems(run) for run in runs]]
    return layout.Section(name="overview", title="Overview", content=content)


def checkpoints(runs: Sequence[Run]) -> layout.Section | None:
    """Build the section with the checkpoints; return None if there are none."""
    rows = [
        layout.Row(
            head=run.name,
            cells=[
                one.step,
                round(one.size / 1e6, 3),
                "yes" if one.is_committed else "not known",
                layout.code(one.path),
            ],
        )
        for run in runs
        for one in run.checkpoints
    ]
    best = [_best_row(run) for run in runs if run.best]
    if not rows and not best:
        return None
    shown: list[Child] = []
    if best:
        columns = ["run", "step", "metrics", "checkpoint"]
        caption = "The best evaluation of each run"
        shown.append(layout.table(layout.Table(caption=caption, columns=columns, rows=best)))
    if rows:
        columns = ["run", "step", "MB", "complete", "checkpoint"]
        caption = "Checkpoints to resume from"
        shown.append(
            layout.table(
                layout.Table(caption=caption, columns=columns, rows=rows, is_sortable=True)
            )
        )
    return layout.Section(name="checkpoints", title="Checkpoints", content=shown)


def architectures(runs: Sequence[Run]) -> layout.Section | None:
    """Build the section with the results of architecture searches; return None without any."""
    shown = [_architecture(run, has_title=len(runs) > 1) for run in runs]
    if not any(shown):
        return None
    return layout.Section(name="architecture", title="Architecture search", content=shown)


def time_spent(runs: Sequence[Run]) -> layout.Section | None:
    """Build the section with the seconds in each state; return None if none were recorded."""
    if all(run.time_record is None for run in runs):
        return None
    rows = [
        layout.Row(
            head=[state.replace("_", " "), tag("div", text, class_="dim")],
            cells=[_spent(run.time_record, state) for run in runs],
        )
        for state, text in _STATES.items()
    ]
    totals = [run.time_record.wall_seconds if run.time_record else None for run in runs]
    rows.append(layout.Row(head="in total", cells=[layout.duration(each) for each in totals]))
    rows.append(layout.Row(head="starts", cells=[_starts(run.time_record) for run in runs]))
    rows.append(layout.Row(head="goodput", cells=[_goodput(run) for run in runs], class_="best"))
    columns = ["", *(run.name for run in runs)]
    caption = "Goodput is the time of steps that were kept, as a share of the time without stops"
    table = layout.table(layout.Table(caption=caption, columns=columns, rows=rows))
    return layout.Section(name="time", title="Where the time went", content=table)


def _spent(record: goodput.TimeRecord | None, state: str) -> Child:
    if record is None:
        return None
    if state == "waiting_for_input" and not record.measures_input:
        return "not measured, part of stepping"
    seconds = record.seconds[state]
    part = seconds / record.wall_seconds if record.wall_seconds else 0.0
    return layout.share(part, f"{layout.duration(seconds)} · {100 * part:.1f} %")


def _starts(record: goodput.TimeRecord | None) -> Child:
    return None if record is None else str(record.starts)


def _goodput(run: Run) -> Child:
    return None if run.goodput is None else f"{100 * run.goodput:.1f} %"


def _one(run: Run) -> Markup:
    entries = _facts(run)
    wide = ("How it ended", "Command", "Folder")
    return layout.facts({name: _shown(value) for name, value in entries.items()}, wide=wide)


def _several(runs: Sequence[Run]) -> Markup:
    found = [_facts(run) for run in runs]
    rows = [
        layout.Row(head=name, cells=[_shown(facts[name]) for facts in found])
        for name in found[0]
        if any(facts[name] is not None for facts in found)
    ]
    columns = ["", *(run.name for run in runs)]
    return layout.table(
        layout.Table(caption="Side by side", columns=columns, rows=rows, class_="broken")
    )


def _shown(value: Child) -> Child:
    return charts.number(value) if isinstance(value, int | float) else value


def _facts(run: Run) -> dict[str, Any]:
    of_all = "" if run.train_steps is None else f" of {run.train_steps:,}"
    return {
        "Status": layout.status(run.status),
        "Experiment": run.experiment or None,
        "Mode": run.mode or None,
        "Step": f"{run.step:,}{of_all}",
        "Best": _best(run),
        "Parameters": run.num_parameters,
        "Duration": layout.duration(run.seconds),
        "Steps per second": run.steps_per_second,
        "Examples per second": run.examples_per_second,
        "Started": layout.when(run.start_time),
        "Seed": None if run.seed is None else str(run.seed),
        "How it ended": run.exit_reason or None,
        "Command": layout.code(run.command),
        "Folder": layout.code(run.model_dir),
    }


def _best(run: Run) -> str | None:
    if run.best is None:
        return None
    name = _best_metric(run)
    if name not in run.best.metrics:
        return f"at step {run.best.step:,}"
    return f"{name} {charts.number(run.best.metrics[name])} at step {run.best.step:,}"


def _best_metric(run: Run) -> str:
    """Return the metric that selects the best checkpoint; the config joins nested names by `|`."""
    trainer = run.config.get("trainer") or {}
    return str(trainer.get("best_checkpoint_eval_metric") or "").replace("|", "/")


def _best_row(run: Run) -> layout.Row:
    if run.best is None:
        return layout.Row(head=run.name, cells=[None] * 3)
    values = [f"{name} {charts.number(value)}" for name, value in run.best.metrics.items()]
    return layout.Row(
        head=run.name, cells=[run.best.step, ", ".join(values), layout.code(run.best.path)]
    )


def _problems(run: Run) -> Child:
    return [layout.note(f"{run.name}: {problem}") for problem in run.problems]


def _architecture(run: Run, *, has_title: bool) -> Child:
    title = tag("h3", run.name) if has_title else None
    try:
        found = architecture.read_found_arch(run.model_dir)
    except errors.ConfigValueError as error:
        return [title, layout.note(str(error))]
    if found is None:
        return None
    at = "" if found.step is None else f" at step {found.step:,}"
    labels = list(found.options) or list(found.arch)
    rows = [layout.Row(head=label, cells=_choice(found, label)) for label in labels]
    columns = ["label", "chosen", "options and their probabilities"]
    table = layout.Table(caption=f"Chosen architecture{at}", columns=columns, rows=rows)
    return [title, layout.table(table), _history(found)]


def _choice(found: architecture.FoundArch, label: str) -> list[Child]:
    chosen = found.arch.get(label)
    options = [str(option) for option in found.options.get(label, ())]
    probs = found.probs.get(label, ())
    if len(options) != len(probs):
        return [None if chosen is None else str(chosen), ", ".join(options)]
    shares = [
        layout.share(p, f"{option} {100 * p:.1f} %")
        for option, p in zip(options, probs, strict=True)
    ]
    return [None if chosen is None else str(chosen), tag("div", shares, class_="shares")]


def _history(found: architecture.FoundArch) -> Child:
    drawn = [_chart(found, label) for label in found.probs]
    if len(found.history) < 2 or not drawn:
        return None
    return charts.foldable_grid(drawn, "choices over time")


def _chart(found: architecture.FoundArch, label: str) -> charts.Chart:
    options = [str(option) for option in found.options.get(label, ())]
    return charts.Chart(
        title=label,
        y_label="probability",
        y_range=(0.0, 1.0),
        series=[
            charts.Series(
                name=option,
                colour=index,
                points=[
                    (step, probs[label][index])
                    for step, probs in found.history
                    if index < len(probs.get(label, ()))
                ],
            )
            for index, option in enumerate(options)
        ],
    )


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
