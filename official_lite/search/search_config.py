"""The `search` block of an experiment: the config of a study, and its search space.

This module does not import TensorFlow.
"""

import dataclasses
import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna import distributions

from official_lite.common import errors, flags, nested_dict, suggestions
from official_lite.core import config_definitions as cfg
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks, params_dict

__all__ = ["SearchConfig", "Space", "entry_of", "name_of", "path_of", "search_config_of"]

# Accept the direction names of both the Model Garden and Optuna.
_Direction = Literal["minimize", "maximize"]
_DIRECTIONS: dict[str, _Direction] = {
    "minimize": "minimize",
    "min": "minimize",
    "lower": "minimize",
    "maximize": "maximize",
    "max": "maximize",
    "higher": "maximize",
}


@dataclasses.dataclass
class SearchConfig(hyperparams.Config):
    """The search space, objective and strategy of a study.

    Attributes:
        space: Paths into the config with the values that each may take, in Optuna's terms:
            `{type: float, low: 1e-4, high: 0.1, log: true}`, `{type: int, low: 1, high: 8}`,
            `{type: categorical, choices: [adam, sgd]}`, or just a list of choices. Paths may be
            dotted or nested.
        metric: The evaluation metric to optimize, or a list of metrics. `num_parameters` is also
            available as a metric.
        direction: `minimize` or `maximize`; one for each metric.
        final_value: The evaluation that provides the result of a trial: `last`; `best`, the one
            with the best value of `metric`; or `best_checkpoint`, the one that
            `trainer.best_checkpoint_eval_metric` selects.
        mode: The mode in which each trial runs: `train_and_eval`, or `train_and_post_eval`, which
            evaluates once after training. A trial needs an evaluation for its value, so `train`
            means `train_and_post_eval`.
        strategy: The strategy that chooses the next trial: `random`, `grid`, `tpe`, `cma_es`,
            `nsga2`, `regularized_evolution`, or a sampler as `package.module:Class`. To pass
            arguments to the sampler, give a dict with `name` and the arguments.
        pruner: The pruner that ends unpromising trials early: `none`, `median`,
            `successive_halving`, `hyperband`, `threshold`, or a pruner in the same forms as
            `strategy`.
        num_trials: Total number of trials, including failed ones.
        num_workers: Number of processes that work on the study at the same time. With 1, trials run
            in this process.
        isolation: `process` runs each trial in its own process, so that a crash of the trial does
            not affect the worker; `none` runs trials in the worker.
        storage: The storage of the study: empty for a journal file in the study's directory, or an
            SQLAlchemy URL such as `sqlite:///study.db`.
        study_name: Name of the study in a database; empty for the path of its directory.
        seed: Seed of the study. The seed and the number of a trial determine the trial's values.
        top_k: Number of trials in `top_k.json`.
        max_starts: Number of times the process of a trial may be killed before the trial fails.
        evaluator: A function `fit(model, report, **kwargs)` that replaces the training, as
            `package.module:function`. To pass keyword arguments, give a dict with `name` and the
            arguments.
    """

    space: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)
    metric: str | list[str] = ""
    direction: str | list[str] = ""
    final_value: str = "last"
    mode: str = "train_and_eval"
    strategy: str | hyperparams.PluginConfig = "tpe"
    pruner: str | hyperparams.PluginConfig = "none"
    num_trials: int = 20
    num_workers: int = 1
    isolation: str = "none"
    storage: str = ""
    study_name: str = ""
    seed: int = 0
    top_k: int = 10
    max_starts: int = 5
    evaluator: str | hyperparams.PluginConfig = ""

    @property
    def metrics(self) -> list[str]:
        """The metrics, one for each direction; empty if a trial returns its value directly."""
        return _as_list(self.metric)

    @property
    def directions(self) -> list[_Direction]:
        """The direction of each objective: `minimize` or `maximize`."""
        return [_DIRECTIONS[word] for word in _as_list(self.direction)]

    @property
    def value_names(self) -> list[str]:
        """The name of each objective's value: its metric, or else `value` or `value_<n>`."""
        count = len(self.directions)
        return self.metrics or (["value"] if count == 1 else [f"value_{n}" for n in range(count)])

    def validate_fields(self) -> None:
        field_checks.require_positive(self, "num_trials", "num_workers", "top_k", "max_starts")
        field_checks.require_one_of(self, "final_value", ("last", "best", "best_checkpoint"))
        field_checks.require_one_of(self, "isolation", ("none", "process"))
        field_checks.require_one_of(
            self,
            "mode",
            tuple(mode.value for mode in flags.Mode if mode.trains and mode.is_a_single_run),
        )
        self._check_objectives()

    def _check_objectives(self) -> None:
        given = _as_list(self.direction)
        unknown = [word for word in given if word not in _DIRECTIONS]
        if unknown or not given:
            raise errors.ConfigValueError(
                f"`direction` is {self.direction!r}; expected `minimize` or `maximize`, one for "
                "each metric. There is no default, because a wrong direction would select the "
                "worst trials."
            )
        if self.metrics and len(self.metrics) != len(given):
            raise errors.ConfigValueError(
                f"`metric` is {self.metric!r} and `direction` is {self.direction!r}; expected one "
                "direction for each metric."
            )
        if len(given) > 1 and (self.final_value == "best" or name_of(self.pruner) != "none"):
            raise errors.ConfigValueError(
                f"`final_value` is {self.final_value!r} and `pruner` is {name_of(self.pruner)!r}; "
                "with several metrics there is no single best evaluation. Set `final_value` to "
                "`last` or `best_checkpoint`, and `pruner` to `none`."
            )


