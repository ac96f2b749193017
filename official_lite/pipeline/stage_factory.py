"""Lookup of the stage classes that the `pipeline` block of a config names."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from official_lite.common import errors, plugins, registry, suggestions
from official_lite.pipeline.build import Build
from official_lite.pipeline.finalize import Finalize
from official_lite.pipeline.initialize import Initialize
from official_lite.pipeline.prepare import Prepare
from official_lite.pipeline.run import Run
from official_lite.pipeline.stage import Stage

__all__ = ["STAGES", "describe", "find_stages", "is_default", "register_stage"]

_DEFAULTS: dict[str, type[Stage]] = {
    "prepare": Prepare,
    "build": Build,
    "initialize": Initialize,
    "run": Run,
    "finalize": Finalize,
}
STAGES = tuple(_DEFAULTS)

_REGISTERED_STAGES: registry.Collection = {}
_StageClass = TypeVar("_StageClass", bound=type[Stage])


def register_stage(name: str) -> Callable[[_StageClass], _StageClass]:
    """Return a decorator that registers a stage under a name for the config's `pipeline`.

    Raises:
        errors.ConfigError: If the name belongs to another stage.
    """
    return registry.register(_REGISTERED_STAGES, name)


def find_stages(params: Any, stages: Mapping[str, Any] | None = None) -> dict[str, type[Stage]]:
    """Return the class of each stage by name, in the order in which they run.

    Args:
        params: The experiment's config.
        stages: Classes, or names of classes, that override those in the config.

    Raises:
        errors.ConfigError: If a stage is unknown or not a subclass of the default stage.
    """
    chosen = dict(stages or {})
    for name in chosen:
        if name not in STAGES:
            raise errors.UnknownNameError(
                f"There is no stage {name!r}. {suggestions.did_you_mean(name, STAGES)}"
            )
    config = getattr(params, "pipeline", None)
    workspace = getattr(params, "workspace", "") or None
    return {
        name: _find(name, chosen.get(name) or getattr(config, name, ""), workspace)
        for name in STAGES
    }


def is_default(name: str, stage: type[Stage]) -> bool:
    """Return whether the class is the default class of the stage `name`."""
    return stage is _DEFAULTS[name]


def describe(name: str, stage: type[Stage]) -> str:
    """Return one line with the stage's name, its class, and the file or module of the class."""
    try:
        place = inspect.getsourcefile(stage)
    except (TypeError, OSError):
        # A class that was defined interactively has no file.
        place = stage.__module__
    return f"stage {name}: {stage.__qualname__} ({place})"


def _find(name: str, spec: Any, workspace: str | None) -> type[Stage]:
    if not spec:
        return _DEFAULTS[name]
    base = _DEFAULTS[name]
    found = plugins.resolve(
        spec, registry=_REGISTERED_STAGES, base=base, workspace=workspace, kind=f"`{name}` stage"
    )
    if not inspect.isclass(found) or not issubclass(found, base):
        raise errors.ConfigTypeError(
            f"The `{name}` stage {spec!r} must be a subclass of `{base.__name__}`; got {found!r}."
        )
    return found
