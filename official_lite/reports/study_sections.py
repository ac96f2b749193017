"""Sections about a study: its goal, history, best trials, search space and all trials."""

import collections
import json
import os
from collections.abc import Sequence
from typing import Any

from official_lite.reports import charts, layout, study_charts
from official_lite.reports.markup import Child, tag
from official_lite.reports.study_reading import Study, Trial

__all__ = ["study_sections"]

_MOST_OPEN_CHARTS = 6


def study_sections(study: Study) -> list[layout.Section]:
    """Build the sections of a study."""
    return [
        layout.Section(name="overview", title="Overview", content=_overview(study)),
        layout.Section(name="history", title="History", content=_history(study)),
        layout.Section(name="best", title="Best trials", content=_best(study)),
        layout.Section(name="space", title="Parameters", content=_space(study)),
        layout.Section(name="trials", title="All trials", content=_trials(study)),
    ]


def _overview(study: Study) -> Child:
    states = collections.Counter(trial.state for trial in study.trials)
    goals = zip(study.config.directions, study.metrics, strict=True)
    best = [trial for trial in study.trials if trial.is_best]
    folder = {"Folder": layout.code(study.study_dir)}
    entries: dict[str, Child] = {
        "Looks for": ", ".join(f"{direction} {metric}" for direction, metric in goals),
        "Trials": f"{len(study.trials)} of {study.config.num_trials}",
        **{state.capitalize(): number for state, number in states.items()},
        "Best": _values(study, best[0]) if len(best) == 1 else f"{len(best)} on the Pareto front",
        "Strategy": _name(study.config.strategy),
        "Pruner": _name(study.config.pruner),
        "Seed": study.config.seed,
        "Total time of all trials": layout.duration(sum(t.seconds or 0.0 for t in study.trials)),
    }
    if not best:
        entries["Best"] = None
    failed = [trial for trial in study.trials if trial.reason]
    return [layout.facts({**entries, **folder}, wide=folder), _failures(failed)]


def _failures(failed: Sequence[Trial]) -> Child:
    if not failed:
        return None
    rows = [layout.Row(head=trial.number, cells=[trial.reason]) for trial in failed]
    table = layout.Table(caption="Failed trials", columns=["trial", "reason"], rows=rows)
    return layout.table(table)


def _history(study: Study) -> Child:
    on_the_way = study_charts.reports(study)
    drawn = [*study_charts.history(study), *([on_the_way] if on_the_way else [])]
    fronts = study_charts.pareto_fronts(study)
    return [charts.grid(drawn), charts.grid(fronts) if fronts else None]


def _best(study: Study) -> Child:
    top = study.ranking[: study.config.top_k]
    if not top:
        return layout.note("No trial has a value yet.")
    by_number = {trial.number: trial for trial in study.trials}
    short = [param.short_name for param in study.params]
    rows = [
        layout.Row(
            head=number,
            cells=[
                *by_number[number].values,
                *_tried(study, by_number[number]),
                layout.code(os.path.relpath(by_number[number].model_dir, study.study_dir)),
            ],
        )
        for number in top
    ]
    caption = "The best first" if len(study.metrics) == 1 else "The Pareto front"
    columns = ["trial", *study.metrics, *short, "folder"]
    return layout.table(layout.Table(caption=caption, columns=columns, rows=rows, is_sortable=True))


def _space(study: Study) -> Child:
    has_importances = any(param.importance is not None for param in study.params)
    rows = [
        layout.Row(
            head=layout.code(param.path),
            cells=[param.definition, _share(param.importance)]
            if has_importances
            else [param.definition],
        )
        for param in study.params
    ]
    columns = ["name", "values", "importance"] if has_importances else ["name", "values"]
    caption = "The space"
    if has_importances:
        caption += "; importance is Optuna's estimate of a parameter's effect on the metric"
    slices = study_charts.slices(study)
    table = layout.table(layout.Table(caption=caption, columns=columns, rows=rows))
    shown = charts.grid(slices)
    if len(slices) > _MOST_OPEN_CHARTS:
        shown = tag("details", tag("summary", f"{len(slices)} charts"), shown)
    return [table, tag("h3", f"{study.metrics[0]} by parameter"), shown]


def _trials(study: Study) -> Child:
    short = [param.short_name for param in study.params]
    rows = [
        layout.Row(
            head=trial.number,
            cells=[
                layout.status(trial.state),
                *_values_or_none(study, trial),
                *_tried(study, trial),
                None if trial.seconds is None else round(trial.seconds, 1),
            ],
            class_="best" if trial.is_best else None,
        )
        for trial in study.trials
    ]
    columns = ["trial", "state", *study.metrics, *short, "seconds"]
    caption = "Click a column to sort by it"
    return layout.table(
        layout.Table(caption=caption, columns=columns, rows=rows, is_sortable=True, class_="long")
    )


def _values_or_none(study: Study, trial: Trial) -> Sequence[float | None]:
    return trial.values or [None] * len(study.metrics)


def _tried(study: Study, trial: Trial) -> list[Any]:
    return [_shown(trial.params.get(param.path)) for param in study.params]


def _shown(value: object) -> Child:
    """Return numbers and strings unchanged, so that tables sort numbers as such; others as JSON."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)


def _values(study: Study, trial: Trial) -> str:
    named = zip(study.metrics, trial.values, strict=True)
    values = ", ".join(f"{name} {charts.number(value)}" for name, value in named)
    return f"{values} (trial {trial.number})"


def _share(importance: float | None) -> Child:
    return None if importance is None else layout.share(importance, f"{100 * importance:.0f} %")


def _name(plugin: Any) -> str:
    return plugin if isinstance(plugin, str) else str(plugin.name)
