"""Sections about a study: its goal, history, best trials, search space and all trials."""

import collections
import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from official_lite.reports import charts, layout
from official_lite.reports.markup import Child, tag
from official_lite.reports.study_reading import Param, Study, Trial

__all__ = ["history_charts", "pareto_charts", "report_chart", "slice_charts", "study_sections"]

_COLOUR, _BEST_COLOUR = 0, 1
# More lines than this can't be distinguished.
_MOST_LINES = 40


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
    on_the_way = report_chart(study)
    drawn = [*history_charts(study), *([on_the_way] if on_the_way else [])]
    fronts = pareto_charts(study)
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
    table = layout.table(layout.Table(caption=caption, columns=columns, rows=rows))
    return [
        table,
        tag("h3", f"{study.metrics[0]} by parameter"),
        charts.foldable_grid(slice_charts(study)),
    ]


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


def history_charts(study: Study) -> list[charts.Chart]:
    """Build a chart of the trial values for each metric.

    The chart of a single metric also shows the best value so far.
    """
    return [_history_chart(study, index) for index in range(len(study.metrics))]


def report_chart(study: Study) -> charts.Chart | None:
    """Build a chart of the intermediate values of the best trials, with the best one in front.

    Returns None if no trial has reported any.
    """
    ranked = {number: rank for rank, number in enumerate(study.ranking)}
    told = [trial for trial in study.trials if trial.reports]
    told.sort(key=lambda trial: ranked.get(trial.number, math.inf))
    if not told:
        return None
    return charts.Chart(
        title=f"{study.metrics[0]} during training",
        # The series that is drawn last is in front.
        series=[_report_series(trial) for trial in reversed(told[:_MOST_LINES])],
    )


def slice_charts(study: Study) -> list[charts.Chart]:
    """Build a chart for each path of the space: the first metric by the value of the path."""
    return [_slice_chart(study, param) for param in study.params]


def pareto_charts(study: Study) -> list[charts.Chart]:
    """Build a chart for each pair of metrics; there is none for a single metric."""
    return [
        _pareto_chart(study, x, y) for x, y in itertools.combinations(range(len(study.metrics)), 2)
    ]


def _history_chart(study: Study, metric: int) -> charts.Chart:
    known = _with_values(study)
    series = _by_state(known, lambda trial: (trial.number, trial.values[metric]))
    if len(study.metrics) == 1:
        series.append(_best_so_far(study))
    return charts.Chart(title=study.metrics[metric], series=series, x_label="trial")


def _best_so_far(study: Study) -> charts.Series:
    complete = [trial for trial in study.trials if trial.state == "complete" and trial.values]
    pick = min if study.is_minimized else max
    values = list(itertools.accumulate((trial.values[0] for trial in complete), pick))
    points = list(zip((trial.number for trial in complete), values, strict=True))
    if points:
        points.append((len(study.trials) - 1, values[-1]))
    return charts.Series(name="best so far", points=points, colour=_BEST_COLOUR, look="steps")


def _report_series(trial: Trial) -> charts.Series:
    return charts.Series(
        name=f"trial {trial.number}{', the best' if trial.is_best else ''}",
        group="" if trial.is_best else "other trials",
        points=trial.reports,
        colour=_BEST_COLOUR if trial.is_best else _COLOUR,
        look="solid" if trial.is_best else "dashed",
    )


def _slice_chart(study: Study, param: Param) -> charts.Chart:
    def point(trial: Trial) -> tuple[float, float]:
        return param.position(trial.params[param.path]), trial.values[0]

    return charts.Chart(
        title=param.short_name,
        x_label=param.short_name,
        y_label=study.metrics[0],
        x_names=param.choices,
        x_is_log=param.is_log,
        series=_by_state([t for t in _with_values(study) if param.path in t.params], point),
    )


def _pareto_chart(study: Study, x: int, y: int) -> charts.Chart:
    known = [trial for trial in _with_values(study) if trial.state == "complete"]
    groups = {
        "Pareto front": [trial for trial in known if trial.is_best],
        "others": [trial for trial in known if not trial.is_best],
    }
    return charts.Chart(
        title=f"{study.metrics[y]} and {study.metrics[x]}",
        x_label=study.metrics[x],
        y_label=study.metrics[y],
        series=[
            charts.Series(
                name=name,
                points=[(trial.values[x], trial.values[y]) for trial in trials],
                labels=[f"trial {trial.number}" for trial in trials],
                colour=_BEST_COLOUR if name == "Pareto front" else _COLOUR,
                look="dots" if name == "Pareto front" else "rings",
            )
            for name, trials in groups.items()
            if trials
        ],
    )


def _by_state(
    trials: Sequence[Trial], point: Callable[[Trial], tuple[float, float]]
) -> list[charts.Series]:
    """Build one series per state.

    Pruned trials are less prominent, because their values are not final.
    """
    looks: dict[str, charts.Look] = {"complete": "dots", "pruned": "rings"}
    return [
        charts.Series(
            name=state,
            points=[point(trial) for trial in trials if trial.state == state],
            labels=[f"trial {trial.number}" for trial in trials if trial.state == state],
            colour=_COLOUR,
            look=look,
        )
        for state, look in looks.items()
        if any(trial.state == state for trial in trials)
    ]


def _with_values(study: Study) -> list[Trial]:
    return [trial for trial in study.trials if len(trial.values) == len(study.metrics)]
