"""Charts of a study: values by trial, intermediate values, values by parameter, Pareto fronts."""

import itertools
import json
import math
from collections.abc import Callable, Sequence

from official_lite.reports import charts
from official_lite.reports.study_reading import Param, Study, Trial

__all__ = ["history", "pareto_fronts", "reports", "slices"]

_COLOUR, _BEST_COLOUR = 0, 1
# More lines than this can't be distinguished.
_MOST_LINES = 40


def history(study: Study) -> list[charts.Chart]:
    """Build a chart of the trial values for each metric.

    The chart of a single metric also shows the best value so far.
    """
    return [_history(study, index) for index in range(len(study.metrics))]


def reports(study: Study) -> charts.Chart | None:
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
        series=[_report(trial) for trial in reversed(told[:_MOST_LINES])],
    )


def slices(study: Study) -> list[charts.Chart]:
    """Build a chart for each path of the space: the first metric by the value of the path."""
    return [_slice(study, param) for param in study.params]


def pareto_fronts(study: Study) -> list[charts.Chart]:
    """Build a chart for each pair of metrics; there is none for a single metric."""
    return [_front(study, x, y) for x, y in itertools.combinations(range(len(study.metrics)), 2)]


def _history(study: Study, metric: int) -> charts.Chart:
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


def _report(trial: Trial) -> charts.Series:
    return charts.Series(
        name=f"trial {trial.number}{', the best' if trial.is_best else ''}",
        group="" if trial.is_best else "other trials",
        points=trial.reports,
        colour=_BEST_COLOUR if trial.is_best else _COLOUR,
        look="solid" if trial.is_best else "dashed",
    )


def _slice(study: Study, param: Param) -> charts.Chart:
    def point(trial: Trial) -> tuple[float, float]:
        value = trial.params[param.path]
        return param.choices.index(_named(value)) if param.choices else value, trial.values[0]

    return charts.Chart(
        title=param.short_name,
        x_label=param.short_name,
        y_label=study.metrics[0],
        x_names=param.choices,
        x_is_log=param.is_log,
        series=_by_state([t for t in _with_values(study) if param.path in t.params], point),
    )


def _front(study: Study, x: int, y: int) -> charts.Chart:
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


def _named(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
