"""The registry of the hooks that a config lists in `trainer.hooks`.

Register a custom hook under a name, or refer to it by its path, such as
`my_package.hooks:InfoHook` or `{workspace}/hooks.py:InfoHook`::

    @hook_factory.register_hook("info")
    class InfoHook(orbit.Hook): ...

This module does not import TensorFlow until a hook is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from official_lite.common import plugins

if TYPE_CHECKING:
    from official_lite import orbit

__all__ = ["HARMLESS_CALLBACKS", "HookFactory", "find_hooks", "register_hook", "resolve"]

HookFactory = Callable[[], "orbit.Hook"]
_Registered = TypeVar("_Registered", bound=Callable[..., Any])

_HOOKS: plugins.Collection = {
    name: f"official_lite.orbit.hooks.{module}"
    for name, module in {
        "action": "hook:ActionHook",
        "best_checkpoint": "saving_and_stopping:BestCheckpoint",
        "early_stopping": "saving_and_stopping:EarlyStopping",
        "export_model": "saving_and_stopping:ExportModel",
        "gradient_norm": "monitors:GradientNorm",
        "graph": "monitors:GraphSummary",
        "input_wait": "monitors:InputWait",
        "iteration_timer": "monitors:IterationTimer",
        "keras_callback": "keras_callback:KerasCallback",
        "lambda": "hook:LambdaHook",
        "learning_rate": "monitors:LearningRateLogger",
        "memory": "monitors:MemoryStats",
        "non_finite": "non_finite:NonFinite",
        "periodic_checkpoint": "saving_and_stopping:PeriodicCheckpoint",
        "precise_batch_norm": "batch_norm_statistics:PreciseBatchNorm",
        "profiler": "monitors:Profiler",
        "stall_warning": "monitors:StallWarning",
        "stochastic_weight_averaging": "batch_norm_statistics:StochasticWeightAveraging",
        "weight_norms": "monitors:WeightNorms",
    }.items()
}
# `--mode=search` adds this hook to every trial.
_HOOKS["report_trial"] = "official_lite.search.report_hook:ReportTrial"

# The Keras callbacks that write no files and contact no server. A restricted config may name only
# these, and a replay skips all others.
HARMLESS_CALLBACKS = ("EarlyStopping", "ReduceLROnPlateau", "SwapEMAWeights", "TerminateOnNaN")


def register_hook(name: str) -> Callable[[_Registered], _Registered]:
    """Return a decorator that registers a hook class or factory for `trainer.hooks`.

    Raises:
        errors.ConfigError: If the name belongs to another hook.
    """
    return plugins.register(_HOOKS, name)


def resolve(name: str) -> Any:
    """Return the class or factory of a hook, given its registered name or its path.

    Raises:
        errors.UnknownNameError: There is no such hook.
    """
    return plugins.resolve(name, registry=_HOOKS, kind="hook")


def find_hooks(entries: Sequence[Any], workspace: str | None = None) -> list[HookFactory]:
    """Return the factories of a config's hooks, in their order, without creating the hooks.

    Args:
        entries: Names, or dictionaries with a `name` and the arguments of the constructor.
        workspace: The directory that replaces `{workspace}`.

    Raises:
        errors.ConfigError: If a hook is unknown or does not accept the given arguments.
    """
    from official_lite.orbit.hooks.hook import Hook

    for entry in entries:
        _refuse_callback(entry)
    return [
        plugins.factory(entry, registry=_HOOKS, base=Hook, workspace=workspace, kind="hook")
        for entry in entries
    ]


def _refuse_callback(entry: object) -> None:
    """Refuse a callback that may write files or contact servers, if the config is restricted.

    Keras does not check the paths that callbacks are given; `BackupAndRestore`, for example,
    deletes its `backup_dir` at the end of training.
    """
    callback = entry.get("callback") if isinstance(entry, Mapping) else None
    if callback is not None and callback not in HARMLESS_CALLBACKS:
        plugins.refuse(
            entry,
            f"The callback {callback!r} may write files or contact servers",
            f"Allowed callbacks: {', '.join(HARMLESS_CALLBACKS)}.",
        )
