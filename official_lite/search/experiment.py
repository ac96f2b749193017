"""Studies that are defined in Python, from the same four parts as an NNI experiment.

::

    def fit(model, dataloader):
        train(model, dataloader)
        search.report_final_result(test(model, dataloader))

    trainer = search.FunctionalTrainer(fit, dataloader=...)
    experiment = search.Experiment(build_model, trainer, space, "random", direction="maximize")
    experiment.run("/tmp/study", num_trials=20)
"""

from collections.abc import Callable, Mapping
from typing import Any

import optuna

from official_lite.common import errors
from official_lite.search import results, search_config, study_runner
from official_lite.search.functional import ModelEvaluator, space_of
from official_lite.search.space import Space
from official_lite.search.trial_run import TrialRun

__all__ = ["Experiment"]


class Experiment:
    """A study with the four parts of an NNI experiment: base model, trainer, mutators, strategy.

    Args:
        base_model: Function or class that takes a dict of choices by label and returns the model;
            or, with the choices of `official_lite.nas`, a function or class without arguments, or a
            Keras model. See `ModelEvaluator`.
        trainer: A `FunctionalTrainer`, a `TaskTrainer`, or any callable that takes the model and
            the trial.
        mutators: The search space: the values that each label may take. None means all choices of
            `official_lite.nas` in the base model.
        strategy: The strategy, in the same form as `search.strategy`.
        **config: Further fields of `SearchConfig`; `direction` is required.
    """

    def __init__(
        self,
        base_model: Any,
        trainer: Callable[[Any, TrialRun], Any],
        mutators: Mapping[str, Any] | None,
        strategy: str | Mapping[str, Any],
        **config: Any,
    ) -> None:
        self._evaluator = ModelEvaluator(base_model, trainer)
        mutators = space_of(base_model) if mutators is None else mutators
        self._config = search_config.SearchConfig(
            {"space": mutators, "strategy": strategy, **config}
        )
        self._study: optuna.Study | None = None

    def run(self, study_dir: str, **config: Any) -> optuna.Study:
        """Run the study to its end, or resume it if it was interrupted.

        Args:
            study_dir: The directory of the study.
            **config: Further fields of `SearchConfig`, such as `num_trials`.

        Returns:
            The study with all its trials.
        """
        self._config.override(config)
        self._study = study_runner.run_study(self._evaluator, self._config, study_dir)
        return self._study

    def export_top_models(self, top_k: int = 1) -> list[dict[str, Any]]:
        """Return the choices of the `top_k` best trials, best first.

        Raises:
            errors.ConfigValueError: If `run` has not been called.
        """
        if self._study is None:
            raise errors.ConfigValueError("There are no models yet. Call `run` first.")
        space = Space(self._config.space)
        return [space.decode(trial.params) for trial in results.best_trials(self._study)[:top_k]]
