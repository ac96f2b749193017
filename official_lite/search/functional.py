"""Trials that call a function written by the user.

::

    def fit(model, report, epochs):
        for epoch in range(epochs):
            report(train_and_test(model))
        return test(model)

`fit` does the whole training itself, with two consequences: the study can prune a trial only by the
values that `fit` reports, and an interrupted trial restarts from the beginning unless `fit` saves
and restores its own state.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from official_lite.common import plugins
from official_lite.core import config_definitions as cfg
from official_lite.search import search_config
from official_lite.search.experiment_evaluator import apply_params, metrics_of
from official_lite.search.trial_run import TrialRun

__all__ = ["FunctionalTrainer", "ModelEvaluator", "TaskModel", "TaskTrainer", "evaluator_of"]


class FunctionalTrainer:
    """A trainer that calls a function with the model of a trial.

    Args:
        fit: Function that is called with the model and `kwargs`. If it has a parameter `report`, it
            receives the trial's `report(value, step)`; if it has a parameter `trial`, it receives
            the `TrialRun`. It either returns the final value or reports it with
            `report_final_result`.
        **kwargs: Keyword arguments passed to `fit`.
    """

    def __init__(self, fit: Callable[..., Any], **kwargs: Any) -> None:
        self._fit = fit
        self._kwargs = kwargs

    def __call__(self, model: object, trial: TrialRun) -> Any:
        """Call `fit` with the model and return its result."""
        offered = {"report": trial.report, "trial": trial}
        wanted = inspect.signature(self._fit).parameters
        extra = {name: offered[name] for name in offered if name in wanted}
        return self._fit(model, **{**extra, **self._kwargs})


class TaskTrainer:
    """A trainer for a task that receives the candidate model through `set_model`.

    This corresponds to NNI's Lightning evaluator: each trial creates a new task and calls
    `set_model` with the candidate before it calls any other method. The task may own further parts
    of what is trained.

    Args:
        task_cls: Callable that builds the task from `params.task`. The task must have a method
            `set_model(model)`.
        params: The experiment's config. The study optimizes the metrics of this experiment.
    """

    def __init__(self, task_cls: Callable[..., Any], params: cfg.ExperimentConfig) -> None:
        self._task_cls = task_cls
        self._params = params

    def __call__(self, model: object, trial: TrialRun) -> Any:
        """Train in the trial's model directory and return the metrics of the last evaluation."""
        from official_lite.core import train_lib
        from official_lite.run import runtime
        from official_lite.search.report_hook import ReportTrial

        runtime.forget_last_run()
        task = self._task_cls(self._params.task, logging_dir=trial.model_dir)
        task.set_model(model)
        _, logs = train_lib.run_experiment(
            runtime.build_strategy(self._params.runtime),
            task,
            trial.config.mode,
            self._params,
            trial.model_dir,
            run_post_eval=True,
            hooks=[ReportTrial()],
        )
        return metrics_of(logs)


class ModelEvaluator:
    """An evaluator that builds the model of a trial and passes it to a trainer.

    Args:
        build_model: Function that takes the trial's values by name and returns the model.
        trainer: Callable that takes the model and the trial and returns the result.
    """

    def __init__(
        self,
        build_model: Callable[[Mapping[str, Any]], Any],
        trainer: Callable[[Any, TrialRun], Any],
    ) -> None:
        self._build_model = build_model
        self._trainer = trainer

    def __call__(self, trial: TrialRun) -> Any:
        return self._trainer(self._build_model(trial.params), trial)


class TaskModel:
    """A model builder that calls the task of an experiment with the trial's values in its config.

    Args:
        params: The experiment's config.
    """

    def __init__(self, params: cfg.ExperimentConfig) -> None:
        self._params = params.replace(search=None)

    def __call__(self, tried: Mapping[str, Any]) -> Any:
        from official_lite.core import task_factory, trainer_factory

        task = task_factory.get_task(apply_params(self._params, tried).task)
        return trainer_factory.build_model(task)


def evaluator_of(
    config: search_config.SearchConfig, params: cfg.ExperimentConfig
) -> ModelEvaluator:
    """Return the evaluator that `search.evaluator` names.

    Raises:
        errors.ConfigError: If the function is missing or does not accept the arguments.
    """
    entry = search_config.entry_of(config.evaluator)
    named = {"name": entry} if isinstance(entry, str) else entry
    fit = plugins.resolve(named["name"], workspace=params.workspace or None, kind="evaluator")
    kwargs = {key: value for key, value in named.items() if key != "name"}
    return ModelEvaluator(TaskModel(params), FunctionalTrainer(fit, **kwargs))
