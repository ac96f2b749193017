"""Conversion of config fields in epochs or ratios to fields in steps before a run.

A run is measured only in steps. Values in epochs (`trainer.train_epochs`, …) or ratios
(`warmup_ratio`, …) are converted here and stored in the corresponding step fields; the original
fields become None. The resolved config therefore has the same meaning when it is read back, even if
the data has changed.

The attribute `CLEARS` of a config class lists mutually exclusive fields, such as `train_steps` and
`train_epochs`. Setting both in one source is an error. If two sources set them, the later one
applies, as for any field, and the replaced value is logged.

A resolved config and its copies remember which values were converted. `given` restores them, and
`resolve` begins with them. A copy with another `train_steps` or batch size, as in a trial of a
study, is therefore resolved for its own values.

The length of an epoch in steps is `num_examples / global_batch_size` of `task.train_data`, which
need not be an integer; or `trainer.steps_per_epoch`; or the number of batches in the training
dataset. An architecture search that divides its training data counts the half from which the
weights learn. It is an error if the first two contradict each other, as they do if the data of a
resolved config changes. This module needs TensorFlow only if the dataset has to be built. A run
that does not train uses the steps that the training run recorded instead of building it. If it does
not need the steps, and they are unknown, the fields of the trainer stay in epochs.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from absl import logging

from official_lite.common import errors
from official_lite.modeling import hyperparams

# Maps each field in steps to the field in epochs that may replace it.
_IN_EPOCHS = {
    "train_steps": "train_epochs",
    "validation_interval": "validate_every_epochs",
    "checkpoint_interval": "checkpoint_every_epochs",
}

# The names of the architecture search trainers in `official_lite.nas`.
_SEARCHES = ("darts", "enas", "gumbel", "proxyless", "spos")

_SEVERAL_TASKS = "With several tasks, the length can't be derived from the data."

# The number of steps for which schedules are built if no training step will read them.
_ANY_STEPS = 1000

# Values that leave a field unset.
_NOTHING = (None, "null", "~", "")

# The attribute of a resolved config, and of its copies, that maps the path of each converted field
# to its conversion. Overriding a field removes its conversion.
_CONVERSIONS = "_conversions"


@dataclasses.dataclass(frozen=True)
class _Conversion:
    """The value derived for a field in steps, and the original field with its value."""

    block: str
    steps: str
    value: Any
    given: str
    given_value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
    """A pair of mutually exclusive fields: paths, values, and the default of the first field."""

    steps: str
    rival: str
    values: tuple[Any, Any]
    default: Any

    @property
    def has_rival(self) -> bool:
        """Whether the second field is set, so that the first field has no effect."""
        return self.values[1] is not None


def given(params: Any) -> Any:
    """Return the config before `resolve`: with the original epochs and ratios instead of the steps.

    If the steps of a field were changed after the conversion, they are kept.

    Args:
        params: An experiment's config, resolved or not.

    Returns:
        An unlocked copy, or `params` itself if nothing was converted.
    """
    conversions: dict[str, _Conversion] = vars(params).get(_CONVERSIONS, {})
    if not conversions:
        return params
    restored = params.replace()
    del restored.__dict__[_CONVERSIONS]
    for conversion in conversions.values():
        block = hyperparams.get_by_path(restored, conversion.block)
        present = {
            name: getattr(block, name, None) for name in (conversion.steps, conversion.given)
        }
        if present == {conversion.given: None, conversion.steps: conversion.value}:
            setattr(block, conversion.given, conversion.given_value)
    return restored


def resolve(
    params: Any,
    task: Any = None,
    *,
    recorded: Mapping[str, int] | None = None,
    divides_data: bool | None = None,
    needs_steps: bool = True,
) -> Any:
    """Convert the epochs and ratios of a config to steps.

    Args:
        params: An experiment's config, locked or not.
        task: The task, whose training dataset determines the length of an epoch if the config does
            not. Without a task, fields that need this length are not converted.
        recorded: The fields in steps of the run that is evaluated, which are used instead of the
            training dataset; see `compatibility.recorded_steps`.
        divides_data: Whether the trainer divides the training data between the weights and an
            architecture; see `base_trainer.Trainer.divides_data`. By default, this is inferred from
            the config, which is right for the trainers of this package.
        needs_steps: Whether the run uses the steps. If not, the training dataset is never built.
            Without a known length, fields in epochs are not converted, and ratios are converted for
            an arbitrary number of steps.

    Returns:
        A locked copy, or `params` itself if nothing changes.

    Raises:
        errors.ConfigValueError: If the length of an epoch is unknown or contradictory.
    """
    resolved = _resolve(given(params), task, recorded or {}, divides_data, needs_steps)
    if resolved == params:
        return params
    if needs_steps and not recorded:
        _log(vars(resolved).get(_CONVERSIONS, {}).values())
    resolved.lock()
    return resolved


def schedule_steps(params: Any, train_steps: int) -> dict[str, Any]:
    """Return an override that converts the ratios of all schedules to steps for `train_steps`."""
    return _override_of(_schedules(params, train_steps))


def warn_of_batch_size(params: Any, step: int, earlier_size: int) -> None:
    """Warn if a new batch size changes the number of epochs for which a resumed run trains.

    Args:
        params: The config that was resolved for the current batch size.
        step: The step from which the run resumes.
        earlier_size: The number of examples in each batch before this step.
    """
    conversion: _Conversion | None = vars(params).get(_CONVERSIONS, {}).get("trainer.train_steps")
    size = hyperparams.get_by_path(params, "task.train_data.global_batch_size")
    if not step or not size or conversion is None or params.trainer.train_steps != conversion.value:
        return
    planned, wanted = conversion.value, conversion.given_value
    # The steps in which batches of the current size would have read the earlier examples.
    read = Fraction(step * earlier_size, size)
    trained = wanted * float((read + max(planned - step, 0)) / planned)
    logging.warning(
        "`task.train_data.global_batch_size` was %d up to step %d, and is now %d, so the run "
        "trains for %.4g instead of %g epochs: the config asks for %d steps, which assumes batches "
        "of the current size from the start. To train for all epochs, set `trainer.train_steps` to "
        "%d.",
        earlier_size,
        step,
        size,
        trained,
        wanted,
        planned,
        step + max(math.ceil(planned - read), 0),
    )


def refuse_both(params: hyperparams.Config, given: Mapping[str, Any], source: str) -> None:
    """Raise an error if the same source sets two mutually exclusive fields.

    The default of a field does not conflict with the field that replaces it, because a gin file
    that a run exports has both.

    Args:
        params: The config before the fields are set.
        given: The values that the source sets, by path. None, or null in YAML, does not conflict
            with the other field.
        source: The name of the source in messages.

    Raises:
        errors.ConfigValueError: If both fields are set.
    """
    for pair in _pairs(params):
        steps, rival = (given.get(path) for path in (pair.steps, pair.rival))
        if steps in (*_NOTHING, pair.default) or rival in _NOTHING:
            continue
        raise errors.ConfigValueError(
            f"{source} has both `{pair.steps}` ({_meaning(pair.steps, steps)}) and `{pair.rival}` "
            f"({_meaning(pair.rival, rival)}), which are mutually exclusive. Set only one of them."
        )


@contextlib.contextmanager
def log_replaced(
    params: hyperparams.Config, source: str, values: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Log the fields whose values are replaced by a mutually exclusive field within this context.

    Args:
        params: The config that is changed within the context.
        source: The name of the source that changes it.
        values: The override, if known. Fields that it sets explicitly, such as to null, are not
            logged.
    """
    before = {pair.steps: pair for pair in _pairs(params)}
    yield
    named = set(hyperparams.flatten(values)) if values else set()
    for pair in _pairs(params):
        old = before.get(pair.steps)
        if old is None or old.has_rival == pair.has_rival:
            continue
        lost, kept = (old.rival, pair.steps) if old.has_rival else (old.steps, pair.rival)
        had = old.values[0 if lost == old.steps else 1]
        if lost not in named and (lost == old.rival or had != old.default):
            now = pair.values[0 if kept == pair.steps else 1]
            logging.info(
                "%s: `%s` (%s) replaces `%s` (%s).",
                source,
                kept,
                _meaning(kept, now),
                lost,
                _meaning(lost, had),
            )


