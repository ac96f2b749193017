"""A study put together in Python, from the four parts of NNI's experiments.

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
from official_lite.search.functional import ModelEvaluator
from official_lite.search.space import Space
from official_lite.search.trial_run import TrialRun

__all__ = ["Experiment"]


class Experiment:
    """NNI's four parts: a model with something to choose, a trainer, the choices, and a strategy.

    Args:
        base_model: From a dict of choices by label to the model.
        trainer: A `FunctionalTrainer`, a `TaskTrainer`, or anything that is called with the
            model and the trial.
        mutators: The space: the values that each label may take.
        strategy: As `search.strategy`.
        **config: Further fields of `SearchConfig`; `direction` must be one of them.
    """

    def __init__(
        self,
        base_model: Callable[[Mapping[str, Any]], Any],
        trainer: Callable[[Any, TrialRun], Any],
        mutators: Mapping[str, Any],
        strategy: str | Mapping[str, Any],
        **config: Any,
    ) -> None:
        self._evaluator = ModelEvaluator(base_model, trainer)
        self._config = search_config.SearchConfig(
            {"space": mutators, "strategy": strategy, **config}
        )
        self._study: optuna.Study | None = None

    def run(self, study_dir: str, **config: Any) -> optuna.Study:
        """Runs the study to its end; started again, it goes on.

        Args:
            study_dir: Its directory.
            **config: Further fields of `SearchConfig`, such as `num_trials`.
        """
        self._config.override(config)
        self._study = study_runner.run_study(self._evaluator, self._config, study_dir)
        return self._study

    def export_top_models(self, top_k: int = 1) -> list[dict[str, Any]]:
        """The choices of the best trials, the best one first.

        Raises:
            errors.ConfigValueError: The study was not run.
        """
        if self._study is None:
            raise errors.ConfigValueError("There are no models yet; call `run` first.")
        space = Space(self._config.space)
        return [space.decode(trial.params) for trial in results.best_trials(self._study)[:top_k]]
