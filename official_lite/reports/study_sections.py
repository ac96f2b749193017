"""The results of a study, and the sections about them: goal, history, best trials, parameters."""

import collections
import dataclasses
import itertools
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_lite.common import files
from official_lite.reports import charts, markup
from official_lite.reports.markup import Child, tag

__all__ = [
    "Param",
    "Study",
    "Trial",
    "history_charts",
    "is_study",
    "pareto_charts",
    "read_study",
    "report_chart",
    "slice_charts",
    "study_sections",
]

if TYPE_CHECKING:
    import optuna

    from official_lite.search import search_config


_CONFIG = "search.yaml"
_COLOUR, _BEST_COLOUR = 0, 1
# The maximum number of lines in a chart. More lines could not be distinguished.
_MAX_LINES = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Param:
    """A parameter that a study varies.

    Attributes:
        path: Path of the field in the config.
        short_name: The shortest unambiguous part of the path.
        definition: Description of the possible values.
        choices: The possible values of a categorical parameter, or else empty.
        is_log: Whether values are drawn on a logarithmic scale.
        importance: Optuna's estimate of the parameter's effect, from 0 to 1; None if unknown.
    """

    path: str
    short_name: str
    definition: str
    choices: Sequence[str]
    is_log: bool
    importance: float | None

    def position(self, value: Any) -> float:
        """Return the position of a value on an axis: a choice's index, or the number itself."""
        return self.choices.index(_named(value)) if self.choices else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a study.

    Attributes:
        number: Number of the trial.
        state: `complete`, `pruned`, `fail`, `running` or `waiting`.
        values: One value per metric; empty if the trial has none.
        params: The sampled parameter values, by path.
        seconds: Duration in seconds; None while it runs.
        reports: Steps with the values reported at them.
        is_best: Whether no other trial is better or, with several metrics, whether it is on the
            Pareto front.
        model_dir: The model directory of the trial.
        reason: Why the trial failed.
    """

    number: int
    state: str
    values: Sequence[float]
    params: Mapping[str, Any]
    seconds: float | None
    reports: Sequence[tuple[int, float]]
    is_best: bool
    model_dir: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study.

    Attributes:
        name: Name of the study directory.
        study_dir: The study directory.
        config: The config of the search.
        metrics: Names of the optimized metrics, one per direction.
        params: The varied parameters, the most important first if known.
        trials: The trials by number.
        ranking: Numbers of the best trials, best first.
    """

    name: str
    study_dir: str
    config: "search_config.SearchConfig"
    metrics: Sequence[str]
    params: Sequence[Param]
    trials: Sequence[Trial]
    ranking: Sequence[int]

    @property
    def is_minimized(self) -> bool:
        """Whether the first metric is minimized."""
        return self.config.directions[0] == "minimize"


def is_study(directory: str) -> bool:
    """Return whether a directory contains a study."""
    return files.exists(os.path.join(directory, _CONFIG))


def read_study(study_dir: str, *, name: str | None = None, storages: Sequence[str] = ()) -> Study:
    """Read a study, finished or not.

    Args:
        study_dir: The study directory.
        name: Name of the study. Defaults to the name of the directory.
        storages: The databases that may be opened, as for `storage.read_config`.

    Raises:
        errors.ConfigError: The study can't be opened, or Optuna is not installed.
    """
    # Import these modules only here, because only reading a study requires Optuna.
    from official_lite.search import results, storage
    from official_lite.search.search_config import Space

    config = storage.read_config(study_dir, storages)
    study = storage.open_study(config, study_dir)
    space = Space(config.space)
    ranking = [trial.number for trial in results.best_trials(study)]
    best = ranking if len(study.directions) > 1 else ranking[:1]
    return Study(
        name=name or os.path.basename(os.path.abspath(study_dir)),
        study_dir=study_dir,
        config=config,
        metrics=config.value_names,
        params=_params(study, space.distributions),
        trials=[
            _trial(trial, space.decode(trial.params), study_dir, best)
            for trial in study.get_trials(deepcopy=False)
        ],
        ranking=ranking,
    )


def _params(study: "optuna.Study", distributions: Mapping[str, Any]) -> list[Param]:
    from official_lite.search import results

    short = results.short_names(distributions)
    importances = _importances(study)
    found = [
        Param(
            path=path,
            short_name=short[path],
            definition=" | ".join(_choices(one)) or _range(one),
            choices=_choices(one),
            is_log=bool(getattr(one, "log", False)),
            importance=importances.get(path),
        )
        for path, one in distributions.items()
    ]
    return sorted(found, key=lambda param: -(param.importance or 0.0))


def _choices(distribution: "optuna.distributions.BaseDistribution") -> list[str]:
    return [_named(choice) for choice in getattr(distribution, "choices", ())]


def _named(choice: object) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)


def _range(distribution: Any) -> str:
    step = "" if distribution.step in (None, 1) else f", step {distribution.step:g}"
    log = ", log" if distribution.log else ""
    return f"{distribution.low:g} … {distribution.high:g}{step}{log}"


def _importances(study: "optuna.Study") -> dict[str, float]:
    """Return Optuna's estimate of parameter importances; empty if there are too few trials."""
    import optuna

    with warnings.catch_warnings():
        # Suppress Optuna's warning about the accuracy of its estimate.
        warnings.simplefilter("ignore")
        try:
            return dict(optuna.importance.get_param_importances(study))
        except (RuntimeError, ValueError):
            return {}