def _resolve(
    params: Any,
    task: Any,
    recorded: Mapping[str, int],
    divides_data: bool | None,
    needs_steps: bool,
) -> Any:
    in_epochs: dict[str, float] = {
        steps: epochs
        for steps, name in _IN_EPOCHS.items()
        if (epochs := hyperparams.get_by_path(params, f"trainer.{name}")) is not None
    }
    share = _share_of_data(params, divides_data)
    length = _stated_length(params, share)
    if length is None and in_epochs and recorded.keys() >= in_epochs.keys():
        steps = recorded
    else:
        if length is None and in_epochs and not needs_steps and recorded.get("steps_per_epoch"):
            length = Fraction(recorded["steps_per_epoch"])
        if length is None and in_epochs and needs_steps and task is not None:
            length = _length_of_dataset(params, task) * share
        if in_epochs and length is None and needs_steps:
            _require_data_to_ask(params)
            return params
        steps = _trainer_steps(in_epochs, length)
    conversions = list(_trainer_fields(params, in_epochs if steps else {}, steps))
    train_steps = next(
        (one.value for one in conversions if one.steps == "train_steps"),
        hyperparams.get_by_path(params, "trainer.train_steps", 0),
    )
    if not steps and "train_steps" in in_epochs:
        train_steps = _ANY_STEPS
    conversions += _schedules(params, train_steps)
    if not conversions:
        return params
    resolved = params.replace(**_override_of(conversions))
    resolved.__dict__[_CONVERSIONS] = {f"{one.block}.{one.steps}": one for one in conversions}
    return resolved


