"""The config of each phase: several runs in a row, of one experiment.

::

    phases:
      - {name: pretrain, mode: train, overrides: {trainer.train_steps: 1000}}
      - {name: finetune, overrides: {task.train_data.input_path: small*}, init_from: previous}

Each phase is a run of its own in `model_dir/<name>`. Nothing here needs TensorFlow.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_lite.common import errors, flags, suggestions
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import field_checks

__all__ = [
    "PhaseConfig",
    "check",
    "directory",
    "in_phase",
    "lies_in",
    "override_all",
    "require_order",
    "resolve",
]


# What a run writes into its own directory, which may be that of the phases as well.
_TAKEN = ("train", "validation", "best_ckpt", "swa", "export", "ema_checkpoints", "profile")


@dataclasses.dataclass
class PhaseConfig(hyperparams.Config):
    """One of several runs that a command makes in order, each in `model_dir/<name>`.

    Attributes:
        name: Its name, and that of its directory.
        mode: Its mode; None is the command's `--mode`.
        overrides: What is different in the experiment's config, nested or by dotted paths.
        init_from: Where its weights come from: `previous` for the phase before, the name of an
            earlier one, also with a path inside it (`pretrain/best_ckpt`), or any other path.
    """

    name: str = ""
    mode: str | None = None
    overrides: hyperparams.FreeConfig = dataclasses.field(default_factory=hyperparams.FreeConfig)
    init_from: str = ""

    def validate_fields(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name) or self.name == "previous":
            raise errors.ConfigValueError(
                f"`name` is {self.name!r}; wanted the name of a directory, such as 'pretrain'."
            )
        if self.name in _TAKEN:
            raise errors.ConfigValueError(
                f"`name` is {self.name!r}, which is a directory that a run writes by itself. Taken "
                f"are {', '.join(_TAKEN)}."
            )
        if self.mode is not None:
            field_checks.require_one_of(self, "mode", flags.MODES)


def require_order(phases: Sequence[PhaseConfig]) -> None:
    """Checks that each phase has a name of its own, and its weights from an earlier one.

    Raises:
        errors.ConfigValueError: If not.
    """
    names = [phase.name for phase in phases]
    for index, phase in enumerate(phases):
        if phase.name in names[:index]:
            raise errors.ConfigValueError(
                f"Two `phases` are named {phase.name!r}; their directories would be one."
            )
        _require_source(phase, phases[:index], names)


def directory(params: Any, index: int, model_dir: str) -> str:
    """Where the phase runs."""
    return os.path.join(model_dir, params.phases[index].name)


def lies_in(path: str, directory: str) -> bool:
    """Whether `path` is the directory of a phase or inside it, as far as the names say."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


def resolve(params: Any, index: int, model_dir: str = "") -> Any:
    """The config of a phase: the experiment's with its overrides, and without `phases`.

    Args:
        params: The experiment's config, locked or not.
        index: Which phase.
        model_dir: The directory of the whole run, in which `init_from` finds the earlier phases.

    Returns:
        A locked copy.

    Raises:
        errors.ConfigError: If an override can't be, or makes a config that can't be.
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
    """Says in an error of ours of which phase it is; an empty name is a run without phases."""
    try:
        yield
    except errors.OfficialLiteError as error:
        if not name:
            raise
        raise type(error)(f"In the phase {name!r}: {error}") from error


def check(params: Any) -> None:
    """Resolves every phase, so that the last one's mistakes show before the first one runs.

    Raises:
        errors.ConfigError: As `resolve`.
    """
    for index in range(len(getattr(params, "phases", []))):
        resolve(params, index)


def override_all(params: Any, values_for: Callable[[Any], dict[str, Any]]) -> None:
    """Overrides dotted paths in the config and, above all that they say, in its phases.

    Args:
        params: The config.
        values_for: Makes the values by their paths from the config, or from that of a phase.
    """
    phases = getattr(params, "phases", [])
    of_phases = [values_for(resolve(params, index)) for index in range(len(phases))]
    _override(params, values_for(params))
    for phase, values in zip(phases, of_phases, strict=True):
        # Without those replaced, so that the new ones come last: a phase may say `trainer` as well.
        kept = {k: v for k, v in phase.overrides.as_dict().items() if k not in values}
        phase.overrides = hyperparams.FreeConfig(kept | values)


def _override(params: Any, overrides: dict[str, Any]) -> None:
    for path, value in overrides.items():
        if path == "phases":
            raise errors.ConfigValueError("`overrides` of a phase can't have `phases` in turn.")
        hyperparams.override_by_path(params, path, value)


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
    """Checks `init_from` as far as it can be, before any phase has run."""
    name, separator, _ = phase.init_from.partition("/")
    known = {other.name: other for other in earlier}
    if earlier:
        known["previous"] = earlier[-1]
    if name in known and known[name].mode in ("eval", "continuous_eval"):
        raise errors.ConfigValueError(
            f"`init_from` of phase {phase.name!r} is {phase.init_from!r}, which only evaluates and "
            "leaves no checkpoint."
        )
    is_path = bool(separator) and name not in names and name != "previous"
    if not name or name in known or is_path:
        return
    raise errors.ConfigValueError(
        f"`init_from` of phase {phase.name!r} is {phase.init_from!r}, which is no earlier phase. "
        f"{suggestions.did_you_mean(name, known)} A path has a slash: ./{phase.init_from}".strip()
    )
