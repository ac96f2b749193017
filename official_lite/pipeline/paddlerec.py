"""Stages and a context with PaddleRec's names, for stage files that were written for PaddleRec.

| PaddleRec                        | here         |
| -------------------------------- | ------------ |
| `InstanceBase.instance`          | `Prepare`    |
| `NetworkBase.build_network`      | `Build`      |
| `StartupBase.startup`, `load`    | `Initialize` |
| `RunnerBase.run`, `_run`, `save` | `Run`        |
| `TerminalBase.terminal`          | `Finalize`   |

A method in the first column replaces everything that the default stage does, but can call methods
of the default stage: `self.build(context)` in a `NetworkBase`, `self.load(context)` in a
`StartupBase`.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar

from official_lite.common import errors, suggestions
from official_lite.pipeline.stages import (
    Build,
    Engine,
    ExperimentContext,
    Finalize,
    Initialize,
    Prepare,
    Run,
    Stage,
)

__all__ = [
    "Context",
    "EngineMode",
    "InstanceBase",
    "NetworkBase",
    "RunnerBase",
    "StartupBase",
    "TerminalBase",
]

EngineMode = Engine

# Maps each PaddleRec status to the stage that runs next.
_STAGE_AFTER = {
    "uninit": "prepare",
    "network_pass": "build",
    "startup_pass": "initialize",
    "train_pass": "run",
    "terminal_pass": "finalize",
}
# In PaddleRec, a run without phases has a single phase with this name.
_ONLY_PHASE = "phase1"


class Context(MutableMapping[str, Any]):
    """A mapping that exposes an `ExperimentContext` under PaddleRec's keys.

    The keys `engine`, `status`, `runner_name`, `env` (with the `phase` of this run) and `model` (by
    phase) have the same meaning as in PaddleRec. All other keys are those of `ctx.extras`. The
    attributes of the `ExperimentContext` are available, too.

    Args:
        ctx: The context of the run.
    """

    _KEYS = ("engine", "status", "runner_name", "env", "model")

    def __init__(self, ctx: ExperimentContext) -> None:
        self.__dict__["ctx"] = ctx
        self.__dict__["next_stage"] = None

    def __getattr__(self, name: str) -> Any:
        # Avoid infinite recursion, because copying looks up attributes before `ctx` is set.
        if name == "ctx":
            raise AttributeError(name)
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)

    def __getitem__(self, key: str) -> Any:
        if key in self._KEYS:
            return getattr(self, f"_get_{key}")()
        if key in self.ctx.extras:
            return self.ctx.extras[key]
        known = [*self._KEYS, *self.ctx.extras]
        raise errors.UnknownKeyError(
            f"The context has no key {key!r}. {suggestions.did_you_mean(key, known)}"
        )

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "status":
            self._set_status(value)
        elif key in self._KEYS:
            raise errors.ConfigValueError(
                f"`context[{key!r}]` is read-only. Set only `status` or keys of your own."
            )
        else:
            self.ctx.extras[key] = value

    def __delitem__(self, key: str) -> None:
        del self.ctx.extras[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._KEYS
        yield from self.ctx.extras

    def __len__(self) -> int:
        return len(self._KEYS) + len(self.ctx.extras)

    def _get_engine(self) -> Engine:
        return self.ctx.engine

    def _get_status(self) -> str:
        """Return the status of the stage chosen to run next, or of the current stage."""
        stage = self.next_stage or self.ctx.stage
        return next(status for status, after in _STAGE_AFTER.items() if after == stage)

    def _set_status(self, status: Any) -> None:
        if status not in _STAGE_AFTER:
            raise errors.UnknownNameError(
                f"Unknown status {status!r}. {suggestions.did_you_mean(str(status), _STAGE_AFTER)}"
            )
        self.__dict__["next_stage"] = _STAGE_AFTER[status]

    def _get_runner_name(self) -> str:
        return self.ctx.phase or _ONLY_PHASE

    def _get_env(self) -> Mapping[str, Any]:
        return {"phase": [{"name": self.ctx.phase or _ONLY_PHASE, "mode": self.ctx.mode}]}

    def _get_model(self) -> Mapping[str, Any]:
        earlier = {name: _FinishedParts(phase) for name, phase in self.ctx.phases.items()}
        return {**earlier, self.ctx.phase or _ONLY_PHASE: _Parts(self.ctx)}


class _FinishedParts:
    """The read-only value of `context["model"][phase]` for an earlier phase."""

    _NAMES: tuple[str, ...] = ("model",)
    _REASON = "A finished phase keeps only its model."

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        return getattr(self._owner, self._checked(name))

    def __setitem__(self, name: str, value: Any) -> None:
        raise errors.ConfigValueError(
            f"The {name!r} of the finished phase `{self._owner.name}` can't be replaced. Replace "
            "it while the phase runs."
        )

    def _checked(self, name: str) -> str:
        if name in self._NAMES:
            return name
        raise errors.UnknownKeyError(
            f"The phase has no {name!r}. {self._REASON} "
            f"{suggestions.did_you_mean(name, self._NAMES)}"
        )


class _Parts(_FinishedParts):
    """The value of `context["model"][phase]` for the current phase, with all its parts."""

    _NAMES = ("model", "optimizer", "task", "trainer")
    _REASON = "TensorFlow needs no programs or scopes."

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._owner, self._checked(name), value)


class _NamedMethod(Stage):
    """Base class of stages that run a method named as in PaddleRec."""

    METHOD: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_base = "METHOD" in vars(cls)
        if not is_base and not hasattr(cls, cls.METHOD):
            raise errors.ConfigTypeError(
                f"`{cls.__name__}` in {cls.__module__} has no method "
                f"`{cls.METHOD}(self, context)`. Define this method."
            )

    def __call__(self, ctx: Any) -> str | None:
        getattr(self, self.METHOD)(ctx)
        next_stage: str | None = ctx.next_stage
        return next_stage

    @classmethod
    def view(cls, ctx: ExperimentContext) -> Any:
        return Context(ctx)


class InstanceBase(_NamedMethod, Prepare):
    """The `prepare` stage. Subclasses define `instance(self, context)`."""

    METHOD = "instance"


class NetworkBase(_NamedMethod, Build):
    """The `build` stage. Subclasses define `build_network(self, context)`."""

    METHOD = "build_network"


class StartupBase(_NamedMethod, Initialize):
    """The `initialize` stage. Subclasses define `startup(self, context)`."""

    METHOD = "startup"

    def load(self, ctx: Any, is_fleet: bool = False, main_program: Any = None) -> str | None:
        """Restore the weights as `Initialize.load` does; the other arguments are ignored."""
        del is_fleet, main_program
        return super().load(ctx)


class RunnerBase(_NamedMethod, Run):
    """The `run` stage. Subclasses define `run(self, context)`, which may call `_run` and `save`."""

    METHOD = "run"

    def _run(self, context: Any, model_dict: Mapping[str, Any] | None = None) -> None:
        """Train to the end of a pass over the data, but not beyond `trainer.train_steps`.

        This method does not save a checkpoint. To train for several passes, loop while the global
        step is below `train_steps`, so that a resumed run makes only the remaining passes. Also end
        the loop when a hook requests a stop::

            while context.global_step < config.train_steps and not context.controller.stop_reason:
                self._run(context)
        """
        del model_dict
        config = context.params.trainer
        if not config.steps_per_epoch:
            raise errors.ConfigValueError(
                "The length of an epoch is unknown. Set `trainer.steps_per_epoch`, or set the "
                "training length in `trainer.train_epochs`."
            )
        # A run that was resumed within a pass first completes that pass.
        num_passes = context.global_step // config.steps_per_epoch + 1
        last_step = min(num_passes * config.steps_per_epoch, config.train_steps)
        context.controller.train(last_step, checkpoint_at_completion=False)

    def save(self, epoch_id: int, context: Any, is_fleet: bool = False) -> None:
        """Save a checkpoint, whose name contains the step; the other arguments are ignored."""
        del epoch_id, is_fleet
        context.controller.save_checkpoint()


class TerminalBase(_NamedMethod, Finalize):
    """The `finalize` stage, which also runs after a failure.

    Subclasses define `terminal(self, context)`.
    """

    METHOD = "terminal"