def _override_of(conversions: Iterable[_Conversion]) -> dict[str, Any]:
    override: dict[str, Any] = {}
    for one in conversions:
        block = override
        for name in one.block.split("."):
            block = block.setdefault(name, {})
        block |= {one.given: None, one.steps: one.value}
    return override


def _trainer_steps(in_epochs: dict[str, float], length: Fraction | None) -> dict[str, int]:
    """Return the values of the fields in steps; empty if the length of an epoch is unknown."""
    if length is None:
        return {}
    steps = {"steps_per_epoch": _whole_steps(length)}
    for name, epochs in in_epochs.items():
        # Convert via the decimal string, so that 0.1 epochs are exactly a tenth of an epoch.
        exact = Fraction(str(epochs)) * length
        # Round intervals down, so that the last interval ends no later than training.
        steps[name] = max(math.ceil(exact) if name == "train_steps" else math.floor(exact), 1)
    return steps


def _trainer_fields(
    params: Any, in_epochs: dict[str, float], steps: Mapping[str, int]
) -> Iterator[_Conversion]:
    for name, epochs in in_epochs.items():
        yield _Conversion("trainer", name, steps[name], _IN_EPOCHS[name], epochs)
    name = "steps_per_epoch"
    if name in steps and hyperparams.get_by_path(params, f"trainer.{name}") == 0:
        yield _Conversion("trainer", name, steps[name], name, 0)


def _schedules(params: Any, train_steps: int) -> Iterator[_Conversion]:
    """Yield the conversions of the schedules that are in use."""
    for block in ("learning_rate", "warmup"):
        path = f"trainer.optimizer_config.{block}"
        choice = hyperparams.get_by_path(params, path)
        schedule = choice.get() if choice is not None else None
        for steps, ratio_name in getattr(schedule, "CLEARS", {}).items():
            ratio = getattr(schedule, ratio_name)
            if ratio is not None:
                value = _steps_of(ratio, train_steps, steps)
                yield _Conversion(f"{path}.{choice.type}", steps, value, ratio_name, ratio)


def _steps_of(ratio: Any, train_steps: int, name: str) -> Any:
    if isinstance(ratio, list | tuple):
        return list(_ascending(round(value * train_steps) for value in ratio))
    steps = round(ratio * train_steps)
    # A warm-up may last 0 steps, but a decay requires at least 1.
    return steps if name == "warmup_steps" else max(steps, 1)


def _ascending(steps: Iterator[int]) -> Iterator[int]:
    """Yield the boundaries, increased where necessary so that they are strictly ascending.

    In a short run, several ratios may be rounded to the same step.
    """
    last = -1
    for step in steps:
        last = max(step, last + 1)
        yield last


def _stated_length(params: Any, share: Fraction) -> Fraction | None:
    """Return the epoch length in steps, or None if the config does not determine it."""
    stated = hyperparams.get_by_path(params, "trainer.steps_per_epoch", 0)
    num_examples = hyperparams.get_by_path(params, "task.train_data.num_examples")
    batch_size = hyperparams.get_by_path(params, "task.train_data.global_batch_size", 0)
    is_known = batch_size and num_examples not in (None, 0, -1)
    of_all = Fraction(num_examples, batch_size) if is_known else None
    if of_all is None:
        return Fraction(stated) if stated else None
    counted = of_all * share
    # Also accept the steps per epoch of the undivided data: earlier versions recorded this number,
    # and a search with `task.arch` still does.
    if stated and stated not in (_whole_steps(counted), _whole_steps(of_all)):
        raise errors.ConfigValueError(
            f"`trainer.steps_per_epoch` is {stated}, but `task.train_data.num_examples` is "
            f"{num_examples}, which makes {float(counted):g} batches of {batch_size}: "
            f"{_whole_steps(counted)} whole steps. Set only one of them: `steps_per_epoch: 0` to "
            "derive it from the data, or `num_examples: null` to use the given steps."
        )
    # Do not round the length, so that a number of epochs is converted to steps exactly.
    return counted


