"""The hooks that a config names, in `trainer.hooks`.

A hook of one's own gets a name here, or is named by its place: `my_package.hooks:InfoHook`,
`{workspace}/hooks.py:InfoHook`::

    @hook_factory.register_hook("info")
    class InfoHook(orbit.Hook): ...

Nothing here needs TensorFlow until a hook is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from official_lite.common import plugins, registry

if TYPE_CHECKING:
    from official_lite import orbit

__all__ = ["HookFactory", "find_hooks", "register_hook"]

HookFactory = Callable[[], "orbit.Hook"]
_Registered = TypeVar("_Registered", bound=Callable[..., Any])

_HOOKS: registry.Collection = {
    name: f"official_lite.orbit.hooks.{module}"
    for name, module in {
        "action": "action_hook:ActionHook",
        "best_checkpoint": "best_checkpoint:BestCheckpoint",
        "early_stopping": "early_stopping:EarlyStopping",
        "export_model": "export_model:ExportModel",
        "gradient_norm": "gradient_norm:GradientNorm",
        "input_wait": "input_wait:InputWait",
        "iteration_timer": "iteration_timer:IterationTimer",
        "keras_callback": "keras_callback:KerasCallback",
        "lambda": "lambda_hook:LambdaHook",
        "learning_rate": "learning_rate_logger:LearningRateLogger",
        "memory": "memory_stats:MemoryStats",
        "non_finite": "non_finite:NonFinite",
        "periodic_checkpoint": "periodic_checkpoint:PeriodicCheckpoint",
        "precise_batch_norm": "precise_batch_norm:PreciseBatchNorm",
        "profiler": "profiler:Profiler",
        "stall_warning": "stall_warning:StallWarning",
        "stochastic_weight_averaging": "weight_averaging:StochasticWeightAveraging",
        "weight_norms": "weight_norms:WeightNorms",
    }.items()
}
# What `--mode=search` adds to the hooks of its trials.
_HOOKS["report_trial"] = "official_lite.search.report_hook:ReportTrial"

# Those that neither write files nor talk to a server: all that a restricted config may name.
_HARMLESS_CALLBACKS = ("EarlyStopping", "ReduceLROnPlateau", "SwapEMAWeights", "TerminateOnNaN")


def register_hook(name: str) -> Callable[[_Registered], _Registered]:
    """A decorator that gives a hook, or a function that makes one, a name for `trainer.hooks`.

    Raises:
        errors.ConfigError: If the name belongs to another hook.
    """
    return registry.register(_HOOKS, name)


def find_hooks(entries: Sequence[Any], workspace: str | None = None) -> list[HookFactory]:
    """What creates the hooks of a config, in their order; none is created yet.

    Args:
        entries: Names, or dictionaries of `name` and the arguments of its constructor.
        workspace: What `{workspace}` stands for.

    Raises:
        errors.ConfigError: There is no such hook, or it takes other arguments.
    """
    from official_lite.orbit.hooks.hook import Hook

    for entry in entries:
        _refuse_callback(entry)
    return [
        plugins.factory(entry, registry=_HOOKS, base=Hook, workspace=workspace, kind="hook")
        for entry in entries
    ]


def _refuse_callback(entry: Any) -> None:
    """Keras resolves paths by itself: `backup_dir` of `BackupAndRestore` is deleted at the end."""
    callback = entry.get("callback") if isinstance(entry, Mapping) else None
    if callback is not None and callback not in _HARMLESS_CALLBACKS:
        plugins.refuse(
            entry,
            f"The callback {callback!r} is not known to leave files and servers alone",
            f"Wanted one of {', '.join(_HARMLESS_CALLBACKS)}.",
        )
