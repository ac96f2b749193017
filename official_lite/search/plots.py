"""Plots of a study: Optuna's plots, drawn with matplotlib."""

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from absl import logging

from official_lite.common import errors, files
from official_lite.search import results, search_config

__all__ = ["write_plots"]

_INCHES = (9.0, 5.5)


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
    name = (config.metrics or ["value"])[0]
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
        # Optuna warns that these functions are experimental, although they are years old.
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
    short = results.short_names({name: None for t in trials for name in t.params})
    copied = optuna.create_study(directions=study.directions)
    for trial in trials:
        renamed = copy.copy(trial)
        renamed.params = {short[name]: value for name, value in trial.params.items()}
        renamed.distributions = {short[name]: one for name, one in trial.distributions.items()}
        copied.add_trial(renamed)
    return copied