def _trial(
    trial: "optuna.trial.FrozenTrial", params: dict[str, Any], study_dir: str, best: Sequence[int]
) -> Trial:
    from official_lite.search import results, trial_run

    model_dir = results.trial_dir(study_dir, trial.number)
    state = trial.state.name.lower()
    outcome = trial_run.Outcome.read(model_dir) if state == "fail" else None
    return Trial(
        number=trial.number,
        state=state,
        values=trial.values or (),
        params=params,
        seconds=trial.duration.total_seconds() if trial.duration else None,
        reports=sorted(trial.intermediate_values.items()),
        is_best=trial.number in best,
        model_dir=model_dir,
        reason=outcome.reason if outcome else "",
    )


def study_sections(study: Study) -> list[markup.Section]:
    """Build the sections of a study."""
    return [
        markup.Section(name="overview", title="Overview", content=_overview(study)),
        markup.Section(name="history", title="History", content=_history(study)),
        markup.Section(name="best", title="Best trials", content=_best_trials(study)),
        markup.Section(name="space", title="Parameters", content=_space(study)),
        markup.Section(name="trials", title="All trials", content=_trials(study)),
    ]


def _overview(study: Study) -> Child:
    states = collections.Counter(trial.state for trial in study.trials)
    goals = zip(study.config.directions, study.metrics, strict=True)
    best = [trial for trial in study.trials if trial.is_best]
    folder = {"Folder": markup.code(study.study_dir)}
    entries: dict[str, Child] = {
        "Looks for": ", ".join(f"{direction} {metric}" for direction, metric in goals),
        "Trials": f"{len(study.trials)} of {study.config.num_trials}",
        **{state.capitalize(): number for state, number in states.items()},
        "Best": _values(study, best[0]) if len(best) == 1 else f"{len(best)} on the Pareto front",
        "Strategy": _name(study.config.strategy),
        "Pruner": _name(study.config.pruner),
        "Seed": study.config.seed,
        "Total time of all trials": markup.duration(sum(t.seconds or 0.0 for t in study.trials)),
    }
    if not best:
        entries["Best"] = None
    failed = [trial for trial in study.trials if trial.reason]
    return [markup.facts({**entries, **folder}, wide=folder), _failures(failed)]


def _failures(failed: Sequence[Trial]) -> Child:
    if not failed:
        return None
    rows = [markup.Row(head=trial.number, cells=[trial.reason]) for trial in failed]
    return markup.table(caption="Failed trials", columns=["trial", "reason"], rows=rows)


def _history(study: Study) -> Child:
    on_the_way = report_chart(study)
    drawn = [*history_charts(study), *([on_the_way] if on_the_way else [])]
    fronts = pareto_charts(study)
    return [charts.grid(drawn), charts.grid(fronts) if fronts else None]


def _best_trials(study: Study) -> Child:
    top = study.ranking[: study.config.top_k]
    if not top:
        return markup.note("No trial has a value yet.")
    by_number = {trial.number: trial for trial in study.trials}
    short = [param.short_name for param in study.params]
    rows = [
        markup.Row(
            head=number,
            cells=[
                *by_number[number].values,
                *_tried(study, by_number[number]),
                markup.code(os.path.relpath(by_number[number].model_dir, study.study_dir)),
            ],
        )
        for number in top
    ]
    caption = "The best first" if len(study.metrics) == 1 else "The Pareto front"
    columns = ["trial", *study.metrics, *short, "folder"]
    return markup.table(caption=caption, columns=columns, rows=rows, is_sortable=True)


def _space(study: Study) -> Child:
    rows = [
        markup.Row(head=markup.code(param.path), cells=[param.definition]) for param in study.params
    ]
    columns, caption = ["name", "values"], "The space"
    if any(param.importance is not None for param in study.params):
        columns.append("importance")
        caption += "; importance is Optuna's estimate of a parameter's effect on the metric"
        for row, param in zip(rows, study.params, strict=True):
            part = param.importance
            row.cells.append(None if part is None else markup.share(part, f"{100 * part:.0f} %"))
    return [
        markup.table(caption=caption, columns=columns, rows=rows),
        tag("h3", f"{study.metrics[0]} by parameter"),
        charts.foldable_grid(slice_charts(study)),
    ]


def _trials(study: Study) -> Child:
    short = [param.short_name for param in study.params]
    rows = [
        markup.Row(
            head=trial.number,
            cells=[
                markup.status(trial.state),
                *(trial.values or itertools.repeat(None, len(study.metrics))),
                *_tried(study, trial),
                None if trial.seconds is None else round(trial.seconds, 1),
            ],
            class_="best" if trial.is_best else None,
        )
        for trial in study.trials
    ]
    columns = ["trial", "state", *study.metrics, *short, "seconds"]
    caption = "Click a column to sort by it"
    return markup.table(
        caption=caption, columns=columns, rows=rows, is_sortable=True, class_="long"
    )


def _tried(study: Study, trial: Trial) -> list[Any]:
    return [_shown(trial.params.get(param.path)) for param in study.params]


def _shown(value: object) -> Child:
    """Return a number or string unchanged, so that tables can sort it; other values as JSON."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)


def _values(study: Study, trial: Trial) -> str:
    named = zip(study.metrics, trial.values, strict=True)
    values = ", ".join(f"{name} {markup.number(value)}" for name, value in named)
    return f"{values} (trial {trial.number})"


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
        # Draw the best trial last, so that it is in front.
        series=[_report_series(trial) for trial in reversed(told[:_MAX_LINES])],
    )


def slice_charts(study: Study) -> list[charts.Chart]:
    """Build a chart for each parameter: the first metric over the values of the parameter."""
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
    """Build a series of the complete trials and one of the pruned trials, each if there are any.

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
