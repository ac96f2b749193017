"""The search space of a study: config paths and the values that each may take."""

import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna import distributions

from official_lite.common import errors, nested_dict, suggestions
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import params_dict

__all__ = ["Space", "path_of"]

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
        """The number of points in the space; None if it is infinite."""
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
                    f"`search.space`: `{name}` of type {kind} has no {key!r}. "
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
            # Optuna only warns when it replaces a given value; make that an error.
            warnings.simplefilter("error")
            return make()
    except (TypeError, ValueError, UserWarning) as error:
        raise errors.ConfigValueError(f"`search.space`: `{name}`: {error}") from error


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

    Optuna tells choices apart by `==`, so a choice that equals an earlier one, such as False after
    0, or a text after a list with this JSON, is stored as JSON, too.
    """
    encoded: list[optuna.distributions.CategoricalChoiceType] = []
    for choice in choices:
        code = choice if isinstance(choice, str | int | float | None) else json.dumps(choice)
        while code in encoded:
            code = json.dumps(code)
        encoded.append(code)
    return encoded


def _key(choice: object) -> tuple[type, object]:
    # Include the type, because 1, 1.0 and True are the same key of a dict.
    return (type(choice), choice)