def _whole_steps(length: Fraction) -> int:
    """Return the length of an epoch in whole steps, rounded down, but at least 1."""
    return max(math.floor(length), 1)


def _length_of_dataset(params: Any, task: Any) -> Fraction:
    if not hasattr(params.task, "train_data"):
        raise _unknown_length(_SEVERAL_TASKS)
    from official_lite.data import length

    # Count the micro-batches that training reads. Their number need not be proportional to that of
    # whole batches, because the last batch of a pass over the data may be partial or dropped.
    data = params.task.train_data
    count = hyperparams.get_by_path(params, "trainer.grad_accum_steps", 1)
    size = hyperparams.get_by_path(params, "task.train_data.global_batch_size") or 0
    if count > 1 and size and size % count == 0:
        data = data.replace(global_batch_size=size // count)
    dataset = task.build_inputs(data)
    num_batches = length.epoch_length(dataset) if hasattr(dataset, "cardinality") else None
    if num_batches is None:
        reason = "The training dataset does not report the number of batches in an epoch."
        raise _unknown_length(reason, "task.train_data.num_examples")
    if num_batches == 0:
        raise errors.DataError("The training dataset is empty. Check `task.train_data`.")
    return num_batches / count


def _share_of_data(params: Any, divides_data: bool | None) -> Fraction:
    """Return the fraction of the training data that trains the weights.

    If an architecture search divides the data, one half trains the weights and the other half the
    architecture.
    """
    if divides_data is None:
        name = hyperparams.get_by_path(params, "trainer.name")
        has_search = hyperparams.get_by_path(params, "trainer.one_shot") is not None
        divides_data = name in _SEARCHES or bool(name and has_search)
    divides = (
        divides_data
        and hyperparams.get_by_path(params, "trainer.one_shot.arch_data") is None
        and not hyperparams.get_by_path(params, "task.arch")
        and hyperparams.get_by_path(params, "task.train_data.sharding", True)
    )
    return Fraction(1, 2) if divides else Fraction(1)


def _require_data_to_ask(params: Any) -> None:
    """Raise an error for several tasks, unless a custom stage may set the length of an epoch."""
    has_own_prepare = hyperparams.get_by_path(params, "pipeline.prepare", "")
    if hasattr(params.task, "task_routines") and not has_own_prepare:
        raise _unknown_length(_SEVERAL_TASKS)


def _unknown_length(reason: str, *others: str) -> errors.ConfigValueError:
    fields = " or ".join(f"`{name}`" for name in (*others, "trainer.steps_per_epoch"))
    return errors.ConfigValueError(
        f"The config is given in epochs, but the length of an epoch is unknown. {reason} Set "
        f"{fields}."
    )


def _log(conversions: Iterable[_Conversion]) -> None:
    parts = []
    for one in conversions:
        epochs = one.given_value
        is_in_epochs = one.given == _IN_EPOCHS.get(one.steps)
        of_epochs = f"{epochs:g} epoch{'s' * (epochs != 1)}" if is_in_epochs else ""
        if one.steps == "train_steps":
            parts.append(f"{of_epochs} = {one.value} steps")
        elif one.given != one.steps:
            parts.append(f"`{one.steps}` = {one.value}" + (f" ({of_epochs})" if of_epochs else ""))
    if parts:
        logging.info("Converted to steps: %s.", ", ".join(parts))


def _pairs(config: Any, path: str = "") -> Iterator[_Pair]:
    for name, rival in getattr(config, "CLEARS", {}).items():
        yield _Pair(
            steps=f"{path}{name}",
            rival=f"{path}{rival}",
            values=(getattr(config, name), getattr(config, rival)),
            default=getattr(type(config), name, None),
        )
    for name, value in vars(config).items():
        if isinstance(value, hyperparams.ParamsDict):
            yield from _pairs(value, f"{path}{name}.")


def _meaning(path: str, value: Any) -> str:
    if "ratio" in path:
        return f"{value} of all steps"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    unit = "epoch" if path.endswith("epochs") else "step"
    return f"{text} {unit}{'s' * (value != 1)}"
