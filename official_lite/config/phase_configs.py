"""The configs of phases, which are consecutive runs of one experiment.

::

    phases:
      - {name: pretrain, mode: train, overrides: {trainer.train_steps: 1000}}
      - {name: finetune, overrides: {task.train_data.input_path: small*}, init_from: previous}

Each phase is a separate run in `model_dir/<name>`. This module does not need TensorFlow.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_lite.common import errors, flags, suggestions
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks, params_dict

# Subdirectories that a run writes itself; a phase of the same name would use the same directory.
_TAKEN = ("train", "validation", "best_ckpt", "swa", "export", "ema_checkpoints", "profile")


@dataclasses.dataclass
class PhaseConfig(hyperparams.Config):
    """The config of a phase: one of several consecutive runs, each in `model_dir/<name>`.

    Attributes:
        name: The name of the phase and of its directory.
        mode: The mode; None means the command's `--mode`.
        overrides: Overrides of the experiment's config, nested or by dotted paths.
        init_from: The source of the initial weights: `previous` for the previous phase, the name of
            an earlier phase, optionally with a path inside it (`pretrain/best_ckpt`), or any other
            path.
    """

    name: str = ""
    mode: str | None = None
    overrides: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)
    init_from: str = ""

    def validate_fields(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name) or self.name == "previous":
            raise errors.ConfigValueError(
                f"`name` is {self.name!r}; expected the name of a directory, such as 'pretrain'."
            )
        if self.name in _TAKEN:
            raise errors.ConfigValueError(
                f"`name` is {self.name!r}, which is reserved for a directory of the run. Reserved "
                f"names: {', '.join(_TAKEN)}."
            )
        if self.mode is not None:
            field_checks.require_one_of(self, "mode", flags.MODES)


def require_order(phases: Sequence[PhaseConfig]) -> None:
    """Check that phase names are unique and that weights come from earlier phases or paths.

    Raises:
        errors.ConfigValueError: If a name is a duplicate or `init_from` is invalid.
    """
    names = [phase.name for phase in phases]
    for index, phase in enumerate(phases):
        if phase.name in names[:index]:
            raise errors.ConfigValueError(
                f"Two `phases` are named {phase.name!r}, so they would share a directory. Rename "
                "one of them."
            )
        _require_source(phase, phases[:index], names)


def directory(params: Any, index: int, model_dir: str) -> str:
    """Return the model directory of a phase."""
    return os.path.join(model_dir, params.phases[index].name)


def lies_in(path: str, directory: str) -> bool:
    """Return whether `path` is `directory` or inside it, without looking at the file system."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def resolve(params: Any, index: int, model_dir: str = "") -> Any:
    """Return the config of a phase: the experiment's config with overrides and without `phases`.

    Args:
        params: The experiment's config, locked or not.
        index: The index of the phase.
        model_dir: The directory of the whole run, in which `init_from` finds the earlier phases.

    Returns:
        A locked copy.

    Raises:
        errors.ConfigError: If an override is invalid or results in an invalid config.
    """
    phase = params.phases[index]
    resolved = params.replace(phases=[])
    with in_phase(phase.name):
        _override(resolved, phase.overrides.as_dict())
        if phase.init_from:
            path = _source(params, index, model_dir)
            resolved.override({"task": {"init_checkpoint": path}})
        resolved.validate()
    resolved.lock()
    return resolved


@contextlib.contextmanager
def in_phase(name: str) -> Iterator[None]:
    """Add the name of the phase to errors of this library; an empty name means no phases."""
    try:
        yield
    except errors.OfficialLiteError as error:
        if not name:
            raise
        raise type(error)(f"In the phase {name!r}: {error}") from error


def check(params: Any) -> None:
    """Resolve every phase, so that errors in the last phase are found before the first one runs.

    Raises:
        errors.ConfigError: As in `resolve`.
    """
    for index in range(len(hyperparams.get_by_path(params, "phases", []))):
        resolve(params, index)


def override_all(params: Any, values_for: Callable[[Any], dict[str, Any]]) -> None:
    """Override dotted paths in the config and in its phases, with precedence over their overrides.

    Args:
        params: The config.
        values_for: A function that returns the values by path, given the config or the resolved
            config of a phase.
    """
    phases = hyperparams.get_by_path(params, "phases", [])
    of_phases = [values_for(resolve(params, index)) for index in range(len(phases))]
    _override(params, values_for(params))
    for phase, values in zip(phases, of_phases, strict=True):
        # Drop existing overrides of these fields, so that the new values come last, after any
        # override of the whole `trainer` block.
        kept = {k: v for k, v in phase.overrides.as_dict().items() if k not in values}
        phase.overrides = hyperparams.FreeConfig(kept | values)


def _override(params: Any, overrides: dict[str, Any]) -> None:
    if "phases" in overrides:
        raise errors.ConfigValueError(
            "The `overrides` of a phase can't contain `phases`. Remove it from the overrides."
        )
    params_dict.override_by_paths(params, overrides.items())


def _source(params: Any, index: int, model_dir: str) -> str:
    name, separator, rest = params.phases[index].init_from.partition("/")
    earlier = [phase.name for phase in params.phases[:index]]
    if name == "previous" and earlier:
        name = earlier[-1]
    if name not in earlier:
        return str(params.phases[index].init_from)
    return os.path.join(model_dir, name) + separator + rest


def _require_source(
    phase: PhaseConfig, earlier: Sequence[PhaseConfig], names: Sequence[str]
) -> None:
    """Check `init_from` as far as possible before any phase has run."""
    name, separator, _ = phase.init_from.partition("/")
    known = {other.name: other for other in earlier}
    if earlier:
        known["previous"] = earlier[-1]
    if name in known and known[name].mode in ("eval", "continuous_eval", "test", "predict"):
        raise errors.ConfigValueError(
            f"`init_from` of phase {phase.name!r} is {phase.init_from!r}, which leaves no "
            "checkpoint. Name a phase that trains."
        )
    is_path = bool(separator) and name not in names and name != "previous"
    if not name or name in known or is_path:
        return
    raise errors.ConfigValueError(
        (
            f"`init_from` of phase {phase.name!r} is {phase.init_from!r}, which is not an earlier "
            f"phase. {suggestions.did_you_mean(name, known)} To use a path, write it with a slash: "
            f"./{phase.init_from}"
        ).strip()
    )
