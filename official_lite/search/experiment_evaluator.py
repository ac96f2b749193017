"""Trials that run an experiment with the trial's values in its config."""

import copy
from collections.abc import Mapping
from typing import Any

from official_lite.common import errors, nested_dict
from official_lite.config import compatibility, epochs, model_files, phase_configs
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import overrides, params_dict
from official_lite.search import space as space_lib
from official_lite.search.trial_run import TrialRun

__all__ = ["ExperimentEvaluator", "apply_params", "metrics_of"]

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
        # Each trial resolves epochs and ratios for its own values. All have the same model files.
        self._params = model_files.read(epochs.given(params)).replace(search=None)
        self._allow_config_change = allow_config_change

    def check(self, space: space_lib.Space) -> None:
        """Check that the config accepts and resolves the bounds of each range and each choice.

        Raises:
            errors.ConfigError: If the config rejects a value.
        """
        for example in space.examples():
            epochs.resolve(self.trial_params(example))

    def origin(self) -> dict[str, Any]:
        """Return the config fields that must be equal for two studies to be comparable."""
        return compatibility.flatten(self._params.as_dict())

    def trial_params(self, tried: Mapping[str, Any]) -> cfg.ExperimentConfig:
        """Return the config of a trial that tries the values `tried`.

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
        # Import late: a process that only starts the processes of trials needs no TensorFlow.
        from official_lite import pipeline
        from official_lite.run import best_checkpoint, runtime
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
    values = [(space_lib.path_of(name), copy.deepcopy(value)) for name, value in tried.items()]
    try:
        changed.override(params_dict.nest_all(values, overrides.Cursor(type(params).__name__)))
    except errors.ConfigError as error:
        raise type(error)(f"In `search.space`: {error}") from error
    return changed


def metrics_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalar results of an evaluation by name; nested names are joined by `/`."""
    import numpy as np

    leaves = nested_dict.flatten_nested_dict(logs, "/")
    # Files have null for a value that is not finite.
    flat = {n: np.asarray(np.nan if v is None else v) for n, v in leaves.items()}
    return {name: float(value.reshape(())) for name, value in flat.items() if value.size == 1}
