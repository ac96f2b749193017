"""The results of a study: its best trials, a table of all trials, and plots."""

import copy
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from absl import logging
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from official_lite.common import errors, files, suggestions
from official_lite.search import search_config
from official_lite.search.search_config import Space

__all__ = [
    "best_trials",
    "describe_best",
    "records",
    "short_names",
    "table",
    "trial_dir",
    "write",
    "write_plots",
]

_TOP_K = "top_k.json"
_INCHES = (9.0, 5.5)


def trial_dir(study_dir: str, number: int) -> str:
    """Return the model directory of a trial."""
    return os.path.join(study_dir, "trials", f"{number:04d}")


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the completed trials, best first.

    With several objectives, return the Pareto front, ordered by trial number.
    """
    if len(study.directions) > 1:
        return sorted(study.best_trials, key=lambda trial: trial.number)
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    # Skip trials with infinite values, which earlier versions marked as complete.
    complete = [trial for trial in ended if math.isfinite(trial.values[0])]
    sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
    return sorted(complete, key=lambda trial: (sign * trial.values[0], trial.number))


def describe_best(study: optuna.Study, config: search_config.SearchConfig, study_dir: str) -> str:
    """Return a sentence that names the best trials and the config that the first was trained with.

    Only trials that trained an experiment have a config.
    """
    best = best_trials(study)
    if not best:
        return "No trial is complete.\n"
    path = os.path.join(trial_dir(study_dir, best[0].number), "params.yaml")
    again = f" To train trial {best[0].number} again, pass {suggestions.config_file(path)}."
    if len(study.directions) > 1:
        found = f"On the Pareto front: {_named_trials([trial.number for trial in best])}."
    else:
        found = (
            f"The best is trial {best[0].number}: {config.value_names[0]} {best[0].values[0]:.5g}."
        )
    return f"{found}{again if files.exists(path) else ''}\n"


def write(
    study: optuna.Study, space: Space, config: search_config.SearchConfig, study_dir: str
) -> None:
    """Write the best `config.top_k` trials to `top_k.json` in the directory of the study."""
    top = [_record(trial, space, config) for trial in best_trials(study)[: config.top_k]]
    files.write_text(os.path.join(study_dir, _TOP_K), files.to_json(top, indent=2) + "\n")


def records(
    study: optuna.Study, space: Space, config: search_config.SearchConfig
) -> list[dict[str, Any]]:
    """Return all trials as JSON-serializable dicts.

    Each dict has the same keys as an entry of `top_k.json`, plus `state` and `seconds`.
    """
    return [
        {
            **_record(trial, space, config),
            "state": trial.state.name.lower(),
            "seconds": trial.duration.total_seconds() if trial.duration else None,
        }
        for trial in study.get_trials(deepcopy=False)
    ]


def table(study: optuna.Study, space: Space, config: search_config.SearchConfig) -> str:
    """Return a table of all trials, one per line, with state, values, parameters and seconds."""
    short = short_names(space.distributions)
    names = config.value_names
    rows = [
        [
            trial["number"],
            trial["state"],
            *(trial["values"].get(name) for name in names),
            *(trial["params"].get(name) for name in short),
            trial["seconds"],
        ]
        for trial in records(study, space, config)
    ]
    header = ["trial", "state", *names, *short.values(), "seconds"]
    return _aligned([header, *([_shown(cell) for cell in row] for row in rows)])


def short_names(names: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Map each dotted name to its shortest suffix that is unique among the names."""
    parts = {name: name.split(".") for name in names}
    short = {}
    for name, own in parts.items():
        lengths = range(1, len(own) + 1)
        others = [other for other in parts.values() if other is not own]
        length = next(
            (n for n in lengths if all(own[-n:] != other[-n:] for other in others)), len(own)
        )
        short[name] = ".".join(own[-length:])
    return short


def _record(trial: FrozenTrial, space: Space, config: search_config.SearchConfig) -> dict[str, Any]:
    return {
        "number": trial.number,
        "values": dict(zip(config.value_names, trial.values, strict=True)) if trial.values else {},
        "params": space.decode(trial.params),
        "model_dir": trial_dir("", trial.number),
    }


def _named_trials(numbers: Sequence[int]) -> str:
    """Return "trial 0", "trials 0 and 2" or "trials 0, 2 and 3"."""
    *others, last = map(str, numbers)
    return f"trials {', '.join(others)} and {last}" if others else f"trial {last}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def write_plots(
    study: optuna.Study, config: search_config.SearchConfig, directory: str
) -> list[str]:
    """Write all plots of a study that have data to show.

    Args:
        study: The study.
        config: The config of the study.
        directory: The directory for the PNG files.

    Returns:
        The paths of the files.

    Raises:
        errors.ConfigValueError: If matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise errors.ConfigValueError(
            "Plots require matplotlib, which is not installed: pip install 'official-lite[search]'"
        ) from error
    # Use a backend that opens no window, even on machines with a display.
    matplotlib.use("Agg")
    files.makedirs(directory)
    shown = _with_short_names(study)
    paths = []
    for name, draw in _plots(config).items():
        axes = _draw(draw, shown)
        if axes is None:
            continue
        figure = axes.figure
        figure.set_size_inches(*_INCHES)
        path = os.path.join(directory, f"{name}.png")
        figure.savefig(path, dpi=100, bbox_inches="tight")
        paths.append(path)
    pyplot.close("all")
    return paths


def _plots(config: search_config.SearchConfig) -> dict[str, Callable[[optuna.Study], Any]]:
    draw: Any = optuna.visualization.matplotlib
    if len(config.directions) > 1:
        names = config.metrics or None
        return {"pareto_front": lambda study: draw.plot_pareto_front(study, target_names=names)}
    name = config.value_names[0]
    return {
        "optimization_history": lambda s: draw.plot_optimization_history(s, target_name=name),
        "intermediate_values": draw.plot_intermediate_values,
        "parallel_coordinate": lambda s: draw.plot_parallel_coordinate(s, target_name=name),
        "slice": lambda s: draw.plot_slice(s, target_name=name),
        "param_importances": lambda s: draw.plot_param_importances(s, target_name=name),
    }


def _draw(draw: Callable[[optuna.Study], Any], study: optuna.Study) -> Any:
    """Return the first axes of a plot, or None if there is nothing to draw."""
    with warnings.catch_warnings():
        # Suppress Optuna's warning that its plot functions are experimental.
        warnings.simplefilter("ignore")
        try:
            axes = draw(study)
        except (RuntimeError, ValueError) as error:
            logging.info("Skipping a plot: %s", error)
            return None
    first = np.ravel(axes)[0]
    return first if first.has_data() else None


def _with_short_names(study: optuna.Study) -> optuna.Study:
    """Return a copy of the study with parameter names that are short enough for axis labels."""
    trials = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
    short = short_names({name: None for t in trials for name in t.params})
    copied = optuna.create_study(directions=study.directions)
    for trial in trials:
        renamed = copy.copy(trial)
        renamed.params = {short[name]: value for name, value in trial.params.items()}
        renamed.distributions = {short[name]: one for name, one in trial.distributions.items()}
        copied.add_trial(renamed)
    return copied
