"""Filtering and sorting of runs by fields, metrics and config values."""

import dataclasses
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.config import compatibility
from official_lite.run.run_reading import Run

__all__ = ["FIELDS", "Facts", "facts_of", "metric_names", "resolve", "select", "sort"]

# Fields of every run, besides its metrics and config.
FIELDS = (
    "name",
    "model_dir",
    "status",
    "experiment",
    "mode",
    "step",
    "train_steps",
    "num_parameters",
    "seed",
    "start_time",
    "end_time",
    "seconds",
    "goodput",
    "steps_per_second",
    "examples_per_second",
    "best_step",
    "exit_reason",
)

_CONDITION = re.compile(r"\s*([^=!<>~\s]+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The searchable information about a run, by name.

    Attributes:
        run: The run.
        fields: Values of `FIELDS`.
        metrics: Last value of each metric as `split/name`, and values of the best evaluation as
            `best/name`.
        config: Config fields by path.
    """

    run: Run
    fields: Mapping[str, Any]
    metrics: Mapping[str, float]
    config: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Return the value for a full name; None if the run has none."""
        for values in (self.fields, self.metrics, self.config):
            if name in values:
                return values[name]
        return None


def facts_of(run: Run) -> Facts:
    """Collect the searchable information about a run."""
    fields = {name: getattr(run, name) for name in FIELDS if name != "best_step"}
    best = run.best.metrics if run.best else {}
    return Facts(
        run=run,
        fields={**fields, "best_step": run.best.step if run.best else None},
        metrics={**run.last_metrics(), **{f"best/{name}": value for name, value in best.items()}},
        config=compatibility.flatten(run.config),
    )


def metric_names(runs: Sequence[Facts]) -> list[str]:
    """Return the metrics of all runs: validation first, then best, training and others."""
    names = dict.fromkeys(name for facts in runs for name in facts.metrics)
    order = {"validation": 0, "best": 1, "train": 2}
    return sorted(names, key=lambda name: order.get(name.partition("/")[0], 3))


def resolve(name: str, runs: Sequence[Facts]) -> str:
    """Return the full name for a short one; `accuracy` prefers `validation/accuracy`.

    Raises:
        errors.UnknownNameError: No run has such a name, or it is ambiguous.
    """
    metrics = metric_names(runs)
    paths = list(dict.fromkeys(path for facts in runs for path in facts.config))
    known = [*FIELDS, *metrics, *paths]
    if name in known:
        return name
    ends = (f"/{name}", f".{name}")
    fitting = [other for other in known if other.endswith(ends)]
    if not fitting:
        raise errors.UnknownNameError(
            f"No run has a field, metric or config value {name!r}. "
            f"{suggestions.did_you_mean(name, [*known, *_short(metrics)])}".rstrip()
        )
    if len(fitting) > 1 and fitting[0] not in metrics:
        raise errors.UnknownNameError(
            f"{name!r} is ambiguous. Use {' or '.join(f'`{each}`' for each in fitting[:5])}."
        )
    return fitting[0]


def select(runs: Sequence[Facts], conditions: Sequence[str]) -> list[Facts]:
    """Return the runs for which all conditions hold.

    Args:
        runs: The runs.
        conditions: `name=value`, `!=`, `<`, `<=`, `>`, `>=`, or `name~part`, where the part may
            contain `*` and `?`. For a run without such a value, only `!=` holds.

    Raises:
        errors.ConfigError: A condition can't be parsed, or no run has its name.
    """
    kept = list(runs)
    for condition in conditions:
        matched = _CONDITION.fullmatch(condition)
        if not matched:
            raise errors.ConfigValueError(
                f"Can't parse the condition {condition!r}. Expected a condition such as "
                "'status=done', 'accuracy>0.9' or 'name~digits'."
            )
        short, sign, wanted = matched.groups()
        name = resolve(short, runs) if runs else short
        kept = [facts for facts in kept if _holds(facts.get(name), sign, wanted, condition)]
    return kept


def sort(runs: Sequence[Facts], name: str, *, descending: bool = False) -> list[Facts]:
    """Sort the runs by a field, metric or config value; runs without it come last."""
    full = resolve(name, runs) if runs else name
    known = [facts for facts in runs if _is_known(facts.get(full))]
    others = [facts for facts in runs if not _is_known(facts.get(full))]
    return sorted(known, key=lambda facts: _key(facts.get(full)), reverse=descending) + others


def _holds(value: Any, sign: str, wanted: str, condition: str) -> bool:
    if not _is_known(value):
        return sign == "!="
    if sign == "~":
        pattern = wanted if any(each in wanted for each in "*?[") else f"*{wanted}*"
        return fnmatch.fnmatchcase(str(value), pattern)
    if sign in ("=", "!="):
        return _is_equal(value, wanted) == (sign == "=")
    try:
        return _COMPARE[sign](float(value), float(wanted))
    except (TypeError, ValueError) as error:
        raise errors.ConfigValueError(
            f"The condition {condition!r} compares {value!r} with {wanted!r}; expected numbers."
        ) from error


def _is_equal(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return str(value).lower() == wanted.lower()
    if isinstance(value, int | float):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    return str(value) == wanted


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _key(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts numbers before strings, since a column may contain both."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else str(value)


def _short(names: Sequence[str]) -> list[str]:
    return [name.rpartition("/")[2] for name in names]
