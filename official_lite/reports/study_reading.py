"""Reading of the results of a study."""

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_lite.common import errors, files

if TYPE_CHECKING:
    import optuna

    from official_lite.search import search_config

__all__ = ["Param", "Study", "Trial", "is_study", "read_study"]

_CONFIG = "search.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Param:
    """A parameter that a study varies.

    Attributes:
        path: Path of the field in the config.
        short_name: The shortest unambiguous part of the path.
        definition: Description of the possible values.
        choices: The possible values of a categorical parameter, or else empty.
        is_log: Whether values are drawn on a logarithmic scale.
        importance: Share of the parameter in the results of trials; None if unknown.
    """

    path: str
    short_name: str
    definition: str
    choices: Sequence[str]
    is_log: bool
    importance: float | None

    def position(self, value: Any) -> float:
        """Return the place of a value on an axis: that of a choice, or the number itself."""
        return self.choices.index(_named(value)) if self.choices else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a study.

    Attributes:
        number: Number of the trial.
        state: `complete`, `pruned`, `fail`, `running` or `waiting`.
        values: One value per metric; empty if the trial has none.
        params: The values tried, by path.
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
    # Imported here because only reading a study requires Optuna.
    from official_lite.search import results, storage
    from official_lite.search.space import Space

    config = storage.read_config(study_dir, storages)
    study = storage.open_study(config, study_dir)
    space = Space(config.space)
    ranking = [trial.number for trial in results.best_trials(study)]
    return Study(
        name=name or os.path.basename(os.path.abspath(study_dir)),
        study_dir=study_dir,
        config=config,
        metrics=config.value_names,
        params=_params(study, space.distributions),
        trials=[
            _trial(trial, space.decode(trial.params), study_dir, _best(study, ranking))
            for trial in study.get_trials(deepcopy=False)
        ],
        ranking=ranking,
    )


def _best(study: "optuna.Study", ranking: Sequence[int]) -> Sequence[int]:
    return ranking if len(study.directions) > 1 else ranking[:1]


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
    """Return Optuna's own estimate of importances; empty if there are too few trials."""
    import optuna

    with warnings.catch_warnings():
        # Optuna warns about the accuracy of its estimate.
        warnings.simplefilter("ignore")
        try:
            return dict(optuna.importance.get_param_importances(study))
        except (RuntimeError, ValueError):
            return {}


def _trial(
    trial: "optuna.trial.FrozenTrial", params: dict[str, Any], study_dir: str, best: Sequence[int]
) -> Trial:
    from official_lite.search import worker

    model_dir = worker.trial_dir(study_dir, trial.number)
    state = trial.state.name.lower()
    return Trial(
        number=trial.number,
        state=state,
        values=trial.values or (),
        params=params,
        seconds=trial.duration.total_seconds() if trial.duration else None,
        reports=sorted(trial.intermediate_values.items()),
        is_best=trial.number in best,
        model_dir=model_dir,
        reason=_reason(model_dir) if state == "fail" else "",
    )


def _reason(model_dir: str) -> str:
    from official_lite.search import trial_run

    try:
        outcome = trial_run.Outcome.read(model_dir)
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ConfigValueError(f"The trial in {model_dir} can't be read: {error}") from error
    return outcome.reason if outcome else ""