def search_config_of(params: cfg.ExperimentConfig) -> SearchConfig:
    """Return the validated `search` block of an experiment's config.

    Raises:
        errors.ConfigError: If the block is missing or invalid.
    """
    block = params.search
    if block is None:
        raise errors.ConfigValueError(
            "The config has no `search` block. Set its `space`, `metric` and `direction`; see "
            "docs/search.md."
        )
    config = SearchConfig(block.as_dict())
    config.validate()
    return config


def name_of(plugin: str | hyperparams.PluginConfig) -> str:
    """Return the name of a plugin that is given as a name or as a name with arguments."""
    return plugin if isinstance(plugin, str) else str(plugin.name)


def entry_of(plugin: str | hyperparams.PluginConfig) -> str | dict[str, Any]:
    """Return a plugin entry as plain values: a string or a dict."""
    return plugin if isinstance(plugin, str) else plugin.as_dict()


def _as_list(value: str | list[str]) -> list[str]:
    return ([value] if value else []) if isinstance(value, str) else list(value)


_ARGUMENTS = {
    "float": ("low", "high", "log", "step"),
    "int": ("low", "high", "log", "step"),
    "categorical": ("choices",),
}
_Distribution = (
    distributions.FloatDistribution
    | distributions.IntDistribution
    | distributions.CategoricalDistribution
)
_PATH_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")


