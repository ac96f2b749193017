"""Evaluators, which run a trial: as an experiment, or by a function written by the user.

::

    def fit(model, report, epochs):
        for epoch in range(epochs):
            report(train_and_test(model))
        return test(model)

`fit` does the whole training itself, with two consequences: the study can prune a trial only by the
values that `fit` reports, and an interrupted trial restarts from the beginning unless `fit` saves
and restores its own state.
"""

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from official_lite import nas
from official_lite.common import errors, flags, nested_dict, plugins
from official_lite.config import compatibility, epochs, parsing, phase_configs
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import yaml_io
from official_lite.search import search_config
from official_lite.search.trial_run import TrialRun

__all__ = [
    "Candidate",
    "ExperimentEvaluator",
    "FunctionalTrainer",
    "ModelEvaluator",
    "TaskModel",
    "TaskTrainer",
    "apply_params",
    "evaluator_of",
    "metrics_of",
    "space_of",
]

_REPORT_HOOK = "report_trial"

_BEST_CHECKPOINT = "best_checkpoint"


class ExperimentEvaluator:
    """An evaluator that trains and evaluates an experiment in the trial's model directory.

    An interrupted trial resumes from its own checkpoint. To repeat a trial outside of the study,
    run `train.py` with the `params.yaml` in the trial's model directory as `--config_file`.

    Args:
        params: The experiment's config.
        allow_config_change: Whether a trial may resume from checkpoints of a different config.

    Raises:
        errors.ConfigValueError: If the experiment has phases, or keeps no best checkpoint although
            `search.final_value` asks for one.
    """

    def __init__(self, params: cfg.ExperimentConfig, *, allow_config_change: bool = False) -> None:
        if params.phases:
            raise errors.ConfigValueError(
                "An experiment with `phases` can't be searched. Search each phase separately."
            )
        trainer = params.trainer
        final_value = hyperparams.get_by_path(params, "search.final_value", "")
        if final_value == _BEST_CHECKPOINT and not trainer.best_checkpoint_eval_metric:
            raise errors.ConfigValueError(
                f"`search.final_value` is {final_value!r}, but the config keeps no best "
                "checkpoint. Set `trainer.best_checkpoint_eval_metric` and "
                "`trainer.best_checkpoint_export_subdir`, or use `last` or `best`."
            )
        # Leave epochs and ratios unresolved, because they depend on the values of each trial. Read
        # the model files only once for all trials.
        self._params = parsing.read_model_files(epochs.given(params)).replace(search=None)
        self._allow_config_change = allow_config_change

    def check(self, space: search_config.Space) -> None:
        """Check that the config accepts and resolves the bounds of each range and each choice.

        Raises:
            errors.ConfigError: If the config rejects a value.
        """
        for example in space.examples():
            epochs.resolve(self.trial_params(example))

    def origin(self) -> tuple[dict[str, Any], set[str]]:
        """Return what must be equal for two studies to be comparable.

        Returns:
            A pair: the fields and the checksums of the model files, by name; and the names that the
            record of an earlier version may lack.
        """
        fields = compatibility.by_task(compatibility.flatten(self._params.as_dict()))
        defaults = {path for path in fields if compatibility.is_default(self._params, path)}
        checksums = parsing.model_file_checksums(self._params)
        model_files = {f"{path}.sha256": checksum for path, checksum in checksums.items()}
        return {**fields, **model_files}, defaults | model_files.keys()

    def trial_params(self, tried: Mapping[str, Any]) -> cfg.ExperimentConfig:
        """Return the config of a trial with the values `tried`.

        Raises:
            errors.ConfigError: If the config is invalid, for example because a path is unknown.
        """
        params = apply_params(self._params, tried)
        hooks: list[Any] = [h if isinstance(h, str) else h.as_dict() for h in params.trainer.hooks]
        params.trainer.hooks = [*hooks, _REPORT_HOOK]
        params.validate()
        phase_configs.check(params)
        params.lock()
        return params

    def __call__(self, trial: TrialRun) -> dict[str, float]:
        """Run the trial.

        Returns:
            The metrics of the last evaluation by name, or those of the best checkpoint, plus
            `num_parameters`. The names of nested metrics are joined by `/`.
        """
        return self.run(trial, trial.params, trial.config.mode)

    def run(
        self,
        trial: TrialRun,
        tried: Mapping[str, Any],
        mode: str,
        stages: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Run the trial with the values `tried` in the config and, optionally, custom stages."""
        params = self.trial_params(tried)
        # The mode `train` alone would return no evaluation metrics.
        mode = flags.Mode.TRAIN_AND_POST_EVAL if mode == flags.Mode.TRAIN else mode
        # Import these modules late: a process that only starts trial processes needs no TensorFlow.
        from official_lite import pipeline
        from official_lite.core import best_checkpoint
        from official_lite.run import runtime
        from official_lite.search.report_hook import with_num_parameters

        runtime.forget_last_run()
        model, logs = pipeline.RunPipeline(
            params,
            mode,
            trial.model_dir,
            stages,
            allow_config_change=self._allow_config_change,
        ).run()
        if trial.config.final_value == _BEST_CHECKPOINT:
            logs = best_checkpoint.read_best_logs(params, trial.model_dir)
        return metrics_of(with_num_parameters(logs, model))


def apply_params(params: cfg.ExperimentConfig, tried: Mapping[str, Any]) -> cfg.ExperimentConfig:
    """Return an unlocked copy of a config with the values `tried` set.

    All values are set in one override, because one path may select a sub-config (such as the type
    of an optimizer) that another path refers to.

    Raises:
        errors.ConfigError: If a path is unknown or does not accept its value.
    """
    changed = params.replace()
    values = [(search_config.path_of(name), copy.deepcopy(value)) for name, value in tried.items()]
    try:
        changed.override(yaml_io.nest_all(values, yaml_io.Cursor(type(params).__name__)))
    except errors.ConfigError as error:
        raise type(error)(f"In `search.space`: {error}") from error
    return changed


def metrics_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalar results of an evaluation by name; nested names are joined by `/`."""
    import numpy as np

    leaves = nested_dict.flatten_nested_dict(logs, "/")
    # Result files store non-finite values as null.
    flat = {n: np.asarray(np.nan if v is None else v) for n, v in leaves.items()}
    return {name: float(value.reshape(())) for name, value in flat.items() if value.size == 1}


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
    `set_model` with the candidate before it calls any other method. The task may own further
    trainable parts. Task and candidate are built in the scope of the trial's run: under its
    strategy, seed and precision.

    Args:
        task_cls: Callable that builds the task from `params.task`. The task must have a method
            `set_model(model)`.
        params: The experiment's config. The study optimizes the metrics of this experiment.
    """

    def __init__(self, task_cls: Callable[..., Any], params: cfg.ExperimentConfig) -> None:
        self._task_cls = task_cls
        self._params = params

    def __call__(self, model: object, trial: TrialRun) -> Any:
        """Train in the trial's model directory and return the metrics of the last evaluation.

        Args:
            model: The candidate, which may be a `Candidate` that is not built yet.
            trial: The trial.
        """
        from official_lite import pipeline

        task_cls = self._task_cls

        class Build(pipeline.Build):
            def make_task(self, ctx: pipeline.ExperimentContext) -> Any:
                task = task_cls(ctx.params.task, logging_dir=ctx.model_dir)
                task.set_model(model.build() if isinstance(model, Candidate) else model)
                return task

        evaluator = ExperimentEvaluator(self._params)
        return evaluator.run(trial, {}, trial.config.mode, {"build": Build})


@dataclasses.dataclass(frozen=True)
class Candidate:
    """The model of a trial, before it is built.

    Attributes:
        base_model: See `build_model` of `ModelEvaluator`.
        values: The trial's values by name.
    """

    base_model: Any
    values: Mapping[str, Any]

    def build(self) -> Any:
        """Build the model, with new weights."""
        if _is_model(self.base_model):
            return nas.rebuilt_model(self.base_model, self.values)
        if _takes_values(self.base_model):
            return self.base_model(self.values)
        with nas.fixed_arch(self.values):
            return self.base_model()


class ModelEvaluator:
    """An evaluator that builds the model of a trial and passes it to a trainer.

    A `TaskTrainer` builds the model itself, in the scope of its run.

    Args:
        build_model: One of these:

            * A function, a class or another callable that takes the trial's values by name and
              returns the model.
            * A callable without arguments that builds a model with the choices of
              `official_lite.nas`. It is called within `nas.fixed_arch`.
            * A Keras model with such choices. Each trial has a copy with weights of its own.
        trainer: Callable that takes the model and the trial and returns the result.
    """

    def __init__(self, build_model: Any, trainer: Callable[[Any, TrialRun], Any]) -> None:
        self._build_model = build_model
        self._trainer = trainer

    def __call__(self, trial: TrialRun) -> Any:
        candidate = Candidate(self._build_model, trial.params)
        is_lazy = isinstance(self._trainer, TaskTrainer)
        return self._trainer(candidate if is_lazy else candidate.build(), trial)


def space_of(base_model: Any) -> dict[str, list[Any]]:
    """Return the labels and options of the choices in a base model; see `ModelEvaluator`.

    Choices inside of candidates are found only if `base_model` is a model.
    """
    if _is_model(base_model):
        return nas.space_of(base_model)
    if _takes_values(base_model):
        return {}
    with nas.record_space() as space:
        base_model()
    return space


def _is_model(base_model: object) -> bool:
    # If the process has not imported Keras, the object is not a Keras model.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(base_model, keras.Model)


def _takes_values(base_model: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(base_model).parameters.values()
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature.
        return True
    return any(p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters)


class TaskModel:
    """A model builder that calls the task of an experiment with the trial's values in its config.

    Args:
        params: The experiment's config.
    """

    def __init__(self, params: cfg.ExperimentConfig) -> None:
        self._params = params.replace(search=None)

    def __call__(self, tried: Mapping[str, Any]) -> Any:
        from official_lite.core import task_factory, trainer_factory
        from official_lite.run import runtime

        params = apply_params(self._params, tried)
        with runtime.seed_and_precision(params.runtime):
            return trainer_factory.build_model(task_factory.get_task(params.task))


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
