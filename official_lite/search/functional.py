"""A trial that is a function of the user's own.

::

    def fit(model, report, epochs):
        for epoch in range(epochs):
            report(train_and_test(model))
        return test(model)

`fit` does all by itself, so the study can do less for it: it prunes only what `fit` reports on the
way, and a trial that was broken off begins anew unless `fit` saves something and looks for it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from official_lite.common import plugins
from official_lite.search import search_config
from official_lite.search.experiment_evaluator import apply_params, metrics_of
from official_lite.search.trial_run import TrialRun

__all__ = ["FunctionalTrainer", "ModelEvaluator", "TaskModel", "TaskTrainer", "evaluator_of"]


class FunctionalTrainer:
    """Calls a function with the model of a trial.

    Args:
        fit: Called with the model, and `kwargs`. If it has an argument `report`, it gets the
            `report(value, step)` of the trial, and if it has an argument `trial`, the trial. It
            returns the final value, or reports it.
        **kwargs: Its keyword arguments.
    """

    def __init__(self, fit: Callable[..., Any], **kwargs: Any) -> None:
        self._fit = fit
        self._kwargs = kwargs

    def __call__(self, model: Any, trial: TrialRun) -> Any:
        """Evaluates a model; returns what `fit` returns."""
        offered = {"report": trial.report, "trial": trial}
        wanted = inspect.signature(self._fit).parameters
        extra = {name: offered[name] for name in offered if name in wanted}
        return self._fit(model, **{**extra, **self._kwargs})


class TaskTrainer:
    """Trains a task that owns a part of what is trained, and is given the other part.

    Lightning's way, as in NNI: the task is made anew for each trial and gets the candidate by
    `set_model` before anything else is asked of it.

    Args:
        task_cls: Makes the task from `params.task`; it has a method `set_model(model)`.
        params: The experiment's config. Its metrics are what the study looks at.
    """

    def __init__(self, task_cls: Callable[..., Any], params: Any) -> None:
        self._task_cls = task_cls
        self._params = params

    def __call__(self, model: Any, trial: TrialRun) -> Any:
        """Trains in the directory of the trial; returns the metrics of the last evaluation."""
        from official_lite.core import runtime, train_lib
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
    """Builds the model of a trial, and has a trainer evaluate it.

    Args:
        build_model: From what is tried, by name, to the model.
        trainer: Called with the model and the trial.
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
    """Builds the model that the task of an experiment builds, with what is tried in its config.

    Args:
        params: The experiment's config.
    """

    def __init__(self, params: Any) -> None:
        self._params = params.replace(search=None)

    def __call__(self, tried: Mapping[str, Any]) -> Any:
        from official_lite.core import task_factory

        return task_factory.get_task(apply_params(self._params, tried).task).build_model()


def evaluator_of(config: search_config.SearchConfig, params: Any) -> ModelEvaluator:
    """What `search.evaluator` names.

    Raises:
        errors.ConfigError: There is no such function, or it takes other arguments.
    """
    entry = search_config.entry_of(config.evaluator)
    named = {"name": entry} if isinstance(entry, str) else entry
    fit = plugins.resolve(
        named["name"], workspace=getattr(params, "workspace", "") or None, kind="evaluator"
    )
    kwargs = {key: value for key, value in named.items() if key != "name"}
    return ModelEvaluator(TaskModel(params), FunctionalTrainer(fit, **kwargs))