class Space:
    """The values that the parameters of a trial may take, by name.

    Args:
        entries: A definition for each name: a dict such as `{type: float, low: 0, high: 1}`, or a
            list of choices. A dict without a `type` groups nested names: its keys are appended to
            the name after a dot.

    Raises:
        errors.ConfigError: If a definition is invalid or the space is empty.
    """

    def __init__(self, entries: Mapping[str, Any] | hyperparams.FreeConfig) -> None:
        plain = params_dict.to_plain(entries)
        definitions = nested_dict.flatten_nested_dict(
            plain, ".", lambda v: not isinstance(v, Mapping) or isinstance(v.get("type"), str)
        )
        if not definitions:
            raise errors.ConfigValueError(
                "`search.space` is empty; expected at least one path with its possible values."
            )
        self._choices: dict[str, dict[Any, Any]] = {}
        self.distributions: dict[str, _Distribution] = {
            name: self._distribution(name, definition) for name, definition in definitions.items()
        }

    @property
    def size(self) -> int | None:
        """The number of points in the space; None if the space is infinite."""
        counts = [_count(one) for one in self.distributions.values()]
        return None if None in counts else math.prod(count for count in counts if count)

    def suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """Draw a value for each name; values that the trial already has are kept."""
        return self.decode(
            {name: _suggest(trial, name, one) for name, one in self.distributions.items()}
        )

    def decode(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config values for Optuna's parameters, which hold lists and dicts as JSON."""
        return {name: self._choices.get(name, {}).get(_key(v), v) for name, v in params.items()}

    def examples(self) -> Iterator[dict[str, Any]]:
        """Yield points that together cover the bounds of each range and every choice."""
        ends = [_ends(one) for one in self.distributions.values()]
        last = [values[-1] for values in ends]
        for row in itertools.zip_longest(*ends):
            filled = [end if v is None else v for v, end in zip(row, last, strict=True)]
            yield self.decode(dict(zip(self.distributions, filled, strict=True)))

    def _distribution(self, name: str, definition: list[Any] | Mapping[str, Any]) -> _Distribution:
        if isinstance(definition, list | tuple):
            definition = {"type": "categorical", "choices": definition}
        if not isinstance(definition, Mapping):
            raise errors.ConfigTypeError(
                f"`search.space`: `{name}` is {definition!r}; expected a definition with a `type`, "
                "such as `{type: float, low: 0.0, high: 1.0}`, or a list of choices."
            )
        kind = definition["type"]
        if kind not in _ARGUMENTS:
            raise errors.UnknownNameError(
                f"`search.space`: `{name}` has the type {kind!r}. "
                f"{suggestions.did_you_mean(kind, _ARGUMENTS)} Ranges use Optuna's names: `low`, "
                "`high`, `log: true` and `step`."
            )
        arguments = {key: value for key, value in definition.items() if key != "type"}
        for key in arguments:
            if key not in _ARGUMENTS[kind]:
                raise errors.UnknownKeyError(
                    f"`search.space`: `{name}` of type {kind} has no argument {key!r}. "
                    f"{suggestions.did_you_mean(key, _ARGUMENTS[kind])}"
                )
        if kind == "categorical":
            return self._categorical(name, arguments.get("choices") or [])
        if kind == "float":
            return _checked(name, lambda: distributions.FloatDistribution(**arguments))
        return _checked(name, lambda: distributions.IntDistribution(**arguments))

    def _categorical(self, name: str, choices: Sequence[object]) -> _Distribution:
        encoded = _encode(choices)
        self._choices[name] = dict(zip(map(_key, encoded), choices, strict=True))
        return _checked(name, lambda: distributions.CategoricalDistribution(encoded))


def path_of(name: str) -> list[str | int]:
    """Return the keys and indices that lead to the config field of a name.

    Unlike `parse_path`, this accepts all characters except dots and brackets, because labels of
    choices in a model may contain them.
    """
    return [int(index) if index else step for step, index in _PATH_STEP.findall(name)]


def _checked(name: str, make: Callable[[], _Distribution]) -> _Distribution:
    try:
        with warnings.catch_warnings():
            # Optuna only warns when it changes a configured value; turn the warning into an error.
            warnings.simplefilter("error")
            return make()
    except (TypeError, ValueError, UserWarning) as error:
        raise errors.ConfigValueError(
            f"`search.space`: the definition of `{name}` is invalid: {error}"
        ) from error


def _suggest(trial: optuna.trial.Trial, name: str, one: _Distribution) -> Any:
    if isinstance(one, distributions.FloatDistribution):
        return trial.suggest_float(name, one.low, one.high, step=one.step, log=one.log)
    if isinstance(one, distributions.IntDistribution):
        return trial.suggest_int(name, one.low, one.high, step=one.step, log=one.log)
    return trial.suggest_categorical(name, one.choices)


def _count(one: _Distribution) -> int | None:
    if isinstance(one, distributions.CategoricalDistribution):
        return len(one.choices)
    if one.single():
        return 1
    return None if one.step is None else round((one.high - one.low) / one.step) + 1


def _ends(one: _Distribution) -> list[Any]:
    if isinstance(one, distributions.CategoricalDistribution):
        return list(one.choices)
    return [one.low, one.high]


def _encode(choices: Sequence[object]) -> list[optuna.distributions.CategoricalChoiceType]:
    """Return the choices as Optuna stores them: lists and dicts as JSON, others as they are.

    Optuna compares choices by `==`. A choice that equals the stored form of an earlier choice is
    therefore also stored as JSON: for example False after 0, or a string that is the JSON of an
    earlier list.
    """
    encoded: list[optuna.distributions.CategoricalChoiceType] = []
    for choice in choices:
        code = choice if isinstance(choice, str | int | float | None) else json.dumps(choice)
        while code in encoded:
            code = json.dumps(code)
        encoded.append(code)
    return encoded


def _key(choice: object) -> tuple[type, object]:
    # Include the type, because 1, 1.0 and True are equal as dict keys.
    return (type(choice), choice)
