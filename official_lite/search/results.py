"""The results of a study: its best trials, and a table of all trials."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from official_lite.common import files
from official_lite.search import search_config
from official_lite.search.space import Space

__all__ = ["best_trials", "records", "short_names", "table", "write"]

_TOP_K = "top_k.json"


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the completed trials, best first.

    With several objectives, return the Pareto front, ordered by trial number.
    """
    if len(study.directions) > 1:
        return sorted(study.best_trials, key=lambda trial: trial.number)
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    # Earlier versions completed trials with infinite values.
    complete = [trial for trial in ended if math.isfinite(trial.values[0])]
    sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
    return sorted(complete, key=lambda trial: (sign * trial.values[0], trial.number))


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
    trials = study.get_trials(deepcopy=False)
    short = short_names(space.distributions)
    names = list(_named(config, [0.0] * len(study.directions)))
    header = ["trial", "state", *names, *short.values(), "seconds"]
    rows = [_row(trial, space, len(names), list(short)) for trial in trials]
    return _aligned([header, *rows])


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
        "values": _named(config, trial.values) if trial.values else {},
        "params": space.decode(trial.params),
        "model_dir": os.path.join("trials", f"{trial.number:04d}"),
    }


def _row(trial: FrozenTrial, space: Space, num_values: int, names: Sequence[str]) -> list[str]:
    values = trial.values or [None] * num_values
    params = space.decode(trial.params)
    seconds = trial.duration.total_seconds() if trial.duration else None
    return [
        str(trial.number),
        trial.state.name.lower(),
        *(_shown(value) for value in values),
        *(_shown(params.get(name)) for name in names),
        _shown(seconds),
    ]


def _named(config: search_config.SearchConfig, values: Sequence[float] | None) -> dict[str, float]:
    numbers = range(len(config.directions))
    names = config.metrics or (["value"] if len(numbers) == 1 else [f"value_{n}" for n in numbers])
    return dict(zip(names, values or [], strict=True))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines) + "\n"
