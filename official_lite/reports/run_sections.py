"""Sections about runs: overview, curves, speed, time, checkpoints, architecture and config."""

import dataclasses
import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from official_lite.common import errors, goodput
from official_lite.config import compatibility
from official_lite.nas import architecture
from official_lite.reports import charts, markup
from official_lite.reports.markup import Child, Markup, tag
from official_lite.run.run_reading import Run, Series

__all__ = [
    "architectures",
    "checkpoints",
    "config",
    "curves",
    "environment",
    "overview",
    "throughput",
    "time_spent",
]

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
# The text before the name of a row if its values differ, including a non-breaking space.
_DIFFERENT = "≠\N{NO-BREAK SPACE}"


def overview(runs: Sequence[Run]) -> markup.Section:
    """Build the section with the facts about the runs and how they ended."""
    shown = _one(runs[0]) if len(runs) == 1 else _several(runs)
    problems = [markup.note(f"{run.name}: {problem}") for run in runs for problem in run.problems]
    content = [shown, problems]
    return markup.Section(name="overview", title="Overview", content=content)


def checkpoints(runs: Sequence[Run]) -> markup.Section | None:
    """Build the section with the checkpoints; return None if there are none."""
    rows = [
        markup.Row(
            head=run.name,
            cells=[
                one.step,
                round(one.size / 1e6, 3),
                "yes" if one.is_committed else "not known",
                markup.code(one.path),
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
        shown.append(markup.table(caption=caption, columns=columns, rows=best))
    if rows:
        columns = ["run", "step", "MB", "complete", "checkpoint"]
        caption = "Checkpoints to resume from"
        shown.append(markup.table(caption=caption, columns=columns, rows=rows, is_sortable=True))
    return markup.Section(name="checkpoints", title="Checkpoints", content=shown)


def architectures(runs: Sequence[Run]) -> markup.Section | None:
    """Build the section with the results of architecture searches; return None without any."""
    shown = [_architecture(run, has_title=len(runs) > 1) for run in runs]
    if not any(shown):
        return None
    return markup.Section(name="architecture", title="Architecture search", content=shown)


def time_spent(runs: Sequence[Run]) -> markup.Section | None:
    """Build the section with the seconds in each state; return None if none were recorded."""
    if all(run.time_record is None for run in runs):
        return None
    rows = [
        markup.Row(
            head=[state.replace("_", " "), tag("div", text, class_="dim")],
            cells=[_spent(run.time_record, state) for run in runs],
        )
        for state, text in _STATES.items()
    ]
    totals = [run.time_record.wall_seconds if run.time_record else None for run in runs]
    rows.append(markup.Row(head="in total", cells=[markup.duration(each) for each in totals]))
    starts = [str(run.time_record.starts) if run.time_record else None for run in runs]
    rows.append(markup.Row(head="starts", cells=starts))
    goodputs = [None if run.goodput is None else f"{100 * run.goodput:.1f} %" for run in runs]
    rows.append(markup.Row(head="goodput", cells=goodputs, class_="best"))
    columns = ["", *(run.name for run in runs)]
    caption = "Goodput is the time of steps that were kept, as a share of the time without stops"
    table = markup.table(caption=caption, columns=columns, rows=rows)
    return markup.Section(name="time", title="Where the time went", content=table)


def _spent(record: goodput.TimeRecord | None, state: str) -> Child:
    if record is None:
        return None
    if state == "waiting_for_input" and not record.measures_input:
        return "not measured, part of stepping"
    seconds = record.seconds[state]
    part = seconds / record.wall_seconds if record.wall_seconds else 0.0
    return markup.share(part, f"{markup.duration(seconds)} · {100 * part:.1f} %")


def _one(run: Run) -> Markup:
    entries = _facts(run)
    wide = ("How it ended", "Command", "Folder")
    return markup.facts({name: _shown(value) for name, value in entries.items()}, wide=wide)


def _several(runs: Sequence[Run]) -> Markup:
    found = [_facts(run) for run in runs]
    rows = [
        markup.Row(head=name, cells=[_shown(facts[name]) for facts in found])
        for name in found[0]
        if any(facts[name] is not None for facts in found)
    ]
    columns = ["", *(run.name for run in runs)]
    return markup.table(caption="Side by side", columns=columns, rows=rows, class_="broken")


def _shown(value: Child) -> Child:
    return markup.number(value) if isinstance(value, int | float) else value


def _facts(run: Run) -> dict[str, Any]:
    of_all = "" if run.train_steps is None else f" of {run.train_steps:,}"
    return {
        "Status": markup.status(run.status),
        "Experiment": run.experiment or None,
        "Mode": run.mode or None,
        "Step": f"{run.step:,}{of_all}",
        "Best": _best(run),
        "Parameters": run.num_parameters,
        "Duration": markup.duration(run.seconds),
        "Steps per second": run.steps_per_second,
        "Examples per second": run.examples_per_second,
        "Started": markup.when(run.start_time),
        "Seed": None if run.seed is None else str(run.seed),
        "How it ended": run.exit_reason or None,
        "Command": markup.code(run.command),
        "Folder": markup.code(run.model_dir),
    }


def _best(run: Run) -> str | None:
    if run.best is None:
        return None
    name = _best_metric(run)
    if name not in run.best.metrics:
        return f"at step {run.best.step:,}"
    return f"{name} {markup.number(run.best.metrics[name])} at step {run.best.step:,}"


def _best_metric(run: Run) -> str:
    """Return the metric that selects the best checkpoint, with `/` between nested names.

    The config separates nested names by `|`.
    """
    trainer = run.config.get("trainer") or {}
    return str(trainer.get("best_checkpoint_eval_metric") or "").replace("|", "/")


def _best_row(run: Run) -> markup.Row:
    if run.best is None:
        return markup.Row(head=run.name, cells=[None] * 3)
    values = [f"{name} {markup.number(value)}" for name, value in run.best.metrics.items()]
    return markup.Row(
        head=run.name, cells=[run.best.step, ", ".join(values), markup.code(run.best.path)]
    )


def _architecture(run: Run, *, has_title: bool) -> Child:
    title = tag("h3", run.name) if has_title else None
    try:
        found = architecture.read_found_arch(run.model_dir)
    except errors.ConfigValueError as error:
        return [title, markup.note(str(error))]
    if found is None:
        return None
    at = "" if found.step is None else f" at step {found.step:,}"
    labels = list(found.options) or list(found.arch)
    rows = [markup.Row(head=label, cells=_choice(found, label)) for label in labels]
    columns = ["label", "chosen", "options and their probabilities"]
    table = markup.table(caption=f"Chosen architecture{at}", columns=columns, rows=rows)
    return [title, table, _history(found)]


def _choice(found: architecture.FoundArch, label: str) -> list[Child]:
    chosen = found.arch.get(label)
    options = [str(option) for option in found.options.get(label, ())]
    probs = found.probs.get(label, ())
    if len(options) != len(probs):
        return [None if chosen is None else str(chosen), ", ".join(options)]
    shares = [
        markup.share(p, f"{option} {100 * p:.1f} %")
        for option, p in zip(options, probs, strict=True)
    ]
    return [None if chosen is None else str(chosen), tag("div", shares, class_="shares")]


def _history(found: architecture.FoundArch) -> Child:
    drawn = [_history_chart(found, label) for label in found.probs]
    if len(found.history) < 2 or not drawn:
        return None
    return charts.foldable_grid(drawn, "choices over time")


def _history_chart(found: architecture.FoundArch, label: str) -> charts.Chart:
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


def config(runs: Sequence[Run]) -> markup.Section:
    """Build the config section: the fields of one run, or the differences between several."""
    rows = _rows([compatibility.flatten(run.config or run.given) for run in runs])
    content = _fields(runs, rows) if rows else markup.note("No config was found.")
    return markup.Section(name="config", title="Config", content=content)


def environment(runs: Sequence[Run]) -> markup.Section:
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
    table = markup.table(
        caption="Hosts and versions",
        columns=["", *(run.name for run in runs)],
        rows=_rows(known),
        class_="broken",
    )
    return markup.Section(name="environment", title="Environment", content=table)


def _fields(runs: Sequence[Run], rows: Sequence[markup.Row]) -> Markup:
    table = markup.table(
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
        table,
        open=not has_one_run,
    )


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[markup.Row]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [_row(name, columns) for name in names]


def _row(name: str, columns: Sequence[Mapping[str, Any]]) -> markup.Row:
    # Compare values as JSON, which distinguishes the string "3" from the number 3.
    given = {json.dumps(column[name]) if name in column else None for column in columns}
    return markup.Row(
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


_TEXT_COLOUR = 6
_ZOOM_HINT = tag(
    "p",
    "Drag over a range of a chart to zoom in, and double-click to see all of it. "
    "With the keyboard: arrow keys, + and −, Escape.",
    class_="dim hint",
)
_SPEED = ("per_second", "seconds_per", "_secs", "input_wait")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Curve:
    """A metric of one split of one run.

    Attributes:
        run: Index of the run.
        split: The split.
        quantity: The measured quantity: `loss` for both `training_loss` and `validation_loss`.
        points: Steps and values.
        minutes: Time of each point in minutes since the run started; empty if unknown.
    """

    run: int
    split: str
    quantity: str
    points: list[tuple[int, float]]
    minutes: list[float]


def curves(runs: Sequence[Run]) -> markup.Section:
    """Build the section with all metrics; training and validation share a chart per metric."""
    found = [curve for curve in _curves(runs) if not _is_speed(curve.quantity)]
    content: Child = markup.note("No metrics were recorded.")
    if found:
        content = [_switches(runs, found), _ZOOM_HINT, _grid(runs, found), _values(runs, found)]
    return markup.Section(name="curves", title="Curves", content=content)


def throughput(runs: Sequence[Run]) -> markup.Section | None:
    """Build the section about speed; return None if no speed was recorded."""
    found = [curve for curve in _curves(runs) if _is_speed(curve.quantity)]
    rows = [
        markup.Row(
            head=run.name,
            cells=[
                run.steps_per_second,
                run.examples_per_second,
                markup.duration(run.seconds),
                run.execution.describe() if run.execution else None,
            ],
        )
        for run in runs
    ]
    if not found and all(run.seconds is None for run in runs):
        return None
    columns = ["run", "steps per second", "examples per second", "duration", "execution mode"]
    caption = "Medians over all training reports"
    table = markup.table(caption=caption, columns=columns, rows=rows)
    content = [table, _grid(runs, found)]
    return markup.Section(name="throughput", title="Throughput", content=content)


def _curves(runs: Sequence[Run]) -> Iterator[_Curve]:
    for number, run in enumerate(runs):
        for split, named in run.series.items():
            for name, series in named.items():
                # Skip the curve of the best value so far, which the metric's own curve already
                # shows.
                if name.startswith("best_") and name.removeprefix("best_") in named:
                    continue
                yield _Curve(
                    run=number,
                    split=split,
                    quantity=_quantity(split, name, named),
                    points=list(zip(series.steps, series.values, strict=True)),
                    minutes=_minutes(run, series),
                )


def _minutes(run: Run, series: Series) -> list[float]:
    times = [time for time in series.wall_times if time is not None]
    if len(times) < len(series.wall_times):
        return []
    reported = [one.wall_times[0] for named in run.series.values() for one in named.values()]
    began = [time for time in (*reported, run.start_time) if time is not None]
    return [(time - min(began)) / 60 for time in times]


def _quantity(split: str, name: str, others: Container[str]) -> str:
    """Return a metric's name without the prefix of its split, so that splits share a chart.

    If a split has both `training_loss` and a metric `loss`, for example, the name of the metric
    becomes `loss (metric)`, so that it is not drawn in the chart of the trainer's loss.
    """
    prefixes = {"train": "training_", "validation": "validation_", "test": "test_"}
    prefix = prefixes.get(split, "")
    if prefix and f"{prefix}{name}" in others:
        return f"{name} (metric)"
    return name.removeprefix(prefix) or name


def _is_speed(quantity: str) -> bool:
    return any(word in quantity for word in _SPEED)


def _grid(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    return charts.grid([_chart(runs, quantity, found) for quantity in _quantities(found)])


def _quantities(found: Sequence[_Curve]) -> list[str]:
    """Return the quantities in display order.

    Quantities of several splits precede quantities of one split. In each group, losses come first.
    """
    splits: dict[str, set[str]] = {}
    for curve in found:
        splits.setdefault(curve.quantity, set()).add(curve.split)
    return sorted(splits, key=lambda name: (len(splits[name]) == 1, not name.endswith("loss")))


def _chart(runs: Sequence[Run], quantity: str, found: Sequence[_Curve]) -> charts.Chart:
    own = [curve for curve in found if curve.quantity == quantity]
    return charts.Chart(
        title=quantity,
        series=[_series(runs, curve, own) for curve in own],
        x_label="epoch" if _count_epochs(runs) else "step",
        is_smoothed=True,
    )


def _count_epochs(runs: Sequence[Run]) -> bool:
    """Return whether the x axis shows epochs, which requires their length for all runs."""
    return all(run.steps_per_epoch for run in runs)


def _series(runs: Sequence[Run], curve: _Curve, others: Sequence[_Curve]) -> charts.Series:
    is_alone = all(other.split == curve.split for other in others)
    stands_back = len(runs) > 1 and curve.split == "train" and not is_alone
    points: list[tuple[float, float]] = list(curve.points)
    if _count_epochs(runs):
        points = [(step / (runs[curve.run].steps_per_epoch or 1), y) for step, y in points]
    return charts.Series(
        name=curve.split if len(runs) == 1 else f"{runs[curve.run].name}, {curve.split}",
        points=points,
        minutes=curve.minutes,
        colour=_colour(runs, curve.run, curve.split),
        look="dashed" if stands_back else "solid",
        run=curve.run,
        split=curve.split,
    )


def _colour(runs: Sequence[Run], number: int, split: str) -> int:
    """Return the color index: one per run, or, for a single run, one per split."""
    return number if len(runs) > 1 else list(runs[0].series).index(split)


def _switches(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    slider = tag("input", type="range", min=0, max=0.99, step=0.01, value=0, data_smoothing=True)
    smoothing = tag("label", "Smoothing ", slider, tag("output", "0.00"))
    box = tag("input", type="checkbox", autocomplete="off", data_clock=True)
    clock = tag("label", box, "over time")
    shown: Child = [
        smoothing,
        clock if all(curve.minutes for curve in found) else None,
        _run_switches(runs),
        _split_switches(runs, found),
    ]
    return tag("div", shown, class_="switches", role="group", aria_label="What the curves show")


def _run_switches(runs: Sequence[Run]) -> Child:
    if len(runs) == 1:
        return None
    return [
        _switch(run.name, charts.Series(name="", points=(), colour=number), run=number)
        for number, run in enumerate(runs)
    ]


def _split_switches(runs: Sequence[Run], found: Sequence[_Curve]) -> Child:
    splits = dict.fromkeys(curve.split for curve in found)
    return [
        _switch(
            split,
            charts.Series(
                name="",
                points=(),
                # With several runs, use the text color, because the other colors identify runs.
                colour=_colour(runs, 0, split) if len(runs) == 1 else _TEXT_COLOUR,
                look="dashed" if len(runs) > 1 and split == "train" else "solid",
            ),
            split=split,
        )
        for split in splits
    ]


def _switch(
    name: str, sample: charts.Series, *, run: int | None = None, split: str | None = None
) -> Markup:
    box = tag("input", type="checkbox", checked=True, data_run=run, data_split=split)
    return tag("label", box, charts.swatch(sample), tag("span", name))


def _values(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    if len(runs) > 1:
        return _values_by_run(runs, found)
    rows = [
        markup.Row(head=f"{curve.split}/{curve.quantity}", cells=_extremes(curve))
        for curve in found
    ]
    columns = ["metric", "last", "at step", "least", "at step", "greatest", "at step"]
    return markup.table(caption="Finite values", columns=[*columns, "non-finite values"], rows=rows)


def _extremes(curve: _Curve) -> list[float | None]:
    finite = [(value, step) for step, value in curve.points if math.isfinite(value)]
    number = len(curve.points) - len(finite)
    if not finite:
        return [*[None] * 6, number]
    return [*finite[-1], *min(finite), *max(finite), number or None]


def _values_by_run(runs: Sequence[Run], found: Sequence[_Curve]) -> Markup:
    names = [(curve.split, curve.quantity) for curve in found]
    names = sorted(dict.fromkeys(names), key=lambda name: name[0] == "train")
    last = {(c.run, c.split, c.quantity): c.points[-1][1] for c in found}
    rows = [
        markup.Row(head=run.name, cells=[last.get((number, *name)) for name in names])
        for number, run in enumerate(runs)
    ]
    return markup.table(
        caption="Last values",
        columns=["run", *(f"{split}/{quantity}" for split, quantity in names)],
        rows=rows,
        is_sortable=True,
    )
