"""A trial that is a run of an experiment, with what is tried in its config."""

import copy
from collections.abc import Mapping
from typing import Any

from official_lite.common import errors
from official_lite.core import config_changes, phase_configs
from official_lite.modeling.hyperparams import csv_override
from official_lite.search import space as space_lib
from official_lite.search.trial_run import TrialRun

__all__ = ["ExperimentEvaluator", "apply_params", "metrics_of"]

_REPORT_HOOK = "report_trial"


class ExperimentEvaluator:
    """Trains and evaluates an experiment in the directory of the trial.

    The trial goes on from its own checkpoint if it was broken off. What it has left behind repeats
    it: `train.py` with the `params.yaml` of its directory as `--config_file` trains the same.

    Args:
        params: The experiment's config.
        allow_config_change: Whether a trial may go on with the checkpoints of another config.

    Raises:
        errors.ConfigValueError: The experiment has phases.
    """

    def __init__(self, params: Any, *, allow_config_change: bool = False) -> None:
        if getattr(params, "phases", None):
            raise errors.ConfigValueError(
                "An experiment with `phases` can't be searched: which of them would count? Search "
                "each by itself."
            )
        self._params = params.replace(search=None)
        self._allow_config_change = allow_config_change

    def check(self, space: space_lib.Space) -> None:
        """Makes sure that the config can take the ends of each range, and each choice.

        Raises:
            errors.ConfigError: It can't.
        """
        for example in space.examples():
            self.trial_params(example)

    def origin(self) -> dict[str, Any]:
        """What two studies must have in common for their values to be comparable."""
        return config_changes.flatten(self._params.as_dict())

    def trial_params(self, tried: Mapping[str, Any]) -> Any:
        """The config of a trial.

        Raises:
            errors.ConfigError: It can't be, such as a path that there is not.
        """
        params = apply_params(self._params, tried)
        hooks = [h if isinstance(h, str) else h.as_dict() for h in params.trainer.hooks]
        params.trainer.hooks = [*hooks, _REPORT_HOOK]
        params.validate()
        phase_configs.check(params)
        params.lock()
        return params

    def __call__(self, trial: TrialRun) -> dict[str, float]:
        """Runs the trial.

        Returns:
            The metrics of its last evaluation by their names, nested ones joined by `/`, and
            `num_parameters`.
        """
        params = self.trial_params(trial.params)
        # Whoever only starts the processes of trials needs no TensorFlow.
        from official_lite import pipeline
        from official_lite.core import model_summary, runtime

        runtime.forget_last_run()
        model, logs = pipeline.RunPipeline(
            params,
            trial.config.mode,
            trial.model_dir,
            allow_config_change=self._allow_config_change,
        ).run()
        metrics = metrics_of(logs)
        if model is not None:
            metrics["num_parameters"] = float(model_summary.try_count_params(model) or 0)
        return metrics


def apply_params(params: Any, tried: Mapping[str, Any]) -> Any:
    """An unlocked copy of a config with what is tried in its place.

    All of it comes at once, since what one path selects another one may be about.

    Raises:
        errors.ConfigError: There is no such path, or it does not take the value.
    """
    changed = params.replace()
    merged: dict[Any, Any] = {}
    for name, value in tried.items():
        _merge(merged, csv_override.nest(space_lib.path_of(name), copy.deepcopy(value)))
    try:
        changed.override(merged)
    except errors.ConfigError as error:
        raise type(error)(f"In `search.space`: {error}") from error
    return changed


def metrics_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the results of an evaluation, nested ones with `/` between their names."""
    import numpy as np

    from official_lite.orbit.hooks import watched_metric

    flat = {name: np.asarray(value) for name, value in watched_metric.flatten(logs).items()}
    return {name: float(value.reshape(())) for name, value in flat.items() if value.size == 1}


def _merge(into: dict[Any, Any], new: Mapping[Any, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), Mapping):
            _merge(into[key], value)
        else:
            into[key] = value
